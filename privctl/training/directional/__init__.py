"""Derivatives of losses along public random directions, in the tensors of a few groups."""

from privctl.training.directional.agreement import Agreement, agreement
from privctl.training.directional.derivatives import Derivatives
from privctl.training.directional.directions import direction
from privctl.training.directional.fired import Fired, Method

__all__ = ["Agreement", "Derivatives", "Fired", "Method", "agreement", "direction"]
