"""What one pass over the rows of files tells: which of them filters keep, and how long they are."""
