"""The pipeline: what reads rows, and the stages that turn them into items."""
