"""Text formats: JSON lines, JSON arrays, raw lines and CSV, plain or compressed."""
