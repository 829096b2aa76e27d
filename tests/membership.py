"""A process of an elastic run, which the test tells what to do over a pipe. Its workers read ahead of it."""

import midepoch as me
from worlds import ids


def serve(dataset, pipe, others):
    """Until the pipe is closed: reshard, or take a step and answer with its rows and the state after it."""
    for other in others:  # forked ends of pipes would keep those open
        other.close()
    loader = me.Loader(dataset, batch_size=2, num_workers=1, persistent_workers=True)
    loop = iter(())
    try:
        while True:
            name, *arguments = pipe.recv()
            if name == "reshard":
                ranks, index, state = arguments
                loader.reshard(ranks, index, at=state)
                loop = iter(loader)
                pipe.send("ready")
            else:
                batch = next(loop, None)
                rows = [] if batch is None or loader.is_padding else ids([batch])
                pipe.send((rows, loader.state_dict()))
    except EOFError:
        loader.close()
