"""Rows of files as the items of a pipeline."""
