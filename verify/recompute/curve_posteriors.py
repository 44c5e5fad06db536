"""Checks a plan's posteriors from the trade-off curve against upper and lower bounds on the best test.

No guess of a secret succeeds with a higher probability than the true positive rate of the best test of whether the
secret's records were used, at a false positive rate equal to the prior. ``compose`` bounds that rate from above, and
from below by the probabilities of an event. A plan may state a larger posterior, never a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.events import Ledger, SecretMixture
from privctl.domain.verdict import Outcome, Verdict
from verify.losses.bound_pair import BoundPair
from verify.recompute.ledger import NoBoundError
from verify.recompute.risk import power

Arrays = dict[str, NDArray[Any]]

#: The most distinct distributions that are composed again, starting with secrets closest to their posteriors.
MOST = 200
#: Relative errors that the grid may cause in epsilon, tried in turn until the claim is decided.
_PRECISIONS = (1e-4, 6e-6)
#: Relative difference that two sound bounds on different grids may have.
_GRIDS, _ROUNDING = 1e-4, 1e-9


def largest_success(chances: NDArray[np.float64], noise: float, steps: int, prior: float, stated: float) -> BoundPair:
    """Bounds on the best test's true positive rate at false positive rate ``prior``, sharp enough to decide ``stated``.

    The test is between the presence of the secret's records, drawn with ``chances`` above 0, and their absence. Raises
    NoBoundError if the steps have no bound. Example: ten records of probability 0.005, noise multiplier 1.378 and 500
    steps give 0.0849 at a prior of 0.01.
    """
    whole = Ledger(events=(SecretMixture(probabilities=tuple(chances.tolist()), noise_multiplier=noise, steps=steps),))
    enclosure = BoundPair(0.0, 1.0)
    for precision in _PRECISIONS:
        finer = power(whole, prior, present_only=True, precisions=(precision,))
        upper = min(enclosure.upper, finer.upper)
        enclosure = BoundPair(min(max(enclosure.lower, finer.lower), upper), upper)
        if enclosure.lower > stated * (1 + _ROUNDING) or enclosure.upper <= stated * (1 + _GRIDS):
            break
    return enclosure


def check_posteriors(facts: dict[str, Any], arrays: Arrays, name: str) -> Iterator[Verdict]:
    """Whether every posterior that the plan derives from the curve is at least the best test's success probability."""
    with_curve = np.flatnonzero(np.isfinite(arrays["curve_bounds"]))
    if not len(with_curve):
        return
    laws = _laws(arrays, with_curve)
    unchecked = max(0, len(laws) - MOST)
    doubtful = ""
    for chances, members in laws[:MOST]:
        for j in members:
            stated, prior = float(arrays["curve_bounds"][j]), float(arrays["priors"][j])
            try:
                success = (
                    largest_success(chances, float(facts["noise_multiplier"]), int(facts["steps"]), prior, stated)
                    if len(chances)
                    else BoundPair(prior, prior)
                )
            except NoBoundError as error:
                doubtful = f"secret {j}: no independent bound: {error}"
                continue
            if stated < success.lower * (1 - _ROUNDING):
                reason = (
                    f"secret {j}: a test of whether its records were used has a true positive rate of "
                    f"{success.lower:.6g} at a false positive rate of {prior:g}, but the plan says that no guess "
                    f"succeeds with more than {stated:.6g}"
                )
                yield Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)
                return
            if success.upper > stated * (1 + _GRIDS):
                doubtful = f"secret {j}: its posterior lies {success}, and {stated:.6g} is not proved"
    if doubtful:
        yield Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason=doubtful)
        return
    checked = sum(len(members) for _, members in laws[:MOST])
    yield Verdict(
        subject=name,
        outcome=Outcome.CONSISTENT if unchecked else Outcome.PROVED,
        reason=f"no guess of {checked} of {len(with_curve)} secrets is better than the plan says, by the best test of "
        "whether their records were used, computed again",
    )


def _laws(arrays: Arrays, secrets: NDArray[np.int64]) -> list[tuple[NDArray[np.float64], list[int]]]:
    """The distinct sets of probabilities, each with its ``secrets``, those closest to their limits first."""
    starts, records, chances = arrays["starts"], arrays["records"], arrays["probabilities"]
    shares = np.fmin(arrays["curve_bounds"], arrays["posterior_bounds"]) / arrays["posteriors"]
    laws: dict[bytes, tuple[NDArray[np.float64], list[int]]] = {}
    for j in secrets[np.argsort(-shares[secrets], kind="stable")].tolist():
        drawn = chances[records[starts[j] : starts[j + 1]]]
        law = np.sort(drawn[drawn > 0])
        laws.setdefault(law.tobytes(), (law, []))[1].append(j)
    return list(laws.values())
