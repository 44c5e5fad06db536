"""A DPQuant run from its first step to the model on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from privctl.data.recorded import recorded_files, require_same
from privctl.domain.shown import counted
from privctl.models.tasks.base import Task
from privctl.parallel import ALONE
from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import rounding_margin
from privctl.train.methods.dpquant.choice import QuantizedChoice, quantized_choice, requested_settings, tokens_of
from privctl.train.methods.dpquant.measurements import Measurements, measurements_of
from privctl.train.methods.dpquant.quantization import ExactMeasuring, Measuring, Quantization
from privctl.train.methods.dpquant.report import amend_report
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity, Losses, PublicSensitivity
from privctl.train.methods.dpquant.settings import Sensitivity
from privctl.train.methods.dpquant.synthetic_sensitivity import SyntheticSensitivity, synthetic_inputs
from privctl.train.preparation.prepare import other_task
from privctl.train.preparation.reading import require_none_private
from privctl.train.runs.canary_run import with_canaries
from privctl.train.runs.dry_run import plan_gradients
from privctl.train.runs.gradient_training import MethodHooks, train_by_gradients
from privctl.train.runs.placing import lockstep_workers
from privctl.train.runs.setup import shared_source
from privctl.train.settings.session import Session
from privctl.train.state.public_seed import SEED_FILE, public_seed
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import PoissonBatches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.steps.loop import FinishedRun


def run_dpquant(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Like ``train_by_gradients``, with some layers in low precision.

    Raises CommandError if a public record that layers are measured on is also private, InputError if the file of public
    records changes while it is read.
    """
    request = job.request
    public = requested_settings(request).public_records
    before = () if public is None else recorded_files(public)
    if public is not None:
        require_none_private(request, public, "--measure-on", session.workers)
    seed = public_seed(request, session.workers, requested_settings(request).public_seed)
    quantizations: list[Quantization] = []

    def precision(settled: TrainingJob, network: nn.Module, device: torch.device) -> Quantization:
        bits = quantized_choice(settled, network, device, seed)
        session.notify(_announcement(settled, bits))
        quantizations.append(_quantization(settled, bits, network, device, session))
        if public is not None:
            session.workers.in_main(lambda: require_same(public, before))
        return quantizations[0]

    def amend(report: PrivacyReport, finished: FinishedRun) -> PrivacyReport:
        return amend_report(report, job, quantizations[0], finished, seed, public=before)

    hooks = MethodHooks(
        files={SEED_FILE: seed.hex().encode()},
        precision=precision,
        amend=amend,
        announce=lambda _: "",
        holds_base=False,
    )
    return train_by_gradients(job, session, with_canaries(job, hooks))


def plan_dpquant(job: TrainingJob) -> TrainingPlan:
    """Like ``plan_gradients``, with the layers of a first epoch in low precision. Measurements are not timed.

    Raises CommandError as ``run_dpquant`` does.
    """
    if (public := requested_settings(job.request).public_records) is not None:
        require_none_private(job.request, public, "--measure-on", ALONE)

    def precision(rehearsed: TrainingJob, network: nn.Module, device: torch.device) -> Quantization:
        bits = quantized_choice(rehearsed, network, device, os.urandom(16))
        return Quantization(layers=bits.layers, schedule=bits.schedule, task=rehearsed.task, **_epochs(job))

    return plan_gradients(job, precision)


def measurements(job: TrainingJob) -> Measurements | None:
    """The private measurements of the run; None if it makes none."""
    if not job.request.method.private:
        return None
    return measurements_of(job.request, len(job.task), job.recipe.steps, job.recipe.sample_rate)


def _epochs(job: TrainingJob) -> dict[str, Any]:
    """The fields of ``Quantization`` that say when epochs end, as in the training loop."""
    rate = job.recipe.sample_rate if job.recipe.noise_multiplier else None
    return {"epoch_steps": job.recipe.steps_per_epoch, "epoch_rate": rate}


def _quantization(
    job: TrainingJob, bits: QuantizedChoice, network: nn.Module, device: torch.device, session: Session
) -> Quantization:
    settings, plan = requested_settings(job.request), measurements(job)
    measuring = None
    if plan is not None:
        measuring = Measuring(
            sensitivity=_sensitivity(job, bits, plan, network, device, session),
            every=plan.every,
            repetitions=plan.repetitions,
            most=plan.releases,
            smoothing=settings.smoothing,
        )
    return Quantization(
        layers=bits.layers,
        schedule=bits.schedule,
        task=job.task,
        **_epochs(job),
        measuring=measuring,
        exact=_exact(job, bits, network, device, session),
    )


def _exact(
    job: TrainingJob, bits: QuantizedChoice, network: nn.Module, device: torch.device, session: Session
) -> ExactMeasuring | None:
    """The measurements without private records; None if the run makes none."""
    settings = requested_settings(job.request)
    if settings.measured is Sensitivity.SYNTHETIC:
        return ExactMeasuring(sensitivity=_synthetic(job, bits, network, device, session), every=settings.every)
    if settings.public_records is None:
        return None
    task = other_task(job.request, job.model, settings.public_records)
    sensitivity = PublicSensitivity(
        network=network,
        layers=bits.layers,
        names=bits.schedule.names,
        task=task,
        losses=_losses(job, task, network, device),
        clip_norm=settings.clip,
        micro=_micro(job, task, device, session),
        device=device,
    )
    return ExactMeasuring(sensitivity=sensitivity, every=settings.every)


def _synthetic(
    job: TrainingJob, bits: QuantizedChoice, network: nn.Module, device: torch.device, session: Session
) -> SyntheticSensitivity:
    task = synthetic_inputs(job.task, tokens_of(job))
    return SyntheticSensitivity(
        network=network,
        layers=bits.layers,
        names=bits.schedule.names,
        task=task,
        losses=_losses(job, task, network, device),
        unit=requested_settings(job.request).clip,
        micro=_micro(job, task, device, session),
        workers=lockstep_workers(job.request, session.workers),
        device=device,
    )


def _losses(job: TrainingJob, task: Task, network: nn.Module, device: torch.device) -> Losses:
    def losses(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=job.recipe.bf16):
            return task.losses(network, batch)

    return losses


def _micro(job: TrainingJob, task: Task, device: torch.device, session: Session) -> MicroBatches:
    return MicroBatches(
        task=task,
        examples=job.recipe.micro_examples,
        tokens=job.recipe.micro_tokens,
        device=device,
        notify=session.notify,
        workers=lockstep_workers(job.request, session.workers),
    )


def _sensitivity(
    job: TrainingJob,
    bits: QuantizedChoice,
    plan: Measurements,
    network: nn.Module,
    device: torch.device,
    session: Session,
) -> LayerSensitivity:
    """The private measurements, with their own sampling and noise under keys that are not saved."""
    recipe = job.recipe
    return LayerSensitivity(
        network=network,
        layers=bits.layers,
        names=bits.schedule.names,
        task=job.task,
        losses=_losses(job, job.task, network, device),
        batches=PoissonBatches(len(job.task), plan.sample_rate, shared_source(session.workers)),
        noise=NoiseSource(),
        noise_multiplier=plan.noise(recipe.noise_multiplier),
        clip_norm=plan.clip_norm,
        margin=rounding_margin(reduced=recipe.bf16),
        size=plan.size,
        micro=_micro(job, job.task, device, session),
        workers=lockstep_workers(job.request, session.workers),
        device=device,
    )


def _announcement(job: TrainingJob, bits: QuantizedChoice) -> str:
    recipe, plan, schedule = job.recipe, measurements(job), bits.schedule
    sentence = counted(recipe.steps, "step")
    if job.delta is not None:
        sentence += f", noise multiplier {recipe.noise_multiplier:.6g} at delta {job.delta:g}"
    amount = f"{schedule.compute_target:g} of the multiply-adds" if schedule.count is None else f"{schedule.count}"
    if schedule.static:
        amount = str(len(schedule.static))
    elif schedule.mode in ("all", "none"):
        amount = str(schedule.mode)
    sentence += f"; {amount} of {counted(len(schedule.names), 'layer')} in {requested_settings(job.request).format}"
    if plan is not None:
        sentence += (
            f"; {counted(plan.releases, 'measurement')} on {plan.size:.3g} examples expected, noise multiplier "
            f"{plan.noise(recipe.noise_multiplier):.6g}"
        )
    return sentence
