"""Per-example gradient clipping in one backward pass."""

from privctl.train.clipping.engine import ClippedBatch, PerExample
from privctl.train.clipping.factors import Clipping
from privctl.train.settings.choices import ClippingStyle

__all__ = ["ClippedBatch", "Clipping", "ClippingStyle", "PerExample"]
