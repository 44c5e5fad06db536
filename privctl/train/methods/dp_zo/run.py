"""A DP-ZO run from its first step to the model on disk, and its dry run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from privctl.models.language import choose_device
from privctl.parallel import Workers, own_device
from privctl.randomness import NoiseSource
from privctl.reports.files import pending_artifact
from privctl.train.logs.live import steps_ledger
from privctl.train.logs.observed import observed
from privctl.train.methods.dp_zo.differences import LossDifferences
from privctl.train.methods.dp_zo.grid import MovableWeights
from privctl.train.methods.dp_zo.moves import numbers_path
from privctl.train.methods.dp_zo.premises import one_at_a_time, with_directions, with_repeatability_test
from privctl.train.methods.dp_zo.settings import DpZoSettings
from privctl.train.methods.dp_zo.trainer import ZerothOrderTrainer
from privctl.train.network.adapters import adapted
from privctl.train.network.memory import peak_memory
from privctl.train.network.tensor_bytes import TensorBytes, bytes_of
from privctl.train.preparation.places import report_path
from privctl.train.preparation.signal_to_noise import SignalToNoise, noise_warnings
from privctl.train.runs.dry_run import FixedBatches, Stopwatch, outline, private_fields, synthetic_records
from privctl.train.runs.gradient_training import MethodHooks, announced, save_trained
from privctl.train.runs.setup import measure_held_out, rehearsed_network, shared_source
from privctl.train.settings.session import Session
from privctl.train.state.public_seed import SEED_FILE, public_seed
from privctl.train.state.resuming import mention_saved_state, open_folder, require_steps_left
from privctl.train.steps.contribution import rounding_warning, run_contribution_test
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.sampling import PoissonBatches

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privctl.domain.progress import Notify
    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.storage.atomic import PendingFile
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.steps.loop import FinishedRun

#: Steps of a dry run on the longest records, and in all: two on usual records and two on empty batches follow.
_WARM, _STEPS = 1, 5


def run_dp_zo(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Like ``train_by_gradients``, for a run without gradients."""
    request, workers, job = job.request, session.workers, one_at_a_time(job)
    settings = request.settings_as(DpZoSettings)
    session.notify(_announcement(job, settings))
    device = own_device(choose_device(request.device))
    network = rehearsed_network(job, workers, device).to(device)
    seed = public_seed(request, workers, settings.public_seed)
    job = _tested(job, network, device, session.notify)
    for warning in (*noise_warnings(_signal(job)), *rounding_warning(job)):
        session.notify(warning)
    folder, start = open_folder(job, workers, {SEED_FILE: seed.hex().encode()})
    noise = KeyedNoise(NoiseSource())
    trainer = ZerothOrderTrainer(
        network=network,
        recipe=job.recipe,
        differences=_differences(job, network, device, seed, session.notify),
        batches=PoissonBatches(len(job.task), job.recipe.sample_rate, shared_source(workers)),
        noise=noise,
        workers=workers,
        folder=folder,
        evaluate=lambda trained: measure_held_out(job, trained, device, workers, session.on_epoch),
        first_look=lambda untrained: measure_held_out(job, untrained, device, workers),
    )
    done, spent = 0 if start is None else start.steps_begun, steps_ledger(job)
    with (
        folder or nullcontext(),
        observed(
            job, session, device=device, spent=spent, done=done, folder=folder, trained=settings.directions
        ) as observers,
    ):
        trainer.advance, trainer.watch = observers
        require_steps_left(start, job.recipe.steps, session.notify)
        with session.interrupts as stop:
            finished = trainer.run(start, stop)

        def save() -> PrivacyReport:
            with mention_saved_state(folder, job), _staged(job, trainer) as numbers:

                def amend(report: PrivacyReport, _: FinishedRun) -> PrivacyReport:
                    place = report_path(request.output)
                    kept = tuple(pending_artifact("numbers", pending, place) for pending in numbers)
                    report = replace(report, outputs=(*report.outputs, *kept))
                    return with_directions(report, settings, seed)

                hooks = MethodHooks(amend=amend, beside=lambda job, network: nullcontext(numbers))
                return save_trained(job, network, finished, noise, None, hooks)

        report = workers.in_main(save)
    if folder is not None and (left := folder.remove()):
        session.notify(left)
    return report


@contextmanager
def _staged(job: TrainingJob, trainer: ZerothOrderTrainer) -> Iterator[list[PendingFile]]:
    """The file of released numbers, before it gets its final name; none in a search, which only releases a model."""
    if job.recipe.search is not None:
        yield []
        return
    with trainer.moves.staged(numbers_path(job.request.output)) as numbers:
        yield [numbers]


def plan_dp_zo(job: TrainingJob) -> TrainingPlan:
    """Like ``dry_run.plan_gradients``, for a run without gradients."""
    records, job = synthetic_records(job), one_at_a_time(job)  # times several records, which pass one by one
    request, recipe = job.request, job.recipe
    device = own_device(choose_device(request.device))
    network = adapted(job.model.network, request.model, request.seed, device).to(device)
    warnings: list[str] = []
    job = _tested(job, network, device, warnings.append)
    ratio = _signal(job)
    warnings += [*noise_warnings(ratio), *rounding_warning(job)]
    differences = _differences(replace(job, task=records.task), network, device, b"plan", warnings.append)
    watch, tensors = Stopwatch(device), TensorBytes()

    def ended(_: float) -> None:
        watch()
        if len(watch.seconds) == _WARM:
            tensors.stop()

    trainer = ZerothOrderTrainer(
        network=network,
        # The learning rate is so small that the weights do not change, whatever the noise.
        recipe=replace(recipe, steps=_STEPS, learning_rate=1e-30, warmup_steps=0),
        differences=differences,
        batches=FixedBatches(records, _WARM),
        noise=KeyedNoise(NoiseSource()),
        workers=Workers(),
        advance=ended,
    )
    if device.type == "cpu":
        tensors.start()
    try:
        trainer.run()
    finally:
        tensors.stop()
    on_records, on_none = min(watch.seconds[_WARM : _WARM + 2]), min(watch.seconds[_WARM + 2 :])
    per_record = max(0.0, on_records - on_none) / records.usual
    plan = outline(
        job,
        seconds=recipe.steps * (on_none + per_record * recipe.batch_size),
        memory=peak_memory(device),
        device=device,
        trained=differences.weights.numbers,
        warnings=warnings,
    )
    on_gpu = bytes_of(network) + tensors.most if device.type == "cpu" else None
    return replace(plan, gpu_memory=on_gpu, **{**private_fields(job, ratio), "per_number": None})


def _announcement(job: TrainingJob, settings: DpZoSettings) -> str:
    numbers = "one number" if settings.directions == 1 else f"{settings.directions} numbers"
    return f"{announced(job)}; each step releases {numbers}"


def _signal(job: TrainingJob) -> SignalToNoise:
    """The ratio for a single number: only released numbers have noise, regardless of the number of weights."""
    recipe = job.recipe
    return SignalToNoise(
        steps=recipe.steps, batch=recipe.batch_size, noise_multiplier=recipe.noise_multiplier, numbers=1
    )


def _tested(job: TrainingJob, network: nn.Module, device: torch.device, notify: Notify) -> TrainingJob:
    """The job with its contribution tests. Raises as ``run_contribution_test`` and ``with_repeatability_test`` do."""
    return with_repeatability_test(run_contribution_test(job, network, device, [], notify), network, device)


def _differences(
    job: TrainingJob, network: nn.Module, device: torch.device, seed: bytes, notify: Notify
) -> LossDifferences:
    settings = job.request.settings_as(DpZoSettings)
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    return LossDifferences(
        network=network,
        task=job.task,
        weights=MovableWeights(trained, seed, settings.perturbation),
        directions=settings.directions,
        perturbation=settings.perturbation,
        clip_norm=job.recipe.clip_norm,
        device=device,
        notify=notify,
    )
