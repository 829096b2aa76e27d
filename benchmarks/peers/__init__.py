"""midepoch and others side by side: ``python -m benchmarks.peers``."""
