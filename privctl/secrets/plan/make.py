"""From data and a book of secrets to a plan of protection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.guarantees import default_delta
from privctl.accounting.secrets.batched import CalibratedNoise, informations, least_noise
from privctl.accounting.secrets.posterior_curves import (
    CurveCalibration,
    SecretMemberships,
    curve_bounds,
    fano_bounds,
    least_noise_by_curve,
    sharpen,
)
from privctl.data.texts import count_texts
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, Progress
from privctl.reports.files import FoundReport, read_report, report_beside
from privctl.secrets.plan.targets import Budgets, PosteriorTargets, budgets_of
from privctl.secrets.plan.weights import Solver, Weighted, weights_for
from privctl.secrets.protection import Form, PlanFacts, Protection, ProtectionCalibration
from privctl.secrets.table import SecretTable, read_secrets, table_of
from privctl.storage.digest import file_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Caps that a sweep tries, from one at which nothing is held back downwards.
_SWEEP = 10
_SWEEP_SPAN = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a user asks of ``privctl secrets plan``; ``delta`` and ``gap`` None follow from sizes."""

    data: Path
    secrets: Path
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
        """What the noise is chosen by: unless told otherwise the curve, where the form allows it."""
        return self.calibration or (
            ProtectionCalibration.CURVE if self.form is Form.REFERENCE else ProtectionCalibration.FANO
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanProblem:
    """The data as a plan needs them: how many ``examples``, which secrets lie where, what each may lose.

    ``unheld`` counts the secrets that no record holds. ``parent`` is the scan's report, where there is one.
    """

    request: PlanRequest
    examples: int
    data_digest: str
    secrets_digest: str
    table: SecretTable
    budgets: Budgets
    unheld: int
    parent: FoundReport | None

    @property
    def delta(self) -> float:
        """Of the record-level guarantee."""
        return self.request.delta or default_delta(self.examples)

    @property
    def largest_cap(self) -> float:
        """The cap from which on nothing is held back."""
        sizes = np.diff(self.table.starts)
        return float((sizes / self.budgets.nats).max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapTrial:
    """One cap tried out: the weights it leaves, the noise they need, and how long both took."""

    cap: float | None
    weighted: Weighted
    probabilities: NDArray[np.float64]
    calibrated: CalibratedNoise | CurveCalibration
    seconds: float

    @property
    def noise_multiplier(self) -> float:
        """What every secret is kept by."""
        return self.calibrated.noise_multiplier

    @property
    def fano_noise_multiplier(self) -> float:
        """What Fano's inequality asks for."""
        held = self.calibrated
        return held.fano_noise if isinstance(held, CurveCalibration) else held.noise_multiplier

    @property
    def kept(self) -> float:
        """The mean weight of a record."""
        return self.weighted.total / len(self.weighted.weights)


def question(request: PlanRequest) -> PlanProblem:
    """Read the data's size and the book. Raises PrivctlError in one sentence for what does not go together."""
    _check(request)
    table = table_of(read_secrets(request.secrets))
    examples = count_texts(request.data)
    last = int(table.records.max(initial=-1))
    if last >= examples:
        j = int(np.searchsorted(table.starts, np.argmax(table.records), side="right")) - 1
        raise InputError(
            f"{request.secrets} puts the secret {table.ids[j]!r} into record {last}, and {request.data} holds "
            f"{examples} records, counted from 0; scan this data"
        )
    digest = file_digest(request.data)
    parent = _scan_report(request.secrets, request.data, digest)
    unheld = int((np.diff(table.starts) == 0).sum())
    if unheld == len(table):
        raise InputError(f"no secret of {request.secrets} is in any record; there is nothing to protect")
    return PlanProblem(
        request=request,
        examples=examples,
        data_digest=digest,
        secrets_digest=file_digest(request.secrets),
        table=table,
        budgets=budgets_of(table, request.targets),
        unheld=unheld,
        parent=parent,
    )


def _check(request: PlanRequest) -> None:
    if request.steps < 1:
        raise CommandError(f"--steps is {request.steps}; it must be at least 1")
    if request.batch_size < 1:
        raise CommandError(f"--batch-size is {request.batch_size}; it must be at least 1")
    if request.gap is not None and not 0 < request.gap < 1:
        raise CommandError(f"--gap is {request.gap:g}; it must be above 0 and below 1")
    if request.chosen_by is ProtectionCalibration.CURVE and request.form is not Form.REFERENCE:
        raise CommandError(
            f"--calibration curve cannot be combined with --form {request.form}: the trade-off curve bounds a secret "
            "against its absence; remove one"
        )


def _scan_report(secrets: Path, data: Path, digest: str) -> FoundReport | None:
    """The report beside the book; raises InputError where it is of other data."""
    place = report_beside(secrets)
    if not place.is_file():
        return None
    scan = FoundReport(place, read_report(place))
    scanned = next((entry.digest for entry in scan.report.inputs if entry.role == "data"), None)
    if scanned is not None and scanned != digest:
        raise InputError(f"{secrets} was made from other data than {data}, as {place} says; scan {data} again")
    return scan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapSweep:
    """The caps that were tried, and why others could not be: (cap, reason)."""

    tried: tuple[CapTrial, ...]
    refused: tuple[tuple[float | None, str], ...]


def caps_to_sweep(asked: PlanProblem) -> list[float | None]:
    """No cap, then caps from the largest that says something downwards, on a logarithmic scale."""
    top = asked.largest_cap
    return [None, *np.geomspace(top, top / _SWEEP_SPAN, _SWEEP + 1)[1:].tolist()]


def explore(asked: PlanProblem, caps: Sequence[float | None], progress: Progress, *, strict: bool) -> CapSweep:
    """Each of ``caps`` tried out. Raises CommandError for one that cannot be, where ``strict`` or none can."""
    trials, refused = [], []
    for cap in caps:
        label = "no cap" if cap is None else f"cap {cap:.4g}"
        with progress(f"weights and noise, {label}", 1.0, "plan") as advance:
            try:
                trials.append(_tried(asked, cap, advance))
            except CommandError as fault:
                if strict or (not trials and cap == caps[-1]):
                    raise
                refused.append((cap, str(fault)))
    return CapSweep(tried=tuple(trials), refused=tuple(refused))


def _tried(asked: PlanProblem, cap: float | None, advance: Advance) -> CapTrial:
    started = time.perf_counter()
    request, table = asked.request, asked.table
    if cap is None:
        weighted = Weighted(weights=np.ones(asked.examples), gap=0.0, solver="none: no cap was given")
    else:
        limits = cap * asked.budgets.nats
        weighted = weights_for(
            table.starts,
            table.records,
            asked.examples,
            limits,
            solver=request.solver,
            gap=request.gap,
            advance=advance,
        )
    probabilities = _probabilities(weighted, request.batch_size, cap)
    calibrated = _calibrated(asked, probabilities)
    return CapTrial(
        cap=cap,
        weighted=weighted,
        probabilities=probabilities,
        calibrated=calibrated,
        seconds=time.perf_counter() - started,
    )


def _calibrated(asked: PlanProblem, probabilities: NDArray[np.float64]) -> CalibratedNoise | CurveCalibration:
    """The least noise, by what was asked for."""
    request, table, budgets = asked.request, asked.table, asked.budgets
    given = (table.starts, table.records, probabilities)
    if request.chosen_by is ProtectionCalibration.FANO:
        return least_noise(*given, budgets.nats, request.steps, pairwise=request.form is Form.PAIRWISE)
    return least_noise_by_curve(
        _book(asked, probabilities),
        budgets.posteriors,
        budgets.nats,
        lambda sigma: informations(*given, sigma, request.steps),
    )


def _book(asked: PlanProblem, probabilities: NDArray[np.float64]) -> SecretMemberships:
    return SecretMemberships(
        starts=asked.table.starts,
        records=asked.table.records,
        probabilities=probabilities,
        priors=asked.budgets.priors,
        steps=asked.request.steps,
    )


def _probabilities(weighted: Weighted, batch_size: int, cap: float | None) -> NDArray[np.float64]:
    """Each record's share of the expected batch."""
    weights, total = weighted.weights, weighted.total
    most = total / float(weights.max()) if total > 0 else 0.0
    if batch_size > most:
        held = f"under --cap {cap:g} the records weigh" if cap is not None else "the records weigh"
        raise CommandError(
            f"--batch-size is {batch_size}, and {held} {total:.6g} in all, so that at most {int(most)} can be expected "
            "in a batch; give a smaller batch or a larger cap"
        )
    return np.minimum(1.0, batch_size * weights / total)


def protection(asked: PlanProblem, trial: CapTrial) -> Protection:
    """The plan as a file holds it, with a posterior by the trade-off curve for every secret in the reference form."""
    request, table, budgets = asked.request, asked.table, asked.budgets
    calibrated = trial.calibrated
    by_fano = fano_bounds(calibrated.informations, budgets.priors)
    return Protection(
        facts=PlanFacts(
            data=asked.data_digest,
            data_name=request.data.name,
            examples=asked.examples,
            secrets=asked.secrets_digest,
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
        curve_bounds=_curve_bounds(asked, trial, by_fano),
    )


def _curve_bounds(asked: PlanProblem, trial: CapTrial, by_fano: NDArray[np.float64]) -> NDArray[np.float64]:
    """Posteriors by the curve; NaN in the pairwise form, which it does not speak of."""
    calibrated = trial.calibrated
    if isinstance(calibrated, CurveCalibration):
        return calibrated.curve_bounds
    if asked.request.form is Form.PAIRWISE:
        return np.full(len(by_fano), np.nan)
    book = _book(asked, trial.probabilities)
    bounds = curve_bounds(book, calibrated.noise_multiplier)
    sharpen(book, calibrated.noise_multiplier, bounds, by_fano, asked.budgets.posteriors)
    return bounds


def nearest(plan: Protection, *, curve: bool) -> int | None:
    """The position of the secret nearest to what it may be, by its posterior or by its nats.

    None where no record of any secret is ever drawn.
    """
    shares = plan.bounds / plan.posteriors if curve else plan.information / plan.budgets
    first = int(np.argmax(np.where(plan.information > 0, shares, -1.0)))
    return first if plan.information[first] > 0 else None
