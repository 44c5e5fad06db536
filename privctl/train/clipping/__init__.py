"""Per-example gradient clipping in one backward pass."""

from privctl.train.choices import ClippingStyle
from privctl.train.clipping.engine import ClippedBatch, PerExample
from privctl.train.clipping.factors import Clipping

__all__ = ["ClippedBatch", "Clipping", "ClippingStyle", "PerExample"]
