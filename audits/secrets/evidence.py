"""Evidence from the attacks on secrets: overall, by kind, and compared with a plan's bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.completion import Completion
from audits.extraction.discoverable import log_success
from audits.extraction.summary import QueryBudget
from audits.findings import Findings
from audits.secrets.attack import Ranks, SecretAnswers, SecretAttackResult
from audits.secrets.beam import BeamHits
from audits.secrets.blind import BASELINE
from audits.secrets.planned_bound import Markov, markov_test
from audits.secrets.targets import HELD_OUT_MARK
from audits.secrets.trace import PAIRED, TraceTest, ranks_by_score
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECONSTRUCTION = "secret reconstruction"
COMPLETION = "secret completion"
TRACE = "secret trace"
PROTECTION = "secret protection"
#: Prefix of the quantities of single kinds; their details fill the table by kind.
KIND = "told first, kind "
_QUANTITIES = {PAIRED: "share told more"}
SHARE_FOUND = "share found beyond"
INDEPENDENT = f"{CLOPPER_PEARSON}, as for independent secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    """A rate without its interval: between ``sure`` and ``most`` successes out of ``total``."""

    method: str
    quantity: str
    sure: int
    most: int
    total: int
    details: dict[str, float] = field(default_factory=dict)


def bounds_of(result: SecretAttackResult) -> NDArray[np.float64]:
    """The largest probability of identifying each secret that the plan permits, [secrets]; NaN without a bound."""
    allowed = []
    for problem, count in zip(result.problems, result.after.ranks.count.tolist(), strict=True):
        allowance = problem.target.allowance
        allowed.append(math.nan if allowance is None else allowance.success(count))
    return np.array(allowed, dtype=np.float64)


def of_secrets(findings: Findings) -> Iterator[Evidence]:
    """The evidence from the attack on secrets."""
    methods = (RECONSTRUCTION, COMPLETION, TRACE, PROTECTION, BASELINE)
    return (item for item in findings.evidence if item.method in methods)


def rates(
    result: SecretAttackResult, omitted: Sequence[tuple[str, str]], queries: QueryBudget, alpha: float
) -> list[Evidence]:
    """Every rate with its interval, all jointly wrong with probability at most ``alpha``."""
    all_rates = [*_overall_rates(result, queries), *_by_kind(result, omitted)]
    alpha_each = alpha / max(1, len(all_rates))
    return [_with_interval(rate, alpha_each) for rate in all_rates]


def tests_as_evidence(tests: Sequence[TraceTest], alpha: float) -> list[Evidence]:
    """The tests, which share ``alpha`` equally; ``detected`` is 1 if a p-value is at most its test's level.

    ``least_p_value`` is the smallest that the secrets could have given, if that was computed.
    """
    level = alpha / max(1, len(tests))
    return [
        Evidence(
            method=TRACE,
            quantity=f"{_quantity(test)}, {test.name}, by {test.score}",
            estimate=test.excess,
            confidence=1 - level,
            bound=Bound.NONE,
            interval=test.method,
            samples={"secrets": test.compared[0], "compared_with": test.compared[1]},
            details={
                "p_value": test.p_value,
                "level": level,
                "detected": float(test.p_value <= level),
                **({} if test.least is None else {"least_p_value": test.least}),
                **({} if test.effective is None else {"effective": test.effective}),
            },
        )
        for test in tests
    ]


def _quantity(test: TraceTest) -> str:
    return SHARE_FOUND if test.of_shares else _QUANTITIES.get(test.name, "mean bits beyond")


def protection(result: SecretAttackResult, level: float) -> tuple[Evidence, Markov] | None:
    """A test at ``level`` of the plan's bounds by secrets drawn at random; None if there are none."""
    bounds = bounds_of(result)
    chosen = result.designed & ~np.isnan(bounds)
    if not chosen.any():
        return None
    test = markov_test(int(result.after.ranks.ranked_first[chosen].sum()), bounds[chosen].tolist(), level)
    return Evidence(
        method=PROTECTION,
        quantity="secrets told against the plan",
        estimate=test.recovered / test.secrets,
        confidence=1 - level,
        bound=Bound.NONE,
        interval="Markov's inequality, whatever the dependence",
        samples={"secrets": test.secrets},
        details={
            "told": test.recovered,
            "allowed_on_average": test.expected,
            "p_value": test.p_value,
            "level": level,
            "needed": test.needed,
            "detected": float(test.p_value <= level),
            "chance": test.expected / test.secrets,
            **({"detectable": test.needed / test.secrets} if test.needed <= test.secrets else {}),
        },
    ), test


def _overall_rates(result: SecretAttackResult, queries: QueryBudget) -> Iterator[_Rate]:
    bounds = bounds_of(result)
    sides = (
        ("trained", result.trained),
        ("never drawn (control)", result.control),
        ("held out (control)", result.held_out),
    )
    for side, chosen in sides:
        if not chosen.any():
            continue
        models: list[tuple[str, SecretAnswers]] = [(side, result.after)]
        if result.before is not None:
            models.append((f"{side}, before training", result.before))
        for name, answers in models:
            details = _rank_details(answers.ranks, chosen)
            if answers is result.after and not np.isnan(bounds[chosen]).all():
                details["bound"] = float(np.nanmean(bounds[chosen]))
            yield _recovery_rate(f"told first, {name}", answers.ranks, chosen, details)
        for score, ranks in list(ranks_by_score(result))[1:]:
            yield _recovery_rate(f"told first by {score}, {side}", ranks, chosen, _rank_details(ranks, chosen))
        for name, answers in models:
            yield _completion_rate(f"written greedily, {name}", answers, chosen)
            yield _discoverable_rate(name, answers.logp[chosen], queries)
        if result.beam is not None:
            yield _beam_rate(f"in {result.beam.name}, {side}", result.beam, chosen)


def kinds_of(result: SecretAttackResult, omitted: Sequence[tuple[str, str]]) -> list[str]:
    """The kinds of secrets of which the report has a rate, sorted by name."""
    return sorted({*_skipped(omitted), *result.kinds.tolist()})


def _skipped(omitted: Sequence[tuple[str, str]]) -> Counter[str]:
    return Counter(kind for kind, reason in omitted if not reason.startswith(HELD_OUT_MARK))


def _by_kind(result: SecretAttackResult, omitted: Sequence[tuple[str, str]]) -> Iterator[_Rate]:
    """One rate per kind of secret, sorted by name."""
    skipped = _skipped(omitted)
    bounds = bounds_of(result)
    for kind in kinds_of(result, omitted):
        of_kind = result.kinds == kind
        chosen, control = of_kind & result.trained, of_kind & ~result.trained
        details = {"skipped": float(skipped[kind]), **_rank_details(result.after.ranks, chosen)}
        if chosen.any():
            details["greedy"] = _count_disclosed(result.after, chosen)
            if not np.isnan(bounds[chosen]).all():
                details["bound"] = float(np.nanmean(bounds[chosen]))
            if result.before is not None:
                details["before_told"] = int(result.before.ranks.ranked_first[chosen].sum())
                details["before_greedy"] = _count_disclosed(result.before, chosen)
        if control.any():
            details |= {
                "control": int(control.sum()),
                "control_told": int(result.after.ranks.ranked_first[control].sum()),
            }
        yield _recovery_rate(f"{KIND}{kind}", result.after.ranks, chosen, details)


def _rank_details(ranks: Ranks, chosen: NDArray[np.bool_]) -> dict[str, float]:
    """A summary of the ranks; ``chance`` is the expected rate of first ranks without the model, for random values."""
    if not chosen.any():
        return {}
    selected = ranks.select(chosen)
    return {
        "chance": float((1 / selected.count).mean()),
        "told": int(selected.ranked_first.sum()),
        "median_rank": float(np.median(selected.rank)),
        "median_candidates": float(np.median(selected.count)),
        "mean_bits": float(selected.bits.mean()),
    }


def _recovery_rate(quantity: str, ranks: Ranks, chosen: NDArray[np.bool_], details: dict[str, float]) -> _Rate:
    recovered = int(ranks.ranked_first[chosen].sum())
    return _Rate(
        method=RECONSTRUCTION,
        quantity=quantity,
        sure=recovered,
        most=recovered,
        total=int(chosen.sum()),
        details=details,
    )


def _completion_rate(quantity: str, answers: SecretAnswers, chosen: NDArray[np.bool_]) -> _Rate:
    states = answers.completion[chosen]
    sure = int((states == Completion.DISCLOSED).sum())
    undecided = int((states == Completion.UNDECIDED).sum())
    details: dict[str, float] = {"disclosed": sure, "undecided": undecided}
    return _Rate(
        method=COMPLETION, quantity=quantity, sure=sure, most=sure + undecided, total=len(states), details=details
    )


def _beam_rate(quantity: str, hits: BeamHits, chosen: NDArray[np.bool_]) -> _Rate:
    """The rate of secrets in the beam; ``chance`` is the mean fraction of candidates in the beam."""
    hit_count = int(hits.found[chosen].sum())
    details = {"found": hit_count, "width": hits.width, "chance": float(hits.chance[chosen].mean())}
    return _Rate(
        method=COMPLETION, quantity=quantity, sure=hit_count, most=hit_count, total=int(chosen.sum()), details=details
    )


def _count_disclosed(answers: SecretAnswers, chosen: NDArray[np.bool_]) -> int:
    return int((answers.completion[chosen] == Completion.DISCLOSED).sum())


def _discoverable_rate(name: str, logp: NDArray[np.float64], queries: QueryBudget) -> _Rate:
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
