"""Per-example gradient clipping in one backward pass."""

from privctl.train.choices import ClippingStyle
from privctl.train.clipping.engine import ClippedBatch, PerExample
from privctl.train.clipping.norms_and_weights import Clipping

__all__ = ["ClippedBatch", "Clipping", "ClippingStyle", "PerExample"]
