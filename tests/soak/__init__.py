"""The soak: ranks, workers and stores are killed, stalled and resized at random, and every delivered row is audited.

    make soak MINUTES=60 SEED=7

One *run* reads one random pipeline for one or two epochs, in *legs*. A leg is one torchrun, on random ranks, workers
and batch size. It ends by itself, or is killed, and the next leg resumes from the newest complete checkpoint. ``draws``
has all decisions, ``rank`` what a rank does, ``driver`` starts and kills, ``audit`` compares. Linux only.
"""
