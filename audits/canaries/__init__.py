"""Canaries: random secrets planted by fair coins, and what a model trained on them gives away of the coins."""
