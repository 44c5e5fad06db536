"""A plan's posteriors by the trade-off curve, against bounds on the best test from both sides.

The best test of whether a secret's records were used has a true positive rate, at a false positive rate of the prior,
that no guess of the secret exceeds. ``compose`` bounds it from above, and from below by an event with its
probabilities. A plan may state more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.events import Ledger, SecretMixture
from privctl.domain.verdict import Outcome, Verdict
from verify.recompute.enclosure import BoundPair
from verify.recompute.ledger import NoBoundError
from verify.recompute.risk import power

Arrays = dict[str, NDArray[Any]]

#: Different laws that are composed again, those of secrets nearest to their posteriors first.
MOST = 200
#: What the grid may add to epsilon, relatively: as finely as a claim asks for.
_PRECISIONS = (1e-4, 6e-6)
#: By how much two sound bounds may differ, relatively: each has its own grid.
_GRIDS, _ROUNDING = 1e-4, 1e-9


def largest_success(chances: NDArray[np.float64], noise: float, steps: int, prior: float, told: float) -> BoundPair:
    """The best test's true positive rate at false positive rate ``prior``, as sharply as it takes to judge ``told``.

    The secret's records, drawn with ``chances`` above 0, against their absence. Raises NoBoundError. Example: ten
    records of 0.005, noise multiplier 1.378 and 500 steps give 0.0849 at a prior of 0.01.
    """
    whole = Ledger(events=(SecretMixture(probabilities=tuple(chances.tolist()), noise_multiplier=noise, steps=steps),))
    found = BoundPair(0.0, 1.0)
    for precision in _PRECISIONS:
        here = power(whole, prior, present_only=True, precisions=(precision,))
        upper = min(found.upper, here.upper)
        found = BoundPair(min(max(found.lower, here.lower), upper), upper)
        if found.lower > told * (1 + _ROUNDING) or found.upper <= told * (1 + _GRIDS):
            break
    return found


def check_posteriors(facts: dict[str, Any], arrays: Arrays, name: str) -> Iterator[Verdict]:
    """Whether no posterior that the plan states by the curve is below what the best test has."""
    held = np.flatnonzero(np.isfinite(arrays["curve_bounds"]))
    if not len(held):
        return
    laws = _laws(arrays, held)
    left = max(0, len(laws) - MOST)
    doubtful = ""
    for chances, members in laws[:MOST]:
        for j in members:
            told, prior = float(arrays["curve_bounds"][j]), float(arrays["priors"][j])
            try:
                found = (
                    largest_success(chances, float(facts["noise_multiplier"]), int(facts["steps"]), prior, told)
                    if len(chances)
                    else BoundPair(prior, prior)
                )
            except NoBoundError as error:
                doubtful = f"secret {j}: no independent bound: {error}"
                continue
            if told < found.lower * (1 - _ROUNDING):
                reason = (
                    f"secret {j}: a test of whether its records were used is right with probability {found.lower:.6g} "
                    f"where it errs with {prior:g}, and the plan says that no guess has more than {told:.6g}"
                )
                yield Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)
                return
            if found.upper > told * (1 + _GRIDS):
                doubtful = f"secret {j}: its posterior lies {found}, and {told:.6g} is not proved"
    if doubtful:
        yield Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason=doubtful)
        return
    checked = sum(len(members) for _, members in laws[:MOST])
    yield Verdict(
        subject=name,
        outcome=Outcome.CONSISTENT if left else Outcome.PROVED,
        reason=f"no guess of {checked} of {len(held)} secrets is better than the plan says, by the best test of "
        "whether their records were used, computed again",
    )


def _laws(arrays: Arrays, held: NDArray[np.int64]) -> list[tuple[NDArray[np.float64], list[int]]]:
    """The different laws among secrets ``held``, each with its secrets; those nearest to their posteriors first."""
    starts, records, chances = arrays["starts"], arrays["records"], arrays["probabilities"]
    shares = np.fmin(arrays["curve_bounds"], arrays["posterior_bounds"]) / arrays["posteriors"]
    found: dict[bytes, tuple[NDArray[np.float64], list[int]]] = {}
    for j in held[np.argsort(-shares[held], kind="stable")].tolist():
        drawn = chances[records[starts[j] : starts[j + 1]]]
        law = np.sort(drawn[drawn > 0])
        found.setdefault(law.tobytes(), (law, []))[1].append(j)
    return list(found.values())
