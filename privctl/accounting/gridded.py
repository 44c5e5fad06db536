"""The privacy cost of drawing Gaussian noise in floating point and releasing it on a grid.

Theorem. Each released number is the integer nearest to (x + Z') / g, with g > 0 public, x any number (it may depend on
what was released before and on other coins), and Z' within A R of an ideal Z ~ N(0, sigma^2), in units of sigma; Z
comes in independent pairs of radius R. Let P be the law of all integers with Z in place of Z', P' the real one, D the
number of released numbers and S >= sigma / g. For any tail > 0 let T = sqrt(2 ln(D / tail)) and

    a = 1.001 A (T + 1) (2 S + T + 1),    b = 2 a,    e = D b^2 exp(b) / 2 + tail + b sqrt(2 D ln(1 / tail)).

Then P and P' are within (e, 2 tail) of each other, as in differential privacy, and within ``total_variation``; and
where P is (epsilon, d)-DP, P' is (epsilon + 2 e, exp(e) d + 2 tail (1 + exp(epsilon + e)))-DP.

Proof. Rounding Z to integers is post-processing, so P is as private as the Gaussian mechanism. Let B be the cells of
one pair's two integers, a rectangle of sides g. If Z' lies in B then Z lies in B made larger by A R on each side, and
if Z lies in B made smaller by as much then Z' lies in B. Where B meets the disc of radius T, A R <= A (T + 1) =: h
there. The affine map between B and the changed rectangle stretches each side by at most 1 + 2 h S, or 1 / (1 - 2 h S),
and moves each coordinate by h, which changes the log density by at most (T + 1) h + h^2: together at most a a
coordinate. So the two laws' log ratio l of a pair, given all before it, is at most b in size, but where B does not meet
the disc, which has probability q <= exp(-T^2 / 2) under either. Under P', l (taken as 0 outside) has mean at most q +
b^2 exp(b) / 2 since exp(-l) <= 1 - l + l^2 exp(b) / 2 and P(B meets) >= 1 - q. There are at most D pairs: by Azuma and
Hoeffding the sum of l exceeds e with probability at most ``tail``, and some pair leaves the disc with probability at
most D exp(-T^2 / 2) = ``tail``. The same holds with P and P' exchanged. Total variation: Pinsker. The last claim joins
P'_x to P_x to P_y to P'_y.

Nested candidates round x + Z_1 + ... + Z_j, each j by its own g_j. Each of k alone has h = A (T + 1) sqrt(k), for the
increments' standard deviations, in units of its own, have squares that sum to 1 and so a sum of at most sqrt(k). Of all
together a cell is a box in all sums at once, with density the product of the increments' own: its sides stretch by
2 h_j / g_j, and increment j, at most T + 2 (g_j + g_(j-1)) / s_j of its standard deviations s_j long, by h_j + h_(j-1).

Premises: A (``ACCURACY``) is as ``privctl.randomness.deviates`` checks it; integers are released, or functions of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Arithmetic, Assumption, AssumptionState, Guarantee, Risk, RiskMeasure

#: Distance of a deviate from an ideal one, at most, per unit of its pair's radius.
ACCURACY = 2.0**-48
#: Grid steps in a standard deviation, fewer than these.
STEPS = 64.0

#: The share of delta that is set aside for the tails.
_SHARE = 2.0**-20
#: exp of this is the first guess at what multiplies the tails' probability.
_FIRST_GUESS = 16.0
#: What rounding may take from a target, relatively.
_RELATIVE_ROUNDING = 1e-13
#: A log probability that is as good as 0.
_LOG_NEGLIGIBLE = -100.0

ASSUMPTION = Assumption(
    name="float arithmetic",
    statement="what is released is rounded onto a public grid, and each deviate is within 2^-48 of its pair's radius "
    "of an exact Gaussian's: the machine's logarithm, sine and cosine were compared with others before noise was drawn",
    state=AssumptionState.CHECKED,
)
NOTE = (
    "for the floats that are written: epsilon includes what noise in floating point adds; the sensitivity is of real "
    "arithmetic, so how floats round what the noise is added to is not counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Gaussian sums that were released: ``coordinates`` numbers in all, of one of ``candidates`` nested noise levels.

    All levels together need ``increments``, the standard deviations of what is added from one to the next, and the
    ``spacings`` of their grids; else these are empty.
    """

    coordinates: int
    candidates: int = 1
    increments: tuple[float, ...] = ()
    spacings: tuple[float, ...] = ()

    def log_ratio(self, log_tail: float) -> float:
        """b: how far one pair's log ratio goes, but with a probability that is ``tail`` over all pairs."""
        reach = math.sqrt(2 * (math.log(max(self.coordinates, 1) * self.candidates) - log_tail)) + 1
        if self.increments:
            return 2 * self._joint(reach)
        reach *= math.sqrt(self.candidates)
        return 2.002 * ACCURACY * reach * (2 * STEPS + reach)

    def _joint(self, reach: float) -> float:
        """A of all sums together: the box's sides stretch, and each increment's density moves with two sums."""
        total = error = before = spacing_before = 0.0
        for increment, spacing in zip(self.increments, self.spacings, strict=True):
            own = reach + 2 * (spacing + spacing_before) / increment
            error += ACCURACY * increment * own
            total += 2 * error / spacing + own * (error + before) / increment
            before, spacing_before = error, spacing
        return 1.001 * total

    def deviation(self, log_tail: float) -> float:
        """The theorem's e."""
        b = self.log_ratio(log_tail)
        if b > 1:
            return math.inf
        drift = self.coordinates * b * b * math.exp(b) / 2
        return drift + math.exp(log_tail) + b * math.sqrt(-2 * self.coordinates * log_tail)

    def total_variation(self) -> float:
        """Total variation distance of the real and the ideal law."""
        b, tail = self.log_ratio(_LOG_NEGLIGIBLE), math.exp(_LOG_NEGLIGIBLE)
        if b > 1:
            return 1.0
        return min(1.0, math.sqrt((self.coordinates * b * b * math.exp(b) / 2 + tail) / 2) + tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """How much privacy floating point costs: ``epsilon`` is added to the ideal mechanism's, taken at ``delta``."""

    epsilon: float
    delta: float


def charge_for(released: Released, delta: float, most: float) -> Charge:
    """What the real mechanism costs above the ideal one, where its own epsilon is at most ``most``."""
    log_tail = math.log(delta) + math.log(_SHARE / 2) - most - math.log1p(math.exp(-most))
    deviation = released.deviation(log_tail)
    return Charge(epsilon=2 * deviation, delta=delta * (1 - _SHARE) * math.exp(-deviation))


def epsilon_with_charge(ideal: Callable[[float], float], released: Released, delta: float) -> tuple[float, Charge]:
    """The real mechanism's epsilon at ``delta`` and the charge in it; ``ideal`` gives the ideal mechanism's epsilon.

    Infinite where no finite epsilon follows.
    """
    most = _FIRST_GUESS
    while True:
        charge = charge_for(released, delta, most)
        if not charge.delta > 0:
            return math.inf, charge
        epsilon = ideal(charge.delta) + charge.epsilon
        if epsilon <= most or not math.isfinite(epsilon):
            return epsilon, charge
        most = _guess_above(epsilon)


def ideal_target(released: Released, epsilon: float, delta: float) -> tuple[float, float]:
    """The (epsilon, delta) that the ideal mechanism must have for the real one to be (``epsilon``, ``delta``)-DP.

    The epsilon is not positive where no noise reaches the target.
    """
    charge = charge_for(released, delta, _guess_above(epsilon))
    return (epsilon - charge.epsilon) * (1 - _RELATIVE_ROUNDING), charge.delta


def exact_target(released: Released, epsilon: float, delta: float) -> tuple[float, float]:
    """As ``ideal_target``, with an epsilon above 0. Raises CommandError, for ``--epsilon``, where there is none."""
    left, at = ideal_target(released, epsilon, delta)
    if left > 0:
        return left, at
    cost, given = f"the rounding of {released.coordinates} numbers to floats", f"--epsilon {epsilon:g}"
    if epsilon > 1 and ideal_target(released, 1.0, delta)[0] > 0:
        raise CommandError(f"{given} is so large that the cost of {cost} cannot be bounded; lower it, to 100 or less")
    if epsilon <= 1 and ideal_target(released, 2.0, delta)[0] > 0:
        raise CommandError(f"{given} is below what {cost} costs by itself; raise it")
    raise CommandError(f"{given} is below what {cost} costs at delta {delta:g}, as is any epsilon; raise --delta")


def _guess_above(epsilon: float) -> float:
    return _FIRST_GUESS * 2.0 ** max(0, math.ceil(math.log2(max(epsilon, 1e-300) / _FIRST_GUESS)))


def guarantee_of_floats(guarantee: Guarantee, released: Released, epsilon: float, charge: Charge) -> Guarantee:
    """The ``guarantee`` of an ideal mechanism, made one for the floats written: with what ``epsilon_with_charge`` gave.

    Bounds on an attacker grow by the total variation.
    """
    if not released.coordinates:
        return guarantee
    distance = released.total_variation()
    return replace(
        guarantee,
        epsilon=epsilon if math.isfinite(epsilon) else None,
        risks=tuple(_risk(risk, distance) for risk in guarantee.risks),
        assumptions=(*guarantee.assumptions, ASSUMPTION),
        arithmetic=arithmetic_of(released, charge),
    )


def guarantee_of_floats_in_nats(guarantee: Guarantee, released: Released) -> Guarantee:
    """A guarantee in nats: these are the ideal mechanism's, but the bounds on an attacker hold for the real one."""
    distance = released.total_variation()
    note = (
        f"{guarantee.note}; the nats are for real arithmetic, and the floats that are written differ from it by a "
        f"total variation of {distance:.2g} at most, which the bounds on an attacker include"
    )
    risks = tuple(replace(risk, bound=min(1.0, risk.bound + 2 * distance)) for risk in guarantee.risks)
    return replace(guarantee, note=note, risks=risks, assumptions=(*guarantee.assumptions, ASSUMPTION))


def arithmetic_of(released: Released, charge: Charge) -> Arithmetic:
    """The charge as a report states it."""
    cost = min(charge.epsilon, sys.float_info.max)
    return Arithmetic(coordinates=released.coordinates, accuracy=ACCURACY, steps=STEPS, epsilon=cost)


def _risk(risk: Risk, distance: float) -> Risk:
    """A bound on an attacker when both laws differ by ``distance`` from ideal ones.

    At false positive rate f the ideal laws' rate is at most f + apart; the ideal power is concave and so grows by no
    more than in proportion. Of a posterior ``at`` is the prior, which is no probability of an event under either law.
    """
    if risk.measure is RiskMeasure.ADVANTAGE:
        bound = risk.bound + 2 * distance
    elif risk.at:
        bound = risk.bound * (1 + distance / risk.at) + distance
    else:
        bound = risk.bound + 2 * distance
    return replace(risk, bound=min(1.0, bound))
