"""What the attacks on secrets come to, as evidence: over all, by kind, and against what a plan allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.completions import Completion
from audits.extraction.discoverable import log_success
from audits.extraction.summary import QueryBudget
from audits.secrets.attack import Ranks, SecretAnswers, SecretAttackResult
from audits.secrets.bound import Markov, markov
from audits.secrets.trace import PAIRED, Test, scores
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECONSTRUCTION = "secret reconstruction"
COMPLETION = "secret completion"
TRACE = "secret trace"
PROTECTION = "secret protection"
#: Quantities of this beginning are one kind's each, with what a table by kind shows in their details.
KIND = "told first, kind "
INDEPENDENT = f"{CLOPPER_PEARSON}, as for independent secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    """A rate still without its interval; ``sure`` are certain, ``most`` possible, of ``total``."""

    method: str
    quantity: str
    sure: int
    most: int
    total: int
    details: dict[str, float] = field(default_factory=dict)


def bounds_of(found: SecretAttackResult) -> NDArray[np.float64]:
    """The most probability of telling each secret that its plan allows, [secrets]; NaN where it allows nothing."""
    allowed = []
    for each, count in zip(found.problems, found.after.ranks.count.tolist(), strict=True):
        allowance = each.target.allowance
        allowed.append(math.nan if allowance is None else allowance.success(count))
    return np.array(allowed, dtype=np.float64)


def rates(
    found: SecretAttackResult, left: Sequence[tuple[str, str]], queries: QueryBudget, alpha: float
) -> list[Evidence]:
    """Every rate with its interval, all of them wrong together with probability at most ``alpha``."""
    every = [*_overall(found, queries), *_by_kind(found, left)]
    each = alpha / max(1, len(every))
    return [_with_interval(rate, each) for rate in every]


def tests_as_evidence(tests: Sequence[Test], alpha: float) -> list[Evidence]:
    """The tests, which share ``alpha`` equally; ``detected`` is 1 where a p-value is at most its test's level."""
    level = alpha / max(1, len(tests))
    return [
        Evidence(
            method=TRACE,
            quantity=f"{'share told more' if test.name == PAIRED else 'mean bits beyond'}, {test.name}, by {test.by}",
            estimate=test.excess,
            confidence=1 - level,
            bound=Bound.NONE,
            interval=test.method,
            samples={"secrets": test.compared[0], "compared_with": test.compared[1]},
            details={"p_value": test.p_value, "level": level, "detected": float(test.p_value <= level)},
        )
        for test in tests
    ]


def protection(found: SecretAttackResult, level: float) -> tuple[Evidence, Markov] | None:
    """Secrets drawn at random against what the plan allows, tested at ``level``; None where there is none to test."""
    bounds = bounds_of(found)
    chosen = found.designed & ~np.isnan(bounds)
    if not chosen.any():
        return None
    test = markov(int(found.after.ranks.told[chosen].sum()), bounds[chosen].tolist(), level)
    return Evidence(
        method=PROTECTION,
        quantity="secrets told against the plan",
        estimate=test.told / test.secrets,
        confidence=1 - level,
        bound=Bound.NONE,
        interval="Markov's inequality, whatever the dependence",
        samples={"secrets": test.secrets},
        details={
            "told": test.told,
            "allowed_on_average": test.expected,
            "p_value": test.p_value,
            "level": level,
            "needed": test.needed,
            "detected": float(test.p_value <= level),
            "chance": test.expected / test.secrets,
            **({"detectable": test.needed / test.secrets} if test.needed <= test.secrets else {}),
        },
    ), test


def _overall(found: SecretAttackResult, queries: QueryBudget) -> Iterator[_Rate]:
    bounds = bounds_of(found)
    for side, chosen in (("trained", ~found.control), ("never drawn (control)", found.control)):
        if not chosen.any():
            continue
        models: list[tuple[str, SecretAnswers]] = [(side, found.after)]
        if found.before is not None:
            models.append((f"{side}, before training", found.before))
        for name, answers in models:
            details = _standing(answers.ranks, chosen)
            if answers is found.after and not np.isnan(bounds[chosen]).all():
                details["bound"] = float(np.nanmean(bounds[chosen]))
            yield _told(f"told first, {name}", answers.ranks, chosen, details)
        for by, ranks in list(scores(found))[1:]:
            yield _told(f"told first by {by}, {side}", ranks, chosen, _standing(ranks, chosen))
        for name, answers in models:
            yield _completed(f"written greedily, {name}", answers, chosen)
            yield _discoverable(name, answers.logp[chosen], queries)


def _by_kind(found: SecretAttackResult, left: Sequence[tuple[str, str]]) -> Iterator[_Rate]:
    """A row for every kind there is anything to say of, in the order of their names."""
    skipped = Counter(kind for kind, _ in left)
    bounds = bounds_of(found)
    for kind in sorted({*skipped, *found.kinds.tolist()}):
        of_kind = found.kinds == kind
        chosen, control = of_kind & ~found.control, of_kind & found.control
        details = {"skipped": float(skipped[kind]), **_standing(found.after.ranks, chosen)}
        if chosen.any():
            details["greedy"] = _disclosed(found.after, chosen)
            if not np.isnan(bounds[chosen]).all():
                details["bound"] = float(np.nanmean(bounds[chosen]))
            if found.before is not None:
                details["before_told"] = int(found.before.ranks.told[chosen].sum())
                details["before_greedy"] = _disclosed(found.before, chosen)
        if control.any():
            details |= {"control": int(control.sum()), "control_told": int(found.after.ranks.told[control].sum())}
        yield _told(f"{KIND}{kind}", found.after.ranks, chosen, details)


def _standing(ranks: Ranks, chosen: NDArray[np.bool_]) -> dict[str, float]:
    """Where secrets stand; ``chance`` is the rate of telling values drawn like their candidates without the model."""
    if not chosen.any():
        return {}
    some = ranks.of(chosen)
    return {
        "chance": float((1 / some.count).mean()),
        "told": int(some.told.sum()),
        "median_rank": float(np.median(some.rank)),
        "median_candidates": float(np.median(some.count)),
        "mean_bits": float(some.bits.mean()),
    }


def _told(quantity: str, ranks: Ranks, chosen: NDArray[np.bool_], details: dict[str, float]) -> _Rate:
    told = int(ranks.told[chosen].sum())
    return _Rate(
        method=RECONSTRUCTION, quantity=quantity, sure=told, most=told, total=int(chosen.sum()), details=details
    )


def _completed(quantity: str, answers: SecretAnswers, chosen: NDArray[np.bool_]) -> _Rate:
    states = answers.completion[chosen]
    sure = int((states == Completion.DISCLOSED).sum())
    undecided = int((states == Completion.UNDECIDED).sum())
    details: dict[str, float] = {"disclosed": sure, "undecided": undecided}
    return _Rate(
        method=COMPLETION, quantity=quantity, sure=sure, most=sure + undecided, total=len(states), details=details
    )


def _disclosed(answers: SecretAnswers, chosen: NDArray[np.bool_]) -> int:
    return int((answers.completion[chosen] == Completion.DISCLOSED).sum())


def _discoverable(name: str, logp: NDArray[np.float64], queries: QueryBudget) -> _Rate:
    """(n, p)-discoverable secrets (Hayes et al. 2024), sampled from the model's own distribution."""
    success = log_success(logp, queries.count)
    hits = int((success >= np.log(queries.probability)).sum())
    return _Rate(
        method=COMPLETION,
        quantity=f"found in {queries.count} queries with probability {queries.probability:g}, {name}",
        sure=hits,
        most=hits,
        total=len(logp),
        details={
            "queries": queries.count,
            "probability": queries.probability,
            "expected_share": float(np.exp(success).mean()),
        },
    )


def _with_interval(rate: _Rate, alpha: float) -> Evidence:
    count = rate.total
    return Evidence(
        method=rate.method,
        quantity=rate.quantity,
        estimate=rate.sure / count if count else None,
        lower=clopper_pearson(rate.sure, count, alpha)[0] if count else None,
        upper=clopper_pearson(rate.most, count, alpha)[1] if count else None,
        confidence=1 - alpha,
        interval=INDEPENDENT,
        samples={"secrets": count},
        details=rate.details,
        reason="" if count else "no trained secret of this kind was attacked",
    )
