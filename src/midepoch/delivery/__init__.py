"""Who reads which items, and what the training loop has received."""
