"""Probabilities and quantiles of common distributions."""
