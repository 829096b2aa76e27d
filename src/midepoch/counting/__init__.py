"""How many items the rows of files make, without reading them again: surveys, and counts of windows."""
