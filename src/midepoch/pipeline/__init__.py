"""A source and its stages as one pipeline, and mixtures of pipelines."""
