"""Packing documents into sequences of a fixed number of tokens."""
