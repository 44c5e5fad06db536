"""The privacy cost of drawing Gaussian noise in floating point and releasing it on a grid.

Theorem. Each released number is the integer nearest to (x + Z') / g, with g > 0 public, x any number (it may depend on
earlier releases and other randomness), and Z' within A R of an ideal Z ~ N(0, sigma^2), in units of sigma; Z comes in
independent pairs of radius R. Let P be the distribution of all integers with Z in place of Z', P' the real one, D the
number of released numbers and S >= sigma / g. For any tail > 0 let T = sqrt(2 ln(D / tail)) and

    a = 1.001 A (T + 1) (2 S + T + 1),    b = 2 a,    e = D b^2 exp(b) / 2 + tail + b sqrt(2 D ln(1 / tail)).

Then P and P' are (e, 2 tail)-indistinguishable, and within ``total_variation`` of each other; and if P is
(epsilon, d)-DP, P' is (epsilon + 2 e, exp(e) d + 2 tail (1 + exp(epsilon + e)))-DP.

Proof. Rounding to integers is post-processing, so P is as private as the Gaussian mechanism. Let B be the cell of one
pair's two integers, a rectangle with sides g. If Z' is in B, then Z is in B enlarged by A R on each side; and if Z is
in B shrunk by as much, then Z' is in B. If B meets the disc of radius T, A R <= A (T + 1) =: h there. The affine map
between B and the changed rectangle stretches each side by at most 1 + 2 h S, or 1 / (1 - 2 h S), and moves each
coordinate by h, which changes the log density by at most (T + 1) h + h^2: together at most a per coordinate. So the log
ratio l of the two distributions of a pair, given all earlier ones, is at most b in magnitude unless B misses the disc,
which has probability q <= exp(-T^2 / 2) under both. Under P', l (set to 0 outside) has mean at most
q + b^2 exp(b) / 2, since exp(-l) <= 1 - l + l^2 exp(b) / 2 and P(B meets the disc) >= 1 - q. There are at most D pairs:
by Azuma and Hoeffding, the sum of l exceeds e with probability at most ``tail``, and some pair leaves the disc with
probability at most D exp(-T^2 / 2) = ``tail``. The same holds with P and P' exchanged. Total variation: Pinsker. The
last claim goes from P'_x to P_x to P_y to P'_y.

Nested candidates round x + Z_1 + ... + Z_j, each j with its own g_j. Each of k candidates alone has
h = A (T + 1) sqrt(k), because the standard deviations of the increments, in units of the candidate's own, have squares
that sum to 1, and so a sum of at most sqrt(k). For all candidates together, a cell is a box in all sums at once, and
its density is the product of the increments' densities: its sides stretch by 2 h_j / g_j, and increment j, whose length
is at most T + 2 (g_j + g_(j-1)) / s_j times its standard deviation s_j, moves by h_j + h_(j-1).

Premises: A (``ACCURACY``) is checked by ``privctl.randomness.deviates``; only integers, or functions of them, are
released.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Arithmetic, Assumption, AssumptionState, Guarantee, Risk, RiskMeasure

#: Upper bound on the distance of a deviate from an ideal one, per unit of its pair's radius.
ACCURACY = 2.0**-48
#: Strict upper bound on the number of grid steps per standard deviation.
STEPS = 64.0

#: The fraction of delta reserved for the tails.
_SHARE = 2.0**-20
#: The first guess of an upper bound on epsilon, which multiplies the tails' probability by its exponential.
_FIRST_GUESS = 16.0
#: Relative margin for rounding in a target.
_RELATIVE_ROUNDING = 1e-13
#: The logarithm of a negligible probability.
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
    """Released Gaussian sums: ``coordinates`` numbers in all, of one of ``candidates`` nested noise levels.

    If all levels are released together, ``increments`` are the standard deviations of the noise added from one to the
    next, and ``spacings`` those of their grids; otherwise both are empty.
    """

    coordinates: int
    candidates: int = 1
    increments: tuple[float, ...] = ()
    spacings: tuple[float, ...] = ()

    def log_ratio(self, log_tail: float) -> float:
        """The theorem's b: a bound on each pair's log ratio that all pairs meet except with probability ``tail``."""
        reach = math.sqrt(2 * (math.log(max(self.coordinates, 1) * self.candidates) - log_tail)) + 1
        if self.increments:
            return 2 * self._joint(reach)
        reach *= math.sqrt(self.candidates)
        return 2.002 * ACCURACY * reach * (2 * STEPS + reach)

    def _joint(self, reach: float) -> float:
        """The theorem's a for all sums together: the box's sides stretch, and each increment moves with two sums."""
        total = error = before = spacing_before = 0.0
        for increment, spacing in zip(self.increments, self.spacings, strict=True):
            excess = reach + 2 * (spacing + spacing_before) / increment
            error += ACCURACY * increment * excess
            total += 2 * error / spacing + excess * (error + before) / increment
            before, spacing_before = error, spacing
        return 1.001 * total

    def deviation(self, log_tail: float) -> float:
        """The theorem's e; inf if b exceeds 1."""
        b = self.log_ratio(log_tail)
        if b > 1:
            return math.inf
        drift = self.coordinates * b * b * math.exp(b) / 2
        return drift + math.exp(log_tail) + b * math.sqrt(-2 * self.coordinates * log_tail)

    def total_variation(self) -> float:
        """A bound on the total variation distance between the real and the ideal distribution."""
        b, tail = self.log_ratio(_LOG_NEGLIGIBLE), math.exp(_LOG_NEGLIGIBLE)
        if b > 1:
            return 1.0
        return min(1.0, math.sqrt((self.coordinates * b * b * math.exp(b) / 2 + tail) / 2) + tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The privacy cost of floating point: ``epsilon`` is added to the ideal mechanism's epsilon at ``delta``."""

    epsilon: float
    delta: float


def charge_for(released: Released, delta: float, most: float) -> Charge:
    """What the real mechanism costs in addition to the ideal one, if its own epsilon is at most ``most``."""
    log_tail = math.log(delta) + math.log(_SHARE / 2) - most - math.log1p(math.exp(-most))
    deviation = released.deviation(log_tail)
    return Charge(epsilon=2 * deviation, delta=delta * (1 - _SHARE) * math.exp(-deviation))


def epsilon_with_charge(ideal: Callable[[float], float], released: Released, delta: float) -> tuple[float, Charge]:
    """The real mechanism's epsilon at ``delta``, and the charge it includes.

    ``ideal`` maps a delta to the ideal mechanism's epsilon. Epsilon is infinite if no finite one follows.
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

    The epsilon is not positive if no noise reaches the target.
    """
    charge = charge_for(released, delta, _guess_above(epsilon))
    return (epsilon - charge.epsilon) * (1 - _RELATIVE_ROUNDING), charge.delta


def exact_target(released: Released, epsilon: float, delta: float) -> tuple[float, float]:
    """As ``ideal_target``, but raises CommandError, about ``--epsilon``, if the epsilon is not positive."""
    left, target_delta = ideal_target(released, epsilon, delta)
    if left > 0:
        return left, target_delta
    cost, given = f"the rounding of {released.coordinates} numbers to floats", f"--epsilon {epsilon:g}"
    if epsilon > 1 and ideal_target(released, 1.0, delta)[0] > 0:
        raise CommandError(f"{given} is so large that the cost of {cost} cannot be bounded; lower it, to 100 or less")
    if epsilon <= 1 and ideal_target(released, 2.0, delta)[0] > 0:
        raise CommandError(f"{given} is below what {cost} costs by itself; raise it")
    raise CommandError(f"{given} is below what {cost} costs at delta {delta:g}, as is any epsilon; raise --delta")


def _guess_above(epsilon: float) -> float:
    return _FIRST_GUESS * 2.0 ** max(0, math.ceil(math.log2(max(epsilon, 1e-300) / _FIRST_GUESS)))


def guarantee_of_floats(guarantee: Guarantee, released: Released, epsilon: float, charge: Charge) -> Guarantee:
    """Turn the ``guarantee`` of an ideal mechanism into one for the floats written.

    ``epsilon`` and ``charge`` are the results of ``epsilon_with_charge``. Risks grow by the total variation distance.
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
    """A guarantee in nats: the nats stay those of the ideal mechanism, but the risks hold for the real one."""
    distance = released.total_variation()
    note = (
        f"{guarantee.note}; the nats are for real arithmetic, and the floats that are written differ from it by a "
        f"total variation of {distance:.2g} at most, which the bounds on an attacker include"
    )
    risks = tuple(replace(risk, bound=min(1.0, risk.bound + 2 * distance)) for risk in guarantee.risks)
    return replace(guarantee, note=note, risks=risks, assumptions=(*guarantee.assumptions, ASSUMPTION))


def arithmetic_of(released: Released, charge: Charge) -> Arithmetic:
    """The charge in the form that reports state."""
    cost = min(charge.epsilon, sys.float_info.max)
    return Arithmetic(coordinates=released.coordinates, accuracy=ACCURACY, steps=STEPS, epsilon=cost)


def _risk(risk: Risk, distance: float) -> Risk:
    """The bound on an attacker if both distributions are within total variation ``distance`` of the ideal ones.

    At false positive rate f, the rate under the ideal distribution is at most f + ``distance``; the ideal power is
    concave, so it grows at most in proportion. For a posterior, ``at`` is the prior, whose probability does not change,
    so that bound is on the safe side.
    """
    if risk.measure is RiskMeasure.ADVANTAGE:
        bound = risk.bound + 2 * distance
    elif risk.at:
        bound = risk.bound * (1 + distance / risk.at) + distance
    else:
        bound = risk.bound + 2 * distance
    return replace(risk, bound=min(1.0, bound))
