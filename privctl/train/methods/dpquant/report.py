"""DPQuant's part of the report of a private training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from privctl.accounting.guarantees import finite
from privctl.accounting.ledger import ACCOUNTANT, epsilon_bound
from privctl.accounting.published_measurements import aggregate_ledger, claimed_ledger
from privctl.data.recorded import digest_of
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Status, status_of
from privctl.domain.report import PrivacyReport
from privctl.reports.files import digested_artifact
from privctl.storage.digest import DigestedFile
from privctl.train.methods.dpquant.choice import format_of, requested_settings
from privctl.train.methods.dpquant.cost import SPEEDS, speedup
from privctl.train.methods.dpquant.measurements import measurements_of
from privctl.train.methods.dpquant.quantization import Quantization
from privctl.train.methods.dpquant.sensitivity import MOST_PUBLIC, PublicSensitivity
from privctl.train.methods.dpquant.settings import LayerMode, Sensitivity
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.places import report_path
from privctl.train.settings.choices import FormatName
from privctl.train.steps.loop import FinishedRun

SCALES = (
    "a linear layer's inputs and gradients have a scale for each position, a convolution's for each example, and "
    "weights one a tensor; as published a scale is that of a whole batch: one example would change how all others are "
    "rounded, and clipping would not bound what it does"
)
#: The role of the public records that layers were measured on.
MEASURED = "measured"
#: The fraction of epsilon for measurements above which there is a warning.
_WARN_ABOVE = 0.1


def amend_report(
    report: PrivacyReport,
    job: TrainingJob,
    done: Quantization,
    finished: FinishedRun,
    seed: bytes,
    *,
    public: Sequence[DigestedFile] = (),
) -> PrivacyReport:
    """``report`` with DPQuant's parameters, assumptions, evidence and warnings; ``done`` is the run's precision.

    ``public`` are the files of the public records that layers were measured on, with their digests when read.
    """
    cost = _Cost.of(report)
    measured = (digested_artifact(MEASURED, file, report_path(job.request.output)) for file in public)
    return replace(
        report,
        inputs=(*report.inputs, *measured),
        parameters={**report.parameters, **_parameters(job, done, finished, seed, cost, public)},
        guarantees=tuple(_guarantees(report, job, finished, cost)),
        evidence=(*report.evidence, *_cost_evidence(cost), *_evidence(job, done)),
        warnings=(*report.warnings, *_warnings(cost)),
    )


class _Cost:
    """Epsilon with all releases (``whole``), and with those of the steps only (``training``)."""

    def __init__(self, whole: float, training: float) -> None:
        self.whole, self.training = whole, training

    @property
    def share(self) -> float:
        """The fraction of epsilon that the measurements take."""
        return 1 - self.training / self.whole if 0 < self.whole < math.inf else 0.0

    @classmethod
    def of(cls, report: PrivacyReport) -> _Cost | None:
        """The cost in the report of a run with private measurements; None for other runs."""
        ledger = report.mechanism
        if not isinstance(ledger, Ledger) or len(ledger.events) < 2 or not report.guarantees:
            return None
        guarantee = report.guarantees[0]
        whole = math.inf if guarantee.epsilon is None else guarantee.epsilon
        return cls(whole, epsilon_bound(Ledger(events=ledger.events[:1]), guarantee.delta))


def _guarantees(
    report: PrivacyReport, job: TrainingJob, finished: FinishedRun, cost: _Cost | None
) -> Iterator[Guarantee]:
    """The report's guarantees with the assumptions of quantization, and the claim by the paper's accounting."""
    if not report.guarantees:
        return
    whole_guarantee, *others = report.guarantees
    assumptions = (*whole_guarantee.assumptions, *_assumptions(job, measured=cost is not None))
    note = whole_guarantee.note
    if cost is not None:
        note = (
            f"{note}; measurements take {100 * cost.share:.2g} % of epsilon, which without them is {cost.training:.6g}"
        )
    yield replace(whole_guarantee, assumptions=assumptions, status=status_of(assumptions), note=note)
    plan = measurements_of(job.request, len(job.task), job.recipe.steps, job.recipe.sample_rate)
    if plan is not None and isinstance(report.mechanism, Ledger):
        training = report.mechanism.events[0]
        assert isinstance(training, SampledGaussian)
        rounds = math.ceil(finished.side_releases_begun / plan.repetitions)
        if rounds:
            yield _paper_guarantee(training, len(job.task), rounds, finished.side_releases_begun, whole_guarantee.delta)
    for other in others:
        premises = (*other.assumptions, *_assumptions(job, measured=False))
        yield replace(other, assumptions=premises, status=status_of(premises))


def _paper_guarantee(training: SampledGaussian, examples: int, rounds: int, releases: int, delta: float) -> Guarantee:
    """The epsilon that the paper would claim for this training with its own measurements instead of ours."""
    once, each = (epsilon_bound(claimed_ledger(training, examples, count), delta) for count in (rounds, releases))
    sound = epsilon_bound(aggregate_ledger(training, examples, releases), delta)
    return Guarantee(
        name="dpquant, measurements as its paper makes and accounts for them",
        epsilon=finite(once),
        delta=delta,
        adjacency=Adjacency.ADD_OR_REMOVE,
        accountant=f"{ACCOUNTANT}; DPQuant's own events",
        status=Status.CLAIMED,
        follows=finite(sound),
        note=f"{rounds} measurements counted as sampled Gaussians of noise multiplier 0.5 at rate 1 / {examples}; "
        f"{each:.6g} with every one of {releases} repetitions counted, and {sound:.6g} with the sensitivity of what is "
        "clipped there, a whole vector; the steps that it trains for a measurement and throws away come on top. "
        "Nothing was released that way here",
    )


def _assumptions(job: TrainingJob, *, measured: bool) -> Iterator[Assumption]:
    given = requested_settings(job.request).public_seed is not None
    yield Assumption(
        name="public rounding",
        statement="how numbers are rounded and which layers are depends on the data through released measurements "
        "alone, and on a public seed, " + ("which was given" if given else "which the operating system drew"),
        state=AssumptionState.ASSERTED if given else AssumptionState.ENFORCED,
    )
    yield Assumption(
        name="rounding by example",
        statement="in real arithmetic an example's gradient and loss do not depend on what else is in its batch: no "
        "scale spans two examples, and each draws its own rounding",
        state=AssumptionState.ENFORCED,
    )
    if requested_settings(job.request).measured is Sensitivity.SYNTHETIC:
        yield Assumption(
            name="synthetic measurements",
            statement="how much quantizing a layer hurts is measured on inputs made up from a fixed seed and on "
            "weights that noisy steps gave: no record is read",
            state=AssumptionState.ENFORCED,
        )
    if requested_settings(job.request).public_records is not None:
        yield Assumption(
            name="public measurements",
            statement="the records on which it is measured how much quantizing a layer hurts are public: none depends "
            "on a private one",
            state=AssumptionState.ASSERTED,
        )
    if measured:
        yield Assumption(
            name="measurements",
            statement="each release adds noise to a Poisson subsample's sum of vectors of loss differences, each "
            "clipped; nothing is trained on the way, every repetition counts, and so does one that was begun and lost",
            state=AssumptionState.ENFORCED,
        )


def _parameters(
    job: TrainingJob,
    done: Quantization,
    finished: FinishedRun,
    seed: bytes,
    cost: _Cost | None,
    public: Sequence[DigestedFile],
) -> dict[str, Any]:
    settings, schedule = requested_settings(job.request), done.schedule
    parameters: dict[str, Any] = {
        "format": str(settings.format),
        "luq_levels": _levels(job),
        "scales": SCALES,
        "layers": str(settings.layers),
        "sensitivity": None if settings.measured is None else str(settings.measured),
        "quantized_fraction": None if _is_fixed(settings.layers, settings.static) else settings.fraction,
        "compute_target": settings.compute_target,
        "layer_names": list(schedule.names),
        "multiply_adds": list(schedule.costs),
        "full_precision": list(settings.full_precision),
        "public_seed": seed.hex(),
        "low_precision_share": _shares(done),
        "layer_schedule": [
            {
                "epoch": epoch.number,
                "quantized": [name for name in schedule.names if name in epoch.quantized],
                **({"scores": list(epoch.scores)} if done.measuring or done.exact else {}),
            }
            for epoch in done.epochs
        ],
    }
    if done.epochs and (chances := schedule.chances(done.epochs[-1].scores)) is not None:
        parameters["last_chances"] = chances.tolist()
    if done.exact is not None:
        exact = done.exact.sensitivity
        parameters |= {"beta": settings.beta, "measure_every": done.exact.every, "measure_clip": settings.clip}
        if isinstance(exact, PublicSensitivity):
            parameters |= {
                "measured_public_records": min(len(exact.task), MOST_PUBLIC),
                "measured_public_digest": digest_of(public) if public else None,
            }
        else:
            parameters["measured_synthetic_inputs"] = len(exact.task)
    if done.measuring is not None:
        sensitivity = done.measuring.sensitivity
        parameters |= {
            "beta": settings.beta,
            "smoothing": settings.smoothing,
            "measure_every": done.measuring.every,
            "measure_repetitions": done.measuring.repetitions,
            "measure_noise": sensitivity.noise_multiplier,
            "measure_clip": sensitivity.clip_norm,
            "measure_rate": sensitivity.size / len(job.task),
            "measurements_planned": done.measuring.most,
            "measurements_begun": finished.side_releases_begun,
            "measure_noise_source": sensitivity.noise.description,
            "measure_control_numbers": sensitivity.controls.count,
            "measure_control_ratio": sensitivity.controls.ratio,
        }
    if cost is not None:
        parameters |= {
            "epsilon_without_measurements": finite(cost.training),
            "epsilon_share_of_measurements": cost.share,
        }
    return parameters


def _is_fixed(mode: LayerMode, static: Sequence[str]) -> bool:
    return mode in (LayerMode.ALL, LayerMode.NONE) or bool(static)


def _levels(job: TrainingJob) -> int | None:
    """The number of levels beside zero of luq-fp4; None for other formats."""
    settings = requested_settings(job.request)
    return getattr(format_of(settings).inputs, "levels", None) if settings.format is FormatName.LUQ_FP4 else None


def _shares(done: Quantization) -> list[float]:
    return [done.schedule.share(epoch.quantized) for epoch in done.epochs]


def _evidence(job: TrainingJob, done: Quantization) -> Iterator[Evidence]:
    """The fraction of multiply-adds in low precision, and the speedup on hardware that supports the format."""
    shares, name = _shares(done), requested_settings(job.request).format
    if not shares:
        return
    share = mean(shares)
    epochs = {f"epoch {epoch.number + 1}": part for epoch, part in zip(done.epochs, shares, strict=True)}
    yield Evidence(
        method="multiply-adds of the layers that may be quantized, counted; products of activations with each other "
        "are none of them",
        quantity="share of multiply-adds in low precision, mean over epochs",
        estimate=share,
        bound=Bound.NONE,
        samples={"layers": len(done.schedule.names)},
        details=epochs,
    )
    yield Evidence(
        method=f"a model, not a measurement: Amdahl's law, {name} {SPEEDS[name]:g} times as fast as full precision, "
        "and nothing but these products",
        quantity="times as fast, on hardware that has the format",
        estimate=speedup(share, name),
        bound=Bound.NONE,
    )


def _cost_evidence(cost: _Cost | None) -> Iterator[Evidence]:
    if cost is not None:
        yield Evidence(
            method="the ledger with the measurements and without",
            quantity="share of epsilon that measurements take",
            estimate=cost.share,
            bound=Bound.NONE,
            details={name: v for name, v in (("with", cost.whole), ("without", cost.training)) if math.isfinite(v)},
        )


def _warnings(cost: _Cost | None) -> Iterator[str]:
    if cost is not None and cost.share > _WARN_ABOVE:
        yield (
            f"the measurements take {100 * cost.share:.2g} % of epsilon; raise --measure-noise or --measure-every, or "
            "give --sensitivity synthetic, which takes none"
        )
