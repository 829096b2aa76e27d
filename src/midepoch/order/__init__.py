"""From a position of the epoch to a row of the dataset: pure functions of seed, epoch and position."""
