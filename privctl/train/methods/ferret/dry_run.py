"""The dry run of FERRET: groups, masks and noise as the run would have them, and steps on synthetic records."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from privctl.accounting.ledger import epsilon_bound
from privctl.models.language import choose_device
from privctl.parallel import Workers, own_device
from privctl.randomness import NoiseSource
from privctl.train.directional import Derivatives, FiredGroup, direction
from privctl.train.methods.ferret.amounts import PrivateExamples
from privctl.train.methods.ferret.groups import trainable
from privctl.train.methods.ferret.planning import (
    IN_NATS,
    FerretPlan,
    derivative_stages,
    learning_warnings,
    plan_for,
    signal_of,
)
from privctl.train.methods.ferret.settings import FerretSettings, ReleaseKind
from privctl.train.network.adapters import adapted
from privctl.train.network.memory import peak_memory
from privctl.train.runs.dry_run import (
    NOISE_MULTIPLIER,
    FixedBatches,
    Stopwatch,
    SyntheticRecords,
    compared_budgets,
    outline,
    synthetic_records,
    with_epsilon,
)
from privctl.train.runs.setup import prepared
from privctl.train.state.public_seed import SEED_BYTES
from privctl.train.steps.contribution import run_contribution_test

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest

#: The quantity that a budget determines, by the kind of release.
_AMOUNTS = {
    ReleaseKind.GAUSSIAN: NOISE_MULTIPLIER,
    ReleaseKind.RANDOMIZED_RESPONSE: "log-odds of a sign",
    ReleaseKind.PUBLISHED: "fire probability",
    ReleaseKind.DITHERED: "fire probability",
}
#: The number of timed steps, after one for warm-up.
_TIMED = 2


def plan_ferret(job: TrainingJob) -> TrainingPlan:
    """Like ``dry_run.plan_gradients``, for a run that uses derivatives, with a fresh seed unless one is given."""
    request = job.request
    device = own_device(choose_device(request.device))
    network = adapted(job.model.network, request.model, request.seed).to(device)
    settings = request.settings_as(FerretSettings)
    seed = settings.public_seed or os.urandom(SEED_BYTES)
    plan = plan_for(job, network, seed)
    engine = Derivatives(network, settings.derivatives)
    network = prepared(network, job)
    warnings: list[str] = []
    clips = plan.publisher(job, NoiseSource()).clip_norm is not None
    stages = derivative_stages(job, plan, engine, device) if clips else []
    job = run_contribution_test(job, network, device, stages, warnings.append)
    warnings += learning_warnings(plan, job)
    seconds = _seconds(job, plan, network, engine, device)
    ratio = signal_of(plan, job)
    whole = outline(
        job,
        seconds=seconds,
        memory=peak_memory(device),
        device=device,
        trained=sum(plan.sizes),
        warnings=warnings,
    )
    ledger = plan.ledger
    bound = None if ledger is None or job.delta is None else epsilon_bound(ledger, job.delta)
    return replace(
        whole,
        amount_name=_AMOUNTS[plan.release],
        amount=_amount(plan),
        epsilon=request.budget.epsilon or bound,
        delta=None if request.budget.epsilon is not None and plan.release in IN_NATS else job.delta,
        signal=None if ratio is None else ratio.along,
        per_number=None if ratio is None else ratio.in_length,
        budgets=compared_budgets(
            request.budget.epsilon,
            lambda epsilon: _amount(plan_for(replace(job, request=_asking(job, epsilon)), network, seed)),
        ),
    )


def _asking(job: TrainingJob, epsilon: float) -> RetrainRequest:
    request = with_epsilon(job.request, epsilon)
    return replace(request, settings=replace(request.settings_as(FerretSettings), bit_epsilon=None))


def _amount(plan: FerretPlan) -> float | None:
    if plan.release is ReleaseKind.GAUSSIAN:
        return plan.noise_multiplier
    return plan.bit_epsilon if plan.bit_epsilon is not None else plan.masks.fire_probability


def _seconds(
    job: TrainingJob, plan: FerretPlan, network: nn.Module, engine: Derivatives, device: torch.device
) -> float:
    """The expected seconds of all steps that publish; silent steps take almost no time."""
    records: SyntheticRecords = synthetic_records(job)
    active_steps = [step for step in range(plan.masks.steps) if plan.masks.fired(step)][: 1 + _TIMED]
    if not active_steps:
        return 0.0
    source = PrivateExamples(
        network=network,
        task=records.task,
        dimensions=plan.dimensions,
        recipe=job.recipe,
        batches=FixedBatches(records),
        engine=engine,
        publisher=plan.publisher(job, NoiseSource()),
        workers=Workers(),
        device=device,
    )
    shapes = {name: p.shape for name, p in trainable(network).items()}
    watch = Stopwatch(device)
    for step_index, step in enumerate(active_steps):
        fired = [FiredGroup(index=index, parameters=plan.groups[index]) for index in plan.masks.fired(step)]
        along = [
            direction(plan.masks.seed, step, group.index, {n: shapes[n] for n in group.parameters}, device)
            for group in fired
        ]
        source.amounts(step_index, fired, along)
        watch()
    usual = min(watch.seconds[1:] or watch.seconds)
    return plan.masks.active_steps * usual * job.recipe.batch_size / records.usual
