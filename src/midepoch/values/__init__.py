"""Arrow columns as Python, NumPy and torch values, and back."""
