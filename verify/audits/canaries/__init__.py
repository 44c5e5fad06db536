"""Bounds from canaries: their counts, the noise they tell of, and what was fixed before training."""
