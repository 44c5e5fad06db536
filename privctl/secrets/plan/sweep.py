"""Makes plans of protection from data and a book of secrets: finds the weights and the noise for each cap."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.deltas import default_delta
from privctl.accounting.secrets.batched import CalibratedNoise, informations, least_noise
from privctl.accounting.secrets.posterior_curves import (
    CurveCalibration,
    SecretMemberships,
    curve_bounds,
    fano_bounds,
    least_noise_by_curve,
    sharpen,
)
from privctl.data.columns import USUAL, Columns
from privctl.data.recorded import digest_of, recorded_files, require_same
from privctl.data.several import DataPath
from privctl.data.texts import identified_texts
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, Progress
from privctl.reports.files import FoundReport, read_report, report_beside
from privctl.reports.parameters import ScanParameters, parameters_as
from privctl.secrets.plan.targets import Budgets, PosteriorTargets, budgets_of
from privctl.secrets.plan.weights import Solver, Weighted, weights_for
from privctl.secrets.protection import Form, PlanFacts, Protection, ProtectionCalibration
from privctl.secrets.table import SecretTable, read_secrets, table_of
from privctl.storage.digest import DigestedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of caps that a sweep tries, and the ratio of the largest useful cap to the smallest.
_SWEEP = 10
_SWEEP_SPAN = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The request of ``privctl secrets plan``; for None, ``delta`` and ``gap`` depend on the size of the data."""

    data: DataPath
    secrets: Path
    columns: Columns = USUAL
    steps: int
    batch_size: int
    targets: PosteriorTargets
    delta: float | None = None
    form: Form = Form.REFERENCE
    calibration: ProtectionCalibration | None = None
    solver: Solver = Solver.AUTO
    gap: float | None = None

    @property
    def chosen_by(self) -> ProtectionCalibration:
        """How the noise is calibrated: by default with the trade-off curve if the form allows it."""
        return self.calibration or (
            ProtectionCalibration.CURVE if self.form is Form.REFERENCE else ProtectionCalibration.FANO
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanProblem:
    """What a plan needs to know about the data: ``examples``, the records of each secret, and the budgets.

    ``texts`` is the digest of the texts that were read, as returned by ``identified_texts``. ``data`` and ``secrets``
    are the files that were read. ``without_record`` is the number of secrets that are in no record. ``parent`` is the
    scan's report, if there is one.
    """

    request: PlanRequest
    examples: int
    texts: str
    data: tuple[DigestedFile, ...]
    secrets: tuple[DigestedFile, ...]
    table: SecretTable
    budgets: Budgets
    without_record: int
    parent: FoundReport | None

    @property
    def delta(self) -> float:
        """The delta of the record-level guarantee."""
        return self.request.delta or default_delta(self.examples)

    @property
    def largest_cap(self) -> float:
        """The smallest cap at which all weights are 1."""
        sizes = np.diff(self.table.starts)
        return float((sizes / self.budgets.nats).max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapTrial:
    """A cap that was tried: the weights, the noise that they need, and how long it took in ``seconds``."""

    cap: float | None
    weighted: Weighted
    probabilities: NDArray[np.float64]
    calibrated: CalibratedNoise | CurveCalibration
    seconds: float

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier that keeps every secret within its posterior."""
        return self.calibrated.noise_multiplier

    @property
    def fano_noise_multiplier(self) -> float:
        """The noise multiplier that Fano's inequality alone requires."""
        calibrated = self.calibrated
        return calibrated.fano_noise if isinstance(calibrated, CurveCalibration) else calibrated.noise_multiplier

    @property
    def mean_weight(self) -> float:
        """The mean weight of a record."""
        return self.weighted.total / len(self.weighted.weights)


def read_problem(request: PlanRequest) -> PlanProblem:
    """Read the size of the data and the book. Raises PrivctlError if they do not match, or change while being read."""
    _check(request)
    data, secrets = recorded_files(request.data), recorded_files(request.secrets)
    table = table_of(read_secrets(request.secrets))
    examples, texts = identified_texts(request.data, request.columns)
    highest_record = int(table.records.max(initial=-1))
    if highest_record >= examples:
        j = int(np.searchsorted(table.starts, np.argmax(table.records), side="right")) - 1
        raise InputError(
            f"{request.secrets} puts the secret {table.ids[j]!r} into record {highest_record}, and {request.data} "
            f"holds {examples} records, counted from 0; scan this data"
        )
    parent = _scan_report(request, data)
    unheld = int((np.diff(table.starts) == 0).sum())
    if unheld == len(table):
        raise InputError(f"no secret of {request.secrets} is in any record; there is nothing to protect")
    require_same(request.data, data)
    require_same(request.secrets, secrets)
    return PlanProblem(
        request=request,
        examples=examples,
        texts=texts,
        data=data,
        secrets=secrets,
        table=table,
        budgets=budgets_of(table, request.targets),
        without_record=unheld,
        parent=parent,
    )


def _check(request: PlanRequest) -> None:
    if request.steps < 1:
        raise CommandError(f"--steps is {request.steps}; it must be at least 1")
    if request.batch_size < 1:
        raise CommandError(f"--batch-size is {request.batch_size}; it must be at least 1")
    if request.gap is not None and not 0 < request.gap < 1:
        raise CommandError(f"--gap is {request.gap:g}; it must be above 0 and below 1")
    if request.gap is not None and request.solver is Solver.INTERIOR:
        raise CommandError("--gap is where the first-order solver stops; remove it, or --solver interior")
    if request.chosen_by is ProtectionCalibration.CURVE and request.form is not Form.REFERENCE:
        raise CommandError(
            f"--calibration curve cannot be combined with --form {request.form}: the trade-off curve bounds a secret "
            "against its absence; remove one"
        )


def _scan_report(request: PlanRequest, data: Sequence[DigestedFile]) -> FoundReport | None:
    """The scan's report beside the book, if any. Raises InputError if it is about other data or another text column."""
    report_path = report_beside(request.secrets)
    if not report_path.is_file():
        return None
    scan = FoundReport(report_path, read_report(report_path))
    scanned = [entry.digest for entry in scan.report.inputs if entry.role == "data"]
    # The order matters, because the book numbers the records by it.
    if scanned and scanned != [file.digest for file in data]:
        raise InputError(
            f"{request.secrets} was made from other data than {request.data}, or from the same in another order, as "
            f"{report_path} says; scan {request.data} again"
        )
    if (field := parameters_as(ScanParameters, scan.report).text_column) != request.columns.text:
        looked_at = "the usual fields" if field is None else f"the field {field!r}"
        raise InputError(
            f"{request.secrets} was made from {looked_at} of {request.data}, as {report_path} says; name the same with "
            "--text-column, or scan again"
        )
    return scan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapSweep:
    """The caps that were tried, and those that cannot be met: (cap, reason)."""

    tried: tuple[CapTrial, ...]
    refused: tuple[tuple[float | None, str], ...]


def caps_to_sweep(problem: PlanProblem) -> list[float | None]:
    """No cap, then decreasing caps below the largest useful one, on a logarithmic scale."""
    top = problem.largest_cap
    return [None, *np.geomspace(top, top / _SWEEP_SPAN, _SWEEP + 1)[1:].tolist()]


def sweep_caps(problem: PlanProblem, caps: Sequence[float | None], progress: Progress, *, strict: bool) -> CapSweep:
    """Try each of ``caps``. Raises CommandError if none of them can be met, or, with ``strict``, if any cannot."""
    trials, refused = [], []
    for cap in caps:
        label = "no cap" if cap is None else f"cap {cap:.4g}"
        with progress(f"weights and noise, {label}", 1.0, "plan") as advance:
            try:
                trials.append(_try_cap(problem, cap, advance))
            except CommandError as fault:
                if strict or (not trials and cap == caps[-1]):
                    raise
                refused.append((cap, str(fault)))
    return CapSweep(tried=tuple(trials), refused=tuple(refused))


def _try_cap(problem: PlanProblem, cap: float | None, advance: Advance) -> CapTrial:
    started = time.perf_counter()
    request, table = problem.request, problem.table
    if cap is None:
        weighted = Weighted(weights=np.ones(problem.examples), gap=0.0, solver="none: no cap was given")
    else:
        limits = cap * problem.budgets.nats
        weighted = weights_for(
            table.starts,
            table.records,
            problem.examples,
            limits,
            solver=request.solver,
            gap=request.gap,
            advance=advance,
        )
    probabilities = _probabilities(weighted, request.batch_size, cap)
    calibrated = _calibrate(problem, probabilities)
    return CapTrial(
        cap=cap,
        weighted=weighted,
        probabilities=probabilities,
        calibrated=calibrated,
        seconds=time.perf_counter() - started,
    )


def _calibrate(problem: PlanProblem, probabilities: NDArray[np.float64]) -> CalibratedNoise | CurveCalibration:
    """The least noise, by the requested calibration."""
    request, table, budgets = problem.request, problem.table, problem.budgets
    memberships = (table.starts, table.records, probabilities)
    if request.chosen_by is ProtectionCalibration.FANO:
        return least_noise(*memberships, budgets.nats, request.steps, pairwise=request.form is Form.PAIRWISE)
    return least_noise_by_curve(
        _memberships(problem, probabilities),
        budgets.posteriors,
        budgets.nats,
        lambda sigma: informations(*memberships, sigma, request.steps),
    )


def _memberships(problem: PlanProblem, probabilities: NDArray[np.float64]) -> SecretMemberships:
    return SecretMemberships(
        starts=problem.table.starts,
        records=problem.table.records,
        probabilities=probabilities,
        priors=problem.budgets.priors,
        steps=problem.request.steps,
    )


def _probabilities(weighted: Weighted, batch_size: int, cap: float | None) -> NDArray[np.float64]:
    """The sampling probability of each record."""
    weights, total = weighted.weights, weighted.total
    most = total / float(weights.max()) if total > 0 else 0.0
    if batch_size > most:
        subject = f"under --cap {cap:g} the records weigh" if cap is not None else "the records weigh"
        raise CommandError(
            f"--batch-size is {batch_size}, and {subject} {total:.6g} in all, so that at most {int(most)} can be "
            "expected in a batch; give a smaller batch or a larger cap"
        )
    return np.minimum(1.0, batch_size * weights / total)


def protection_of(problem: PlanProblem, trial: CapTrial) -> Protection:
    """The plan of a ``trial``. In the reference form it has a trade-off curve bound on every secret's posterior."""
    request, table, budgets = problem.request, problem.table, problem.budgets
    calibrated = trial.calibrated
    by_fano = fano_bounds(calibrated.informations, budgets.priors)
    return Protection(
        facts=PlanFacts(
            data=digest_of(problem.data),
            data_name=request.data.name,
            examples=problem.examples,
            texts=problem.texts,
            secrets=digest_of(problem.secrets),
            steps=request.steps,
            batch_size=float(request.batch_size),
            noise_multiplier=trial.noise_multiplier,
            form=request.form,
            cap=trial.cap,
            calibration=request.chosen_by,
            fano_noise_multiplier=None
            if request.chosen_by is ProtectionCalibration.FANO
            else trial.fano_noise_multiplier,
        ),
        ids=table.ids,
        kinds=table.kinds,
        weights=trial.weighted.weights,
        probabilities=trial.probabilities,
        starts=table.starts,
        records=table.records,
        priors=budgets.priors,
        posteriors=budgets.posteriors,
        budgets=budgets.nats,
        information=calibrated.informations,
        posterior_bounds=by_fano,
        curve_bounds=_curve_bounds(problem, trial, by_fano),
    )


def _curve_bounds(problem: PlanProblem, trial: CapTrial, by_fano: NDArray[np.float64]) -> NDArray[np.float64]:
    """Trade-off curve bounds on the posteriors; NaN in the pairwise form, to which the curve does not apply."""
    calibrated = trial.calibrated
    if isinstance(calibrated, CurveCalibration):
        return calibrated.curve_bounds
    if problem.request.form is Form.PAIRWISE:
        return np.full(len(by_fano), np.nan)
    memberships = _memberships(problem, trial.probabilities)
    bounds = curve_bounds(memberships, calibrated.noise_multiplier)
    sharpen(memberships, calibrated.noise_multiplier, bounds, by_fano, problem.budgets.posteriors)
    return bounds


def nearest_secret(plan: Protection, *, curve: bool) -> int | None:
    """The index of the secret nearest to its limit, on its posterior (``curve``) or on its information in nats.

    None if no record of any secret is ever drawn.
    """
    shares = plan.bounds / plan.posteriors if curve else plan.information / plan.budgets
    position = int(np.argmax(np.where(plan.information > 0, shares, -1.0)))
    return position if plan.information[position] > 0 else None
