"""A source and its stages, and mixtures of such pipelines."""
