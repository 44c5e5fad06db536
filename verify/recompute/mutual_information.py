"""Published signs: their information in nats, what it allows an attacker, and the unavoidable delta.

The information is ln 2 times the number of signs published about one example (Cuff and Yu 2016). The largest total
variation distance tau solves h((1 - tau) / 2) = ln 2 - nats, where h is the binary entropy, by root finding.
"""

from __future__ import annotations

import math

from privctl.domain.events import Batches, SignBits
from verify.losses.bound_pair import BoundPair
from verify.losses.visits import visits

LN2 = math.log(2)


def nats(event: SignBits) -> float:
    """The expected number of signs published in batches that contain a given example, times ln 2."""
    signs = event.groups * event.fire_probability
    return signs * (event.steps * event.sample_rate) * LN2


def total_variation(information: float) -> BoundPair:
    """The largest total variation distance of neighbours. Example: 0.5 nats allow 0.9036225083."""
    if information >= LN2:
        return BoundPair(1.0, 1.0)
    if information == 0:
        return BoundPair(0.0, 0.0)

    def missing(tau: float) -> float:
        # ln 2 - h((1 - tau) / 2), written as a sum of two relative entropies.
        return ((1 + tau) * math.log1p(tau) + (1 - tau) * (math.log1p(-tau) if tau < 1 else 0.0)) / 2 - information

    if information < 1e-12:
        root = math.sqrt(2 * information)
        return BoundPair(root * (1 - 1e-6), root)
    from scipy.optimize import brentq  # imported here because the import takes longer than most verifications

    distance = brentq(missing, 0.0, 1.0, xtol=1e-300, rtol=1e-14)
    return BoundPair(distance * (1 - 1e-11), min(1.0, distance * (1 + 1e-11)))


def auc(information: float) -> BoundPair:
    """The largest AUC, 1 - (1 - tau)^2 / 2, that of a ROC curve with one corner."""
    tau = total_variation(information)
    return BoundPair(*(1 - (1 - end) ** 2 / 2 for end in (tau.lower, tau.upper)))


def unavoidable_delta(event: SignBits, batches: Batches) -> float:
    """The probability that a record which decides its batch's sign is revealed, a lower bound on delta at any epsilon.

    With Poisson batches, a step reveals it with probability s (1 - (1 - p)^G). In passes it is visited once per pass,
    and the fewest passes that the rate allows are counted.
    Example: G=2, p=0.0721347520, s=0.005, T=1000 Poisson: 0.50121107.
    """
    silent = (1 - event.fire_probability) ** event.groups
    if batches is Batches.POISSON:
        return 1.0 - (1 - event.sample_rate * (1 - silent)) ** event.steps
    return 1.0 - float(silent ** min(visits(event.sample_rate, event.steps)))
