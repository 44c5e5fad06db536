"""An audit of many models by a single threshold chosen before their scores were seen.

Both error rates at the threshold are bounded by Clopper and Pearson's limits, which hold for every epsilon, mu and
claim at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from audits.asked import files_of, pairs_of, stated
from audits.claims import DEFAULT_DELTA, VIOLATION, EpsilonClaim, subject_of
from audits.findings import ALPHA
from audits.model_scores.audit import ARMS, ScoresAudit, audit_scores, check_settings, read_scores, warnings_of
from audits.statistics.fixed_threshold import ThresholdCounts, count
from audits.statistics.laws import binomial_quantile
from audits.statistics.power import POWER
from audits.statistics.search import smallest
from privctl.data.recorded import digested, require_unchanged
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import downward
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.files import digested_artifact, now, versions

METHOD = "fixed threshold"
INTERVAL = "Clopper-Pearson for each rate, at half of alpha"
#: The largest epsilon that is searched.
_MOST = 32.0


def run_scores(
    path: Path, report: Path, *, claim: EpsilonClaim | None, delta: float | None, threshold: float | None = None
) -> PrivacyReport:
    """The report, to be written to ``report``, on the scores of models at ``path``: by ranks, or by a ``threshold``.

    Raises as ``audit_at_threshold``, and InputError if the file changes meanwhile.
    """
    before = digested(path)
    if threshold is None:
        audit = audit_scores(path, delta=delta, claim=claim)
    else:
        audit = audit_at_threshold(path, threshold, delta=delta, claim=claim)
    require_unchanged([before])
    settings: dict[str, Any] = {}
    if claim is not None:
        settings = {"claimed_epsilon": claim.epsilon, "claimed_delta": claim.delta}
    scores = digested_artifact("scores", before, report)
    asked = AskedAudit(
        files=files_of([scores]),
        claims=() if claim is None else pairs_of([claim]),
        delta=delta,
        threshold=threshold,
    )
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("numpy", "scipy")),
        inputs=(scores,),
        parameters={**settings, "asked": stated(asked)},
        evidence=audit.evidence,
        verdicts=audit.verdicts,
        warnings=audit.warnings,
    )


def audit_at_threshold(
    path: Path,
    threshold: float,
    *,
    delta: float | None = None,
    claim: EpsilonClaim | None = None,
) -> ScoresAudit:
    """Bound epsilon at ``delta`` (the claim's, otherwise 1e-5) and mu by one ``threshold``, and test ``claim``.

    Raises as ``audit_scores``, and CommandError for a threshold that is not finite.
    """
    if delta is None:
        delta = DEFAULT_DELTA if claim is None else claim.delta
    check_settings(delta, claim)
    if not math.isfinite(threshold):
        raise CommandError(f"--threshold is {threshold}; expected a finite number")
    with_scores, without_scores = read_scores(path)
    counts = count(with_scores, without_scores, threshold)
    perfect = replace(counts, hits=counts.inner, errors=0)
    details = {"threshold": threshold, "true_positives": counts.hits, "false_positives": counts.errors}
    bounds: tuple[tuple[str, dict[str, float], Callable[..., float]], ...] = (
        (f"epsilon lower bound at delta {delta:g}", {"delta": delta}, partial(ThresholdCounts.epsilon, delta=delta)),
        ("lower bound on mu of Gaussian differential privacy", {}, ThresholdCounts.mu),
    )
    evidence = tuple(
        Evidence(
            method=METHOD,
            quantity=quantity,
            estimate=bound(counts, alpha=ALPHA),
            lower=bound(counts, alpha=ALPHA),
            confidence=1 - ALPHA,
            bound=Bound.LOWER,
            interval=INTERVAL,
            samples=dict(zip(ARMS, (counts.inner, counts.outer), strict=True)),
            details={**more, "ceiling": bound(perfect, alpha=ALPHA), **details},
        )
        for quantity, more, bound in bounds
    )
    warnings = (
        f"the threshold {threshold:g} is taken to be chosen before these scores were seen, as the caller asserts: one "
        "chosen by them makes the bounds invalid",
        *warnings_of(with_scores, without_scores),
    )
    verdicts = () if claim is None else (_verdict(counts, claim),)
    return ScoresAudit(evidence=evidence, verdicts=verdicts, warnings=warnings)


def _verdict(counts: ThresholdCounts, claim: EpsilonClaim) -> Verdict:
    """Refuted; or consistent, if randomized response with twice the epsilon would likely have been; or inconclusive."""
    certified = counts.epsilon(claim.delta, ALPHA)
    most = replace(counts, hits=counts.inner, errors=0).epsilon(claim.delta, ALPHA)
    limit, outcome = VIOLATION * claim.epsilon, Outcome.INCONCLUSIVE
    noticed = _noticed(counts, claim)
    finding = f"the models show an epsilon of at least {downward(certified, 3)} at delta {claim.delta:g}"
    if certified > claim.epsilon:
        outcome, reason = Outcome.REFUTED, f"{finding}, with {100 * (1 - ALPHA):g} % confidence"
    elif most <= claim.epsilon:
        reason = (
            f"so few models cannot certify more than epsilon {most:.3g}, whatever they leak: the claim could not have "
            "been refuted; train more models"
        )
    elif noticed > limit:
        reason = (
            f"{finding}, but by the best score and threshold so many models notice, {100 * POWER:g} times in 100, only "
            f"randomized response {'at no epsilon' if math.isinf(noticed) else f'from epsilon {noticed:.3g} on'}; "
            f"twice the claim is {limit:.3g}; train more models"
        )
    else:
        outcome = Outcome.CONSISTENT
        reason = (
            f"{finding}, and by the best score and threshold so many models notice randomized response from epsilon "
            f"{noticed:.3g} on, {100 * POWER:g} times in 100; a weaker score or another threshold may have missed more"
        )
    return Verdict(subject=subject_of(claim), outcome=outcome, reason=reason)


def _noticed(counts: ThresholdCounts, claim: EpsilonClaim) -> float:
    """The smallest epsilon of randomized response that refutes ``claim`` with probability ``POWER``; or infinity.

    Each count is set to its quantile with half of the allowed miss probability.
    """
    missed = (1 - POWER) / 2

    def refutes(epsilon: float) -> bool:
        rate = 1 / (1 + math.exp(-epsilon))
        hits = binomial_quantile(missed, counts.inner, rate)
        errors = binomial_quantile(1 - missed, counts.outer, 1 - rate)
        return replace(counts, hits=hits, errors=errors).epsilon(claim.delta, ALPHA) > claim.epsilon

    return smallest(refutes, 0.0, _MOST, 1e-6) if refutes(_MOST) else math.inf
