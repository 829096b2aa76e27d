"""What a checkpoint is: lane arithmetic, the state and its codec, merging, and what differs. Pure, no I/O."""
