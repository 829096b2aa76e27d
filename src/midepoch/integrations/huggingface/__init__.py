"""Datasets of the Hugging Face hub and of `datasets`, read from their Arrow files."""
