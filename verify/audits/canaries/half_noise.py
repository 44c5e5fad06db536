"""Whether guesses that do not refute a mechanism were likely to refute one with half of its noise.

Only then an audit calls the mechanism consistent. The guesses are taken to be those of the best attack on a Gaussian
mechanism that has the same delta at epsilon 0 as the stated one with half of its noise: 2 Phi(mu / 2) - 1. Standard
library only, except for verify's accountant.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import NormalDist

from privctl.domain.events import Ledger, TruncatedGaussian
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.canaries.bounds import MECHANISM, refutes, tested_bounds, trade_off_below
from verify.audits.canaries.noise import GAUSSIAN, chance_of
from verify.audits.terms import counts_of
from verify.laws.counts import at_most

_NORMAL = NormalDist()
#: The power that such a verdict needs, less what two computations of it may differ by.
_POWER = 0.8 - 0.02
_GRID, _LARGEST, _HALVINGS = 1e-3, 1 - 1e-9, 60


def unlikely_to_refute(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields a sentence if a mechanism is called consistent by guesses that half of its noise would hardly change."""
    mechanism, points = parameters.canary_mechanism, parameters.canary_curve
    verdict = next((verdict for verdict in report.verdicts if MECHANISM in verdict.subject), None)
    if mechanism is None or not points or verdict is None or verdict.outcome is not Outcome.CONSISTENT:
        return
    bounds = list(tested_bounds(report, parameters))
    event = mechanism.events[0]
    separate = parameters.canary_commitment is None and mechanism == Ledger(events=(event,))
    separate = separate and isinstance(event, GAUSSIAN) and not isinstance(event, TruncatedGaussian)
    separate = separate and all(item.details.get("delta", 0.0) > 0 for item in bounds)
    least, mu = trade_off_below(points), _half_noise(mechanism)
    power = 0.0
    for item in bounds:
        level = (1 - item.confidence) / item.details["sets"]
        for canaries, guesses, _ in counts_of(item):

            def rejects(right: int, canaries: int = canaries, guesses: int = guesses, level: float = level) -> bool:
                counts = canaries, guesses, right
                return chance_of(counts, points) < level if separate else refutes(counts, least, level)

            power = max(power, _power(canaries, guesses, rejects, mu))
    if power < _POWER:
        yield (
            f"its verdict on {verdict.subject!r} is {verdict.outcome}, but half of the noise would have been noticed "
            f"with a probability of {power:.2g}"
        )


def _half_noise(mechanism: Ledger) -> float:
    """The mu of a Gaussian mechanism with the advantage of ``mechanism`` at half of its noise."""
    from verify.recompute.ledger import bounds  # imported here because it needs more than the standard library

    events = tuple(
        replace(event, noise_multiplier=event.noise_multiplier / 2) if isinstance(event, GAUSSIAN) else event
        for event in mechanism.events
    )
    advantage = bounds(Ledger(events=events), None, _GRID).delta(0.0).upper
    return 2 * _NORMAL.inv_cdf((1 + min(advantage, _LARGEST)) / 2)


def _power(canaries: int, guesses: int, rejects: Callable[[int], bool], mu: float) -> float:
    """The probability that so many guesses are right that they are rejected; 0 if all right ones are not."""
    if not rejects(guesses):
        return 0.0
    return gaussian_chance(1 + bisect_left(range(1, guesses), True, key=rejects), canaries, guesses, mu)


def gaussian_chance(fewest: int, canaries: int, guesses: int, mu: float) -> float:
    """The probability that at least ``fewest`` guesses are right, for Gaussian noise and the best attack."""
    return 1 - at_most(fewest - 1, guesses, _right(mu, guesses / 2 / canaries))


def _right(mu: float, share: float) -> float:
    """How often a guess is right if the ``share`` of highest scores and that of lowest are guessed."""
    if share >= 0.5:
        return _NORMAL.cdf(mu / 2)
    low, high = -40.0, 40.0 + mu
    for _ in range(_HALVINGS):
        cut = (low + high) / 2
        above = _NORMAL.cdf(mu - cut) + _NORMAL.cdf(-cut)
        low, high = (cut, high) if above >= 2 * share else (low, cut)
    return min(1.0, math.exp(math.log(_NORMAL.cdf(mu - low)) - math.log(2 * share)))
