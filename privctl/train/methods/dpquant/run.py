"""A DPQuant run from its first step to the model on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from privctl.domain.progress import Progress
from privctl.randomness import NoiseSource
from privctl.reports.codec import encode_value
from privctl.train import run
from privctl.train.contribution.premises import Notify
from privctl.train.methods.dpquant.measurements import Measurements, measurements_of
from privctl.train.methods.dpquant.quantization import Measuring, Quantization
from privctl.train.methods.dpquant.report import amended
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity
from privctl.train.methods.dpquant.settings import QuantizedChoice, asked_of, bits_of
from privctl.train.public_seed import SEED_FILE, public_seed
from privctl.train.run import AT_ONCE, EpochCallback, Interrupts, MethodHooks, shared_source
from privctl.train.sampling import PoissonBatches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privctl.domain.report import PrivacyReport
    from privctl.parallel import Workers
    from privctl.train.loop import FinishedRun
    from privctl.train.prepare import TrainingJob


def run_training(
    job: TrainingJob,
    workers: Workers,
    progress: Progress,
    on_epoch: EpochCallback = lambda _: None,
    interrupts: Interrupts = AT_ONCE,
    planned: Callable[[QuantizedChoice], None] = lambda _: None,
    notify: Notify = lambda _: None,
) -> PrivacyReport | None:
    """As ``retrain.run.run_training``; ``planned`` hears of the layers before the first step."""
    request = job.request
    seed = public_seed(request, workers, asked_of(request).public_seed)
    made: list[Quantization] = []

    def precision(settled: TrainingJob, network: nn.Module, device: torch.device) -> Quantization:
        bits = bits_of(settled, network, device, seed)
        planned(bits)
        made.append(_quantization(settled, bits, network, device, workers))
        return made[0]

    def amend(report: PrivacyReport, finished: FinishedRun) -> PrivacyReport:
        return amended(report, job, made[0], finished, seed)

    hooks = MethodHooks(facts=_facts(job), files={SEED_FILE: seed.hex().encode()}, precision=precision, amend=amend)
    return run.run_training(job, workers, progress, on_epoch, interrupts, hooks, notify)


def measurements(job: TrainingJob) -> Measurements | None:
    """What the run measures, if anything."""
    return measurements_of(job.request, len(job.task), job.recipe.steps, job.recipe.sample_rate)


def _quantization(
    job: TrainingJob, bits: QuantizedChoice, network: nn.Module, device: torch.device, workers: Workers
) -> Quantization:
    asked, plan = asked_of(job.request), measurements(job)
    measuring = None
    if plan is not None:
        measuring = Measuring(
            sensitivity=_sensitivity(job, bits, plan, network, device, workers),
            every=plan.every,
            repetitions=plan.repetitions,
            most=plan.releases,
            smoothing=asked.smoothing,
        )
    return Quantization(
        layers=bits.layers,
        schedule=bits.schedule,
        task=job.task,
        epoch_steps=job.recipe.steps_per_epoch,
        measuring=measuring,
    )


def _sensitivity(
    job: TrainingJob,
    bits: QuantizedChoice,
    plan: Measurements,
    network: nn.Module,
    device: torch.device,
    workers: Workers,
) -> LayerSensitivity:
    """With coins and noise of its own, under keys that live as long as this process."""
    recipe = job.recipe

    def losses(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bf16):
            return job.task.losses(network, batch)

    return LayerSensitivity(
        network=network,
        layers=bits.layers,
        names=bits.schedule.names,
        task=job.task,
        losses=losses,
        batches=PoissonBatches(len(job.task), plan.sample_rate, shared_source(workers)),
        noise=NoiseSource(),
        noise_multiplier=plan.noise(recipe.noise_multiplier),
        clip_norm=plan.clip_norm,
        size=plan.size,
        micro_examples=recipe.micro_examples,
        micro_tokens=recipe.micro_tokens,
        workers=workers,
        device=device,
    )


def _facts(job: TrainingJob) -> dict[str, Any]:
    """What must not change between the parts of one run, beside the facts of every run."""
    asked = asked_of(job.request)
    found = encode_value({name: getattr(asked, name) for name in asked.__slots__ if name != "public_seed"})
    given = asked.public_seed
    return {
        **{f"dpquant_{name}": value for name, value in found.items()},
        "dpquant_public_seed": None if given is None else given.hex(),
        "epsilon": job.request.budget.epsilon,
        "delta": job.delta,
    }
