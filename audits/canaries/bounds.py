"""One-run lower bounds from canaries: guesses from scores, compared with the coins, if the conditions hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries.conditions import share_of_failures, violated_conditions
from audits.canaries.design import bound_alpha, levels, power
from audits.canaries.manifest import Guesses, Manifest
from audits.claims import CurveClaim
from audits.statistics import f_dp, one_run
from audits.statistics.several_guesses import GuessCount, epsilon_bound, mu_bound
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption
from privctl.reports.codec import encode_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024.
EITHER = "one run, Steinke 2023 or Mahloujifar 2024"
MAHLOUJIFAR = "one run, Mahloujifar 2024"


def bounds(
    manifest: Manifest,
    scores: NDArray[Any],
    scored: NDArray[np.bool_],
    conditions: Sequence[Assumption],
    delta: float,
    alpha: float,
) -> list[Evidence]:
    """Lower bounds on epsilon and mu by the pre-registered sets of guesses, all jointly wrong with ``alpha`` / 2.

    ``scores`` [canaries] increase with memorization and do not depend on the coins. A canary without a score is not
    guessed, but is counted. If one of ``conditions`` is violated, estimates are None, with the reason.
    """
    reason = "; ".join(condition.statement for condition in violated_conditions(conditions))
    coins = np.array([canary.included for canary in manifest.canaries], dtype=np.bool_)
    copies = np.array([canary.copies for canary in manifest.canaries])
    evidence: list[Evidence] = []
    for sets in levels(manifest.guesses):
        inside = copies <= sets[0].copies
        share = bound_alpha(alpha, manifest.guesses, sets) * share_of_failures(int(coins.sum()), len(coins))
        evidence += bounds_of(sets, scores[inside], scored[inside], coins[inside], delta, share, reason=reason)
    return evidence


def bounds_of(
    sets: Sequence[Guesses],
    scores: NDArray[Any],
    scored: NDArray[np.bool_],
    included: NDArray[np.bool_],
    delta: float,
    alpha: float,
    *,
    reason: str = "",
    name: str = "",
    of_group: int | None = None,
) -> tuple[Evidence, Evidence]:
    """The bounds from ``sets`` on the same canaries, jointly wrong with probability ``alpha``; arrays are [canaries].

    ``reason`` says why they are not bounds, ``name`` which observation they use, if there are several. If coins are
    tossed for groups, ``of_group`` is the largest number of records in a group, and the bounds are on the epsilon of a
    group.
    """
    results, made_counts = [], []
    for group in sets:
        guesses = guesses_of(scores, scored, group)
        correct = int((guesses == np.where(included, 1, -1)).sum())
        made_counts.append(int((guesses != 0).sum()))
        results.append(GuessCount(canaries=group.canaries, guesses=group.guesses, correct=correct))
    copies = sets[0].copies
    suffix = (f", {name}" if name else "") + ("" if copies == 1 else f" of groups of {copies}")
    whose = "" if of_group is None else " of a group"
    shared: dict[str, float] = {"delta": delta, "copies": copies, "sets": len(sets)}
    if of_group is not None:
        shared["group_records"] = of_group
    for i, (result, number) in enumerate(zip(results, made_counts, strict=True), start=1):
        shared |= {f"guesses {i}": result.guesses, f"made {i}": number, f"correct {i}": result.correct}
    best = power(sets, delta, alpha)
    epsilon, place = epsilon_bound(results, delta, alpha)
    details = {**shared, "ceiling": best.ceiling}
    if best.detectable is not None:
        details["detectable"] = best.detectable
    if copies > 1 and not reason:
        # adding or removing k records costs at most k epsilon at delta 0; otherwise it costs more than k deltas
        details["epsilon_of_one_record_at_delta_0"] = epsilon_bound(results, 0.0, alpha)[0] / copies
    mu, mu_place = mu_bound(results, alpha)
    perfect = [GuessCount(canaries=r.canaries, guesses=r.guesses, correct=r.guesses) for r in results]
    curve = {**shared, "ceiling": mu_bound(perfect, alpha)[0]}
    if delta > 0 and not reason:
        curve["epsilon_if_gaussian"] = f_dp.epsilon_of_mu(mu, delta)
    return (
        _bound(EITHER, f"epsilon{whose}{suffix}", epsilon, alpha, _samples(results[place]), details, reason),
        _bound(MAHLOUJIFAR, f"mu{whose}{suffix}", mu, alpha, _samples(results[mu_place]), curve, reason),
    )


def counts_of(bound: Evidence) -> Iterator[GuessCount]:
    """The counts behind ``bound``, one for each set of guesses."""
    for i in range(1, int(bound.details["sets"]) + 1):
        yield GuessCount(
            canaries=bound.samples["canaries"],
            guesses=int(bound.details[f"guesses {i}"]),
            correct=int(bound.details[f"correct {i}"]),
        )


def curve_parameters(curve: CurveClaim | None) -> dict[str, Any]:
    """The tested mechanism and the points of its trade-off curve, as parameters of a report."""
    if curve is None:
        return {}
    return {
        "canary_mechanism": encode_value(curve.mechanism),
        "canary_curve": [list(point) for point in curve.points],
    }


def not_made(bound: Evidence) -> int:
    """The number of guesses, over all sets, not made because scores were tied at a threshold or missing."""
    sets = range(1, int(bound.details["sets"]) + 1)
    return int(sum(bound.details[f"guesses {i}"] - bound.details[f"made {i}"] for i in sets))


def _samples(result: GuessCount) -> dict[str, int]:
    return {"canaries": result.canaries, "guesses": result.guesses}


def guesses_of(scores: NDArray[Any], scored: NDArray[np.bool_], group: Guesses) -> NDArray[np.int8]:
    """+1 for each canary guessed as included by the set ``group``, -1 as left out, 0 for no guess, [canaries]."""
    if group.divided:
        divided = np.zeros(len(scores), np.int8)
        divided[scored] = one_run.divide(scores[scored])
        return divided
    filled = scores.astype(np.float64)
    filled[~scored] = np.median(filled[scored]) if scored.any() else 0.0
    guesses = one_run.guess(filled, group.included, group.excluded)
    guesses[~scored] = 0
    return guesses


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
