"""The exposure of planted canaries: their ranks among fresh secrets, and the bounds that follow.

A canary that outranks all but k of n fresh secrets, drawn at random, is one of a fraction q of all secrets, of which k
were seen: its exposure is -log2 q bits. Chernoff's inequality, P[Bin(n, q) >= k] <= exp(-n KL(k/n, q)) for q < k/n
(Hoeffding 1963, theorem 1), bounds q from below and so exposure from above; with k = 0 nothing does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from privctl.domain.evidence import Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.gate.checks.leakage import EXPOSURE, evidence_of, why_not_planted
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as

_METHOD, _MEDIAN = "canary exposure", "median bits, included"


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the highest exposure of each group of included canaries, in bits."""
    limit = policy.max_exposure
    if limit is None:
        return
    items = evidence_of(case, lambda item: item.method == _METHOD and item.quantity.startswith(_MEDIAN))
    if not items:
        yield Finding(
            rule=EXPOSURE,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=case.name,
            message="no audit given for this model measured it",
            fix="give the report of an audit of canaries (privctl audit --canaries)",
            place=policy.places.get(EXPOSURE, case.default_place),
        )
    for report, i, item in items:
        outcome, message, fix = _judge(report, item, limit, (1 - policy.min_confidence) / len(items))
        yield Finding(
            rule=EXPOSURE,
            outcome=outcome,
            subject=f"{item.method} {item.quantity}",
            message=message,
            fix=fix,
            place=report.place("evidence", i, "details", "max"),
        )


def _judge(report: LoadedReport, item: Evidence, limit: float, alpha: float) -> tuple[GateOutcome, str, str]:
    more = "audit again with more --references, or --exact"
    highest, ceiling = item.details.get("max"), item.details.get("ceiling")
    canaries = item.samples.get("canaries", 0)
    # An exposure is that of at least one canary, between 0 bits and the ceiling.
    if highest is None or ceiling is None or canaries < 1 or not 0 <= highest <= ceiling + 1e-6 or ceiling > 1000:
        return GateOutcome.INCONCLUSIVE, item.reason or "the report states no valid highest exposure", more
    if highest <= limit and (doubt := why_not_planted(report)):
        return GateOutcome.INCONCLUSIVE, doubt, "audit with the manifest of the training data"
    if highest > limit:
        message = f"a canary has an exposure of {highest:.4g} bits, above {limit:g}"
        fix = "retrain with a smaller epsilon (privctl retrain dp-sgd) and audit again; remove repetitions"
        return GateOutcome.FAIL, message, fix
    if _is_exact(report):
        return GateOutcome.PASS, f"the highest exposure is {highest:.4g} bits, within {limit:g}", ""
    upper = upper_bits(highest, ceiling, alpha / canaries)
    if upper is None:
        message = f"a canary outranks every secret it was compared with: its exposure is {ceiling:.4g} bits or more"
        return GateOutcome.INCONCLUSIVE, message, more
    if upper > limit:
        message = f"the highest exposure is {highest:.4g} bits, but may be {upper:.4g}, above {limit:g}"
        return GateOutcome.INCONCLUSIVE, message, more
    return GateOutcome.PASS, f"the highest exposure is at most {upper:.4g} bits, within {limit:g}", ""


def upper_bits(bits: float, ceiling: float, alpha: float) -> float | None:
    """An upper bound in bits, with confidence 1 - ``alpha``, on a true exposure measured as ``bits``.

    It was measured among 2^``ceiling`` - 1 random secrets; ``ceiling`` is capped at 60. Returns None if there is no
    bound. The bound is Chernoff's (Hoeffding 1963, theorem 1; see the module).
    """
    among = round(2.0 ** min(ceiling, 60.0))
    references = among - 1
    above = min(references, round(among / 2.0**bits) - 1)
    if above < 1:
        return None
    share, allowed = above / references, math.log(1 / alpha) / references
    low, high = 0.0, share  # the divergence falls from infinity to 0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(share, middle) > allowed else (low, middle)
    return None if low <= 0 else -math.log2(low)


def _divergence(a: float, b: float) -> float:
    """KL(Bernoulli(a), Bernoulli(b)) in nats."""
    if b <= 0 or b >= 1:
        return 0.0 if a == b else math.inf
    rest = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return a * math.log(a / b) + rest


def _is_exact(report: LoadedReport) -> bool:
    """Whether every canary was ranked among all possible secrets."""
    try:
        parameters = parameters_as(AuditParameters, report.report)
    except ParametersError:
        return False
    return (parameters.canary_groups or 0) > 0 and parameters.canary_exact_groups == parameters.canary_groups
