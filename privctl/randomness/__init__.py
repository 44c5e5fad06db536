"""Randomness for privacy: a keystream, Gaussian deviates from it, and sums rounded onto a public grid."""

from privctl.randomness.source import BLOCK, NoiseSource

__all__ = ["BLOCK", "NoiseSource"]
