"""Mutual-information privacy of published signs, and what does and does not follow from it.

epsilon-MI-DP bounds I(X_i; Y | X_-i) for every example i and every prior of the data (Cuff and Yu 2016, "Differential
Privacy as a Mutual Information Constraint"). It is an average over the prior and the output: a rare event that reveals
an example costs few nats, so no (epsilon, delta)-DP with a small delta follows, and from ln 2 nats on nothing follows
about a binary secret. Its epsilon is not comparable with that of (epsilon, delta)-DP.

The signs are those of FERRET, of directional derivatives of a batch gradient: G groups, each published with probability
p in each of T steps, independently of the data; an example is in the batch with probability s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privctl.accounting.passes import certain_participations
from privctl.domain.checks import at_least, positive, probability
from privctl.domain.events import SignBits

LN2 = math.log(2)


def nats(event: SignBits) -> float:
    """G T s p ln 2: an upper bound on the mutual information published about one example, in nats.

    By the chain rule over steps and groups, given the mask and the batches: a published sign carries at most ln 2, and
    nothing about an example outside its batch. Holds for Poisson batches, and for shuffled ones with T s passes.
    """
    return ceiling(event.groups, event.steps, event.sample_rate) * event.fire_probability


def ceiling(groups: int, steps: int, sample_rate: float) -> float:
    """G T s ln 2: the bound in nats if every group publishes in every step."""
    at_least("groups", groups, 1)
    at_least("steps", steps, 1)
    probability("sample_rate", sample_rate)
    return groups * steps * sample_rate * LN2


def fire_probability_for(epsilon: float, groups: int, steps: int, sample_rate: float) -> float:
    """The largest fire probability that publishes at most ``epsilon`` nats.

    Raises ValueError if ``epsilon`` exceeds ``ceiling``: then every group may publish in every step.
    Example: 0.5 nats, 2 groups, 1000 steps, rate 0.005 give 0.0721347520.
    """
    positive("epsilon", epsilon)
    most = ceiling(groups, steps, sample_rate)
    if epsilon > most:
        raise ValueError(f"epsilon is {epsilon:g} nats; {groups} groups publish at most {most:g} nats in {steps} steps")
    fire_probability = epsilon / most
    while most * fire_probability > epsilon:
        fire_probability = math.nextafter(fire_probability, 0)
    return fire_probability


def pinsker_total_variation(epsilon: float) -> float:
    """min(1, sqrt(2 epsilon)): ``epsilon`` nats imply (0, delta)-DP with this delta; 1 from half a nat on."""
    at_least("epsilon", epsilon, 0)
    return min(1.0, math.sqrt(2 * epsilon))


def total_variation(epsilon: float) -> float:
    """The largest total variation distance between neighbours that ``epsilon`` nats allow; 1 from ln 2 nats on.

    tau with h((1 - tau) / 2) = ln 2 - epsilon, where h is the binary entropy: attained by a uniform binary secret
    behind a binary symmetric channel. It is also the largest advantage (true minus false positive rate) in
    distinguishing neighbours.
    """
    at_least("epsilon", epsilon, 0)
    if epsilon >= LN2:
        return 1.0
    high = pinsker_total_variation(epsilon)
    if epsilon < 1e-20:
        return high
    return _bisect(lambda tau: _binary_information(tau) >= epsilon, 0.0, high)[1]


def auc(epsilon: float) -> float:
    """The largest area under the ROC curve that ``epsilon`` nats allow: 1 - (1 - tau)^2 / 2."""
    return 1 - (1 - total_variation(epsilon)) ** 2 / 2


def worst_case_delta_poisson(event: SignBits, angle: float = math.pi) -> float:
    """The worst-case delta, at every epsilon, of undithered signs on Poisson batches.

    An example that dominates the batch gradient, at ``angle`` radians (0 to pi) to the gradient without it, is revealed
    if a group publishes a sign whose direction separates the two, which has probability angle / pi.
    """
    log_hidden = _log_hidden(event, angle, event.groups)
    revealed = event.sample_rate * -math.expm1(log_hidden)
    return 1.0 if revealed >= 1 else -math.expm1(event.steps * math.log1p(-revealed))


def worst_case_delta_shuffled(event: SignBits, angle: float = math.pi) -> float:
    """As ``worst_case_delta_poisson`` for shuffled batches: 1 - (1 - p)^(G E), if some example is used E times."""
    visits = certain_participations(event.sample_rate, event.steps)
    return -math.expm1(_log_hidden(event, angle, event.groups * visits))


def _binary_information(tau: float) -> float:
    """The nats needed for total variation distance ``tau``: ln 2 - h((1 - tau) / 2), without cancellation."""
    return tau * math.atanh(tau) + math.log1p(-tau * tau) / 2 if tau < 1 else LN2


def _log_hidden(event: SignBits, angle: float, trials: int) -> float:
    """Logarithm of the probability that none of ``trials`` publishes a direction that separates the gradients."""
    if not 0 <= angle <= math.pi:
        raise ValueError(f"angle is {angle}; it must lie between 0 and pi radians")
    revealing = event.fire_probability * angle / math.pi
    if revealing >= 1:
        return -math.inf if trials else 0.0
    return trials * math.log1p(-revealing)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats between which ``holds`` becomes true."""
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
