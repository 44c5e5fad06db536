"""Canaries: random secrets, each planted by a fair coin, and what a model trained on them reveals about the coins."""
