"""Randomness for privacy: a keystream, Gaussian deviates from it, and sums rounded onto a public grid."""

from privctl.randomness.source import BLOCK, WORTH_COMPILING, NoiseSource

__all__ = ["BLOCK", "WORTH_COMPILING", "NoiseSource"]
