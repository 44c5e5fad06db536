"""Simulates a mechanism: what a sample of its outputs shows about delta, and what it cannot show."""
