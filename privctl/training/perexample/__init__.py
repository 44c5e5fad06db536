"""Per-example gradient clipping in one backward pass."""

from privctl.training.perexample.clipping import Clipping, ClippingStyle
from privctl.training.perexample.engine import ClippedBatch, PerExample

__all__ = ["ClippedBatch", "Clipping", "ClippingStyle", "PerExample"]
