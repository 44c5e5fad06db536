"""Probabilities of common laws, and quantiles."""
