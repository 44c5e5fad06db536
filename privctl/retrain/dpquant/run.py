"""A DPQuant run from its first step to the model on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from privctl.codec import encode_value
from privctl.randomness import NoiseSource
from privctl.retrain import run
from privctl.retrain.contribution import Told
from privctl.retrain.dpquant.measurements import Measurements, measurements_of
from privctl.retrain.dpquant.plan import Bits, asked_of, bits_of
from privctl.retrain.dpquant.report import amended
from privctl.retrain.public_seed import SEED_FILE, public_seed
from privctl.retrain.run import AT_ONCE, Interrupts, Listener, Progress, Way, shared_source
from privctl.training.batches import PoissonBatches
from privctl.training.dpquant.quantization import Measuring, Quantization
from privctl.training.dpquant.sensitivity import Sensitivity

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privctl.domain.report import PrivacyReport
    from privctl.parallel import Crew
    from privctl.retrain.prepare import Job
    from privctl.training.loop import Finished


def carry_out(
    job: Job,
    crew: Crew,
    progress: Progress,
    heard: Listener = lambda _: None,
    interrupts: Interrupts = AT_ONCE,
    planned: Callable[[Bits], None] = lambda _: None,
    told: Told = lambda _: None,
) -> PrivacyReport | None:
    """As ``retrain.run.carry_out``; ``planned`` hears of the layers before the first step."""
    request = job.request
    seed = public_seed(request, crew, asked_of(request).public_seed)
    made: list[Quantization] = []

    def precision(settled: Job, network: nn.Module, device: torch.device) -> Quantization:
        bits = bits_of(settled, network, device, seed)
        planned(bits)
        made.append(_quantization(settled, bits, network, device, crew))
        return made[0]

    def amend(report: PrivacyReport, finished: Finished) -> PrivacyReport:
        return amended(report, job, made[0], finished, seed)

    way = Way(facts=_facts(job), files={SEED_FILE: seed.hex().encode()}, precision=precision, amend=amend)
    return run.carry_out(job, crew, progress, heard, interrupts, way, told)


def measurements(job: Job) -> Measurements | None:
    """What the run measures, if anything."""
    return measurements_of(job.request, len(job.task), job.recipe.steps, job.recipe.sample_rate)


def _quantization(job: Job, bits: Bits, network: nn.Module, device: torch.device, crew: Crew) -> Quantization:
    asked, plan = asked_of(job.request), measurements(job)
    measuring = None
    if plan is not None:
        measuring = Measuring(
            sensitivity=_sensitivity(job, bits, plan, network, device, crew),
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
    job: Job, bits: Bits, plan: Measurements, network: nn.Module, device: torch.device, crew: Crew
) -> Sensitivity:
    """With coins and noise of its own, under keys that live as long as this process."""
    recipe = job.recipe

    def losses(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bf16):
            return job.task.losses(network, batch)

    return Sensitivity(
        network=network,
        layers=bits.layers,
        names=bits.schedule.names,
        task=job.task,
        losses=losses,
        batches=PoissonBatches(len(job.task), plan.sample_rate, shared_source(crew)),
        noise=NoiseSource(),
        noise_multiplier=plan.noise(recipe.noise_multiplier),
        clip_norm=plan.clip_norm,
        size=plan.size,
        micro_examples=recipe.micro_examples,
        micro_tokens=recipe.micro_tokens,
        crew=crew,
        device=device,
    )


def _facts(job: Job) -> dict[str, Any]:
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
