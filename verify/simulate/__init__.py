"""Trying a mechanism out: what a sample of its outputs shows of delta, and what it does not."""
