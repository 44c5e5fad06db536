"""Published signs: nats, what they allow an attacker, and the delta that no analysis can beat.

Definitions, each solved by a root-finder on the defining equation: nats are signs published about one example times
ln 2 (Cuff and Yu 2016); the largest total variation distance tau solves h((1 - tau) / 2) = ln 2 - nats.
"""

from __future__ import annotations

import math

from privctl.domain.events import Batches, SignBits
from verify.losses.bound_pair import BoundPair
from verify.losses.visits import visits

LN2 = math.log(2)


def nats(event: SignBits) -> float:
    """Signs published in batches that hold one example, on average, each worth ln 2."""
    signs = event.groups * event.fire_probability
    return signs * (event.steps * event.sample_rate) * LN2


def total_variation(information: float) -> BoundPair:
    """The largest total variation distance of neighbours. Example: 0.5 nats allow 0.9036225083."""
    if information >= LN2:
        return BoundPair(1.0, 1.0)
    if information == 0:
        return BoundPair(0.0, 0.0)

    def missing(tau: float) -> float:
        # ln 2 - h((1 - tau)/2) as a series-free sum of two relative entropies.
        return ((1 + tau) * math.log1p(tau) + (1 - tau) * (math.log1p(-tau) if tau < 1 else 0.0)) / 2 - information

    if information < 1e-12:
        root = math.sqrt(2 * information)
        return BoundPair(root * (1 - 1e-6), root)
    from scipy.optimize import brentq  # here, as importing it takes longer than most verifications

    distance = brentq(missing, 0.0, 1.0, xtol=1e-300, rtol=1e-14)
    return BoundPair(distance * (1 - 1e-11), min(1.0, distance * (1 + 1e-11)))


def auc(information: float) -> BoundPair:
    """The largest area under the ROC curve: that of the curve with one corner, 1 - (1 - tau)^2 / 2."""
    tau = total_variation(information)
    return BoundPair(*(1 - (1 - end) ** 2 / 2 for end in (tau.lower, tau.upper)))


def unavoidable_delta(event: SignBits, batches: Batches) -> float:
    """The probability with which a record that decides its batch's sign is revealed, whatever epsilon.

    Poisson batches: a step reveals it with probability s (1 - (1 - p)^G). In passes it is visited once in each, and
    as few passes are begun as the rate allows.
    Example: G=2, p=0.0721347520, s=0.005, T=1000 Poisson: 0.50121107.
    """
    silent = (1 - event.fire_probability) ** event.groups
    if batches is Batches.POISSON:
        return 1.0 - (1 - event.sample_rate * (1 - silent)) ** event.steps
    return 1.0 - float(silent ** min(visits(event.sample_rate, event.steps)))
