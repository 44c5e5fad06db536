"""The report of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.plan.accountants import BudgetPlan
from privctl.reports.files import now, versions

_WARNINGS = (
    "a plan, not a run: it holds for a training that does exactly what the mechanism says",
    "bounds are for real arithmetic; the report of a run adds what floating-point noise costs on its model",
)


def report_of(plan: BudgetPlan, parameters: Mapping[str, Any], inputs: Sequence[Artifact] = ()) -> PrivacyReport:
    """Every row's guarantee; rows without an answer become omissions with their reason.

    ``inputs`` are the files that the plan was read from.
    """
    return PrivacyReport(
        step="account",
        created=now(),
        versions=versions(("numpy", "scipy", "opacus")),
        inputs=tuple(inputs),
        parameters={
            **parameters,
            "methods": {row.key: {"title": row.title, "seconds": round(row.seconds, 6)} for row in plan.rows},
            "rely_on": plan.main,
            "found": {} if plan.solution is None else {plan.solved: plan.solution},
        },
        mechanism=plan.mechanism,
        guarantees=tuple(row.guarantee for row in plan.rows if row.guarantee is not None),
        omissions=tuple(Omission(what=row.title, reason=row.failure) for row in plan.rows if row.guarantee is None),
        warnings=_WARNINGS,
    )
