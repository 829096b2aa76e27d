"""Measurements of midepoch, as ratios within one run."""
