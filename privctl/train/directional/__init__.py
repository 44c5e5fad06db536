"""Derivatives of losses along public random directions in a few groups of parameters."""

from privctl.train.directional.agreement import SignAgreement, agreement
from privctl.train.directional.derivatives import Derivatives
from privctl.train.directional.directions import direction
from privctl.train.directional.queries import FiredGroup
from privctl.train.settings.choices import DerivativeMethod

__all__ = ["DerivativeMethod", "Derivatives", "FiredGroup", "SignAgreement", "agreement", "direction"]
