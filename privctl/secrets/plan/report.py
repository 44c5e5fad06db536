"""The report of a plan of protection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from privctl.accounting.guarantees import finite, guarantee_of
from privctl.data.several import paths_of
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import (
    Adjacency,
    Assumption,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    Risk,
    RiskMeasure,
    status_of,
)
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.files import digested_artifact, now, pending_artifact, report_beside, versions
from privctl.secrets.plan.sweep import CapSweep, CapTrial, PlanProblem, nearest_secret
from privctl.secrets.protection import Form, Protection, ProtectionCalibration
from privctl.storage.atomic import PendingFile

_WARNINGS = (
    "a plan, not a run: it holds for a training that samples, clips and adds noise as it says",
    "only the listed occurrences are protected: what the book misses, or what tells a secret without holding it, is "
    "not",
    "weights, noise and this report follow from where the secrets lie: keep them, and the plan, to yourself",
    "bounds are for real arithmetic; the report of a run adds what floating-point noise costs on its model",
)
_ACCOUNTANT = {
    Form.REFERENCE: "KL divergence from the secret's absence, certified upper bound; Fano's inequality",
    Form.PAIRWISE: "KL divergence of opposite contributions, certified upper bound; Fano's inequality",
}
_CURVE = "trade-off curve of the privacy loss distribution, from the secret's absence"


def report_of(
    problem: PlanProblem, sweep: CapSweep, plan: Protection | None, plan_file: PendingFile | None = None
) -> PrivacyReport:
    """The report of all caps that were tried, and of the ``plan``, if one was written to ``plan_file``."""
    request = problem.request
    report_path = report_beside(paths_of(request.data)[0] if plan_file is None else plan_file.path)
    files = {"data": problem.data, "secrets": problem.secrets}
    return PrivacyReport(
        step="secrets-plan",
        created=now(),
        versions=versions(("numpy", "scipy", "highspy")),
        inputs=tuple(digested_artifact(role, file, report_path) for role, read in files.items() for file in read),
        outputs=() if plan_file is None else (pending_artifact("plan", plan_file, report_path),),
        parameters=_parameters(problem, sweep),
        mechanism=None if plan is None else planned_ledger(plan),
        guarantees=() if plan is None else tuple(guarantees_of(plan, problem.delta)),
        evidence=() if plan is None else tuple(_evidence(plan)),
        omissions=tuple(Omission(what=f"cap {cap:g}" if cap else "no cap", reason=why) for cap, why in sweep.refused),
        warnings=(*_WARNINGS, *_without_record(problem)),
        parents=() if problem.parent is None else (problem.parent.parent_of(report_path),),
    )


def planned_ledger(plan: Protection) -> Ledger:
    """The mechanism for a single record: that of a record with the largest sampling probability."""
    event = SampledGaussian(
        noise_multiplier=plan.facts.noise_multiplier,
        sample_rate=plan.largest_probability,
        steps=plan.facts.steps,
        batches=Batches.POISSON,
    )
    return Ledger(events=(event,))


def guarantees_of(plan: Protection, delta: float) -> Iterator[Guarantee]:
    """The guarantees for all secrets, with the numbers of the secret nearest its limit, then that for any one record.

    The bound by which the noise was calibrated comes first, then the other one.
    """
    rows = [_secret_guarantee(plan, j, curve=False) for j in [nearest_secret(plan, curve=False)] if j is not None]
    if plan.facts.form is Form.REFERENCE:
        rows += [_secret_guarantee(plan, j, curve=True) for j in [nearest_secret(plan, curve=True)] if j is not None]
    yield from reversed(rows) if plan.facts.calibration is ProtectionCalibration.CURVE else rows
    yield guarantee_of(
        planned_ledger(plan),
        delta,
        name="any one record",
        state=AssumptionState.ASSERTED,
        note=f"for the record that is drawn most often, with probability {plan.largest_probability:.4g} a step",
    )


def _secret_guarantee(plan: Protection, j: int, *, curve: bool) -> Guarantee:
    bounds = plan.curve_bounds if curve else plan.posterior_bounds
    premises = (*secret_premises(plan, AssumptionState.ASSERTED),)
    return Guarantee(
        name="secret protection, trade-off curve" if curve else "secret protection, mutual information",
        epsilon=finite(float(plan.information[j])),
        delta=0.0,
        notion=Notion.SECRET_PROTECTION,
        unit=PrivacyUnit.SECRET,
        adjacency=Adjacency.ZERO_OUT if plan.facts.form is Form.REFERENCE or curve else Adjacency.REPLACE_ONE,
        accountant=_CURVE if curve else _ACCOUNTANT[plan.facts.form],
        status=status_of(premises),
        noise_multiplier=plan.facts.noise_multiplier,
        assumptions=premises,
        note=_note(plan, j, curve=curve),
        risks=(Risk(measure=RiskMeasure.POSTERIOR, bound=min(1.0, float(bounds[j])), at=float(plan.priors[j])),),
    )


def _note(plan: Protection, j: int, *, curve: bool) -> str:
    """States which secret the numbers belong to, and what they imply for the others."""
    subject = f"for the secret {plan.ids[j]!r}, nearest of {len(plan.ids)} to "
    budget, allowed = f"its budget of {plan.budgets[j]:.6g} nats", f"its posterior of {plan.posteriors[j]:.6g}"
    if plan.facts.calibration is ProtectionCalibration.FANO:
        return subject + (allowed if curve else budget)
    if curve:
        return f"{subject}{allowed}; every secret stays within its own by this bound or by Fano's inequality"
    return (
        f"{subject}{budget}; the noise was chosen by the trade-off curve, and this weaker bound alone would ask for a "
        f"noise multiplier of {plan.facts.fano_noise_multiplier:.6g}"
    )


def secret_premises(plan: Protection, state: AssumptionState) -> Iterator[Assumption]:
    """The assumptions of secret protection; ``state`` is that of the assumptions on sampling and clipping."""
    yield Assumption(
        name="contribution",
        statement="one record changes what noise is added to by the clip norm at most",
        state=state,
    )
    yield Assumption(
        name="poisson batches",
        statement="every record enters each batch independently, with the probability that the plan gives it",
        state=state,
    )
    yield Assumption(
        name="whole book",
        statement="the book names every record that depends on a secret, and which these are does not depend on the "
        "secret's value",
        state=AssumptionState.ASSERTED,
    )
    yield Assumption(
        name="prior",
        statement="knowing all else in the data, an adversary gives no value of a secret more than its prior",
        state=AssumptionState.ASSERTED,
    )
    if plan.facts.form is Form.PAIRWISE:
        yield Assumption(
            name="opposite contributions",
            statement="two values of a secret differ most where their contributions are opposite (checked on grids, "
            "not proved)",
            state=AssumptionState.ASSERTED,
        )


def _parameters(problem: PlanProblem, sweep: CapSweep) -> dict[str, Any]:
    request = problem.request
    sizes = np.diff(problem.table.starts)
    kinds: dict[str, int] = {}
    for kind in problem.table.kinds:
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "steps": request.steps,
        "batch_size": request.batch_size,
        "delta": problem.delta,
        "form": str(request.form),
        "calibration": str(request.chosen_by),
        "dataset_size": problem.examples,
        "secrets": len(problem.table),
        "secrets_in_no_record": problem.without_record,
        "memberships": len(problem.table.records),
        "records_with_a_secret": len(np.unique(problem.table.records)),
        "largest_secret": int(sizes.max()),
        "kinds": kinds,
        "default_prior": request.targets.default.prior,
        "default_posterior": request.targets.default.posterior,
        "targets": {k: [t.prior, t.posterior] for k, t in request.targets.by_kind.items()},
        "caps": [_cap_parameters(entry) for entry in sweep.tried],
    }


def _cap_parameters(entry: CapTrial) -> dict[str, Any]:
    weights = entry.weighted.weights
    return {
        "cap": entry.cap,
        "kept": entry.mean_weight,
        "held_out": int((weights == 0).sum()),
        "whole": int((weights == 1).sum()),
        "largest_probability": float(entry.probabilities.max()),
        "noise_multiplier": entry.noise_multiplier,
        "fano_noise_multiplier": entry.fano_noise_multiplier,
        "solver": entry.weighted.solver,
        "gap": entry.weighted.gap,
        "seconds": round(entry.seconds, 3),
    }


def _evidence(plan: Protection) -> Iterator[Evidence]:
    """Quantiles of bounds and information over the secrets in records that may be drawn."""
    used = plan.information > 0
    for quantity, values in (
        ("bound on the posterior of a secret", plan.bounds[used]),
        ("bound / posterior allowed of a secret", plan.bounds[used] / plan.posteriors[used]),
        ("bound on the posterior of a secret, Fano", plan.posterior_bounds[used]),
        ("information on a secret, nats", plan.information[used]),
        ("information / budget of a secret", plan.information[used] / plan.budgets[used]),
    ):
        if len(values):
            yield Evidence(
                method="computed for every secret",
                quantity=quantity,
                estimate=float(np.median(values)),
                bound=Bound.NONE,
                samples={"secrets": len(values)},
                details={f"quantile {q:g}": float(np.quantile(values, q)) for q in (0, 0.1, 0.5, 0.9, 0.99, 1)},
            )


def _without_record(problem: PlanProblem) -> Iterator[str]:
    if problem.without_record:
        are = "is" if problem.without_record == 1 else "are"
        secrets = counted(len(problem.table), "secret")
        yield f"{problem.without_record} of {secrets} {are} in no record; nothing of them is ever used"
