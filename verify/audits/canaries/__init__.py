"""Bounds from canaries: their counts, the bound on the noise, and what was fixed before training."""
