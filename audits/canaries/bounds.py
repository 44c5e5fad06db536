"""The one-run lower bounds from canaries: guesses from scores, counted against the coins, where the conditions hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries.conditions import violated_conditions
from audits.canaries.design import bound_alpha, power
from audits.canaries.manifest import Guesses, Manifest
from audits.statistics import f_dp, one_run
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024.
STEINKE = "one run, Steinke 2023"
MAHLOUJIFAR = "one run, Mahloujifar 2024"


def bounds(
    manifest: Manifest,
    scores: NDArray[Any],
    scored: NDArray[np.bool_],
    conditions: Sequence[Assumption],
    delta: float,
    alpha: float,
) -> list[Evidence]:
    """Lower bounds on epsilon and mu for each pre-registered set of guesses, all together wrong with ``alpha`` / 2.

    ``scores`` [canaries] increase with memorization and do not depend on the coins. A canary without a score is not
    guessed, but counts. If one of ``conditions`` is violated, estimates are None, with the reason.
    """
    reason = "; ".join(condition.statement for condition in violated_conditions(conditions))
    coins = np.where([canary.included for canary in manifest.canaries], 1, -1)
    copies = np.array([canary.copies for canary in manifest.canaries])
    share = bound_alpha(alpha, manifest.guesses)
    evidence: list[Evidence] = []
    for group in manifest.guesses:
        inside = copies <= group.copies
        guesses = _guess(scores[inside], scored[inside], group)
        correct = int((guesses == coins[inside]).sum())
        evidence += _evidence(group, correct, int((guesses != 0).sum()), delta, share, reason)
    return evidence


def _guess(scores: NDArray[Any], scored: NDArray[np.bool_], group: Guesses) -> NDArray[np.int8]:
    filled = scores.astype(np.float64)
    filled[~scored] = np.median(filled[scored]) if scored.any() else 0.0
    guesses = one_run.guess(filled, group.included, group.excluded)
    guesses[~scored] = 0
    return guesses


def _evidence(
    group: Guesses, correct: int, guesses_made: int, delta: float, alpha: float, reason: str
) -> tuple[Evidence, Evidence]:
    best = power(group, delta, alpha)
    suffix = "" if group.copies == 1 else f" of groups of {group.copies}"
    counts = (group.canaries, best.guesses, correct)
    samples = {"canaries": group.canaries, "guesses": best.guesses}
    shared: dict[str, float] = {"delta": delta, "copies": group.copies, "made": guesses_made, "correct": correct}
    epsilon = one_run.epsilon_bound(*counts, delta, alpha)
    details = {**shared, "ceiling": best.ceiling}
    if best.detectable is not None:
        details["detectable"] = best.detectable
    if group.copies > 1 and not reason:
        # k records more or less cost at most k epsilon where delta is 0; with a delta they cost more than k deltas
        details["epsilon_of_one_record_at_delta_0"] = one_run.epsilon_bound(*counts, 0.0, alpha) / group.copies
    mu = f_dp.mu_bound(*counts, alpha)
    curve = {**shared, "ceiling": f_dp.mu_bound(group.canaries, best.guesses, best.guesses, alpha)}
    if delta > 0 and not reason:
        curve["epsilon_if_gaussian"] = f_dp.epsilon_of_mu(mu, delta)
    return (
        _bound(STEINKE, f"epsilon{suffix}", epsilon, alpha, samples, details, reason),
        _bound(MAHLOUJIFAR, f"mu{suffix}", mu, alpha, samples, curve, reason),
    )


def _bound(
    method: str,
    quantity: str,
    value: float,
    alpha: float,
    samples: dict[str, int],
    details: dict[str, float],
    reason: str,
) -> Evidence:
    return Evidence(
        method=method,
        quantity=quantity,
        estimate=None if reason else value,
        lower=None if reason else value,
        confidence=1 - alpha,
        bound=Bound.NONE if reason else Bound.LOWER,
        samples=samples,
        details=details,
        reason=f"not a bound: {reason}" if reason else "",
    )
