"""The blocks of a dataset: where each one lies, how many rows it has, and which schema all of them share."""
