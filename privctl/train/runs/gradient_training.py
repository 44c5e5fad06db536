"""Training by gradients, with the method's clipping and noise, from the first step to the model on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from privctl.domain.events import Batches
from privctl.domain.progress import Progress
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.models.language import choose_device
from privctl.models.normalisation import require_initial
from privctl.parallel import Workers, own_device
from privctl.storage.atomic import PendingFile
from privctl.train.contribution.network_state import seed_dropout_secretly
from privctl.train.logs.live import steps_ledger
from privctl.train.logs.observed import observed
from privctl.train.logs.withheld import staged_private
from privctl.train.network.adapters import merged
from privctl.train.network.half_precision import widen
from privctl.train.preparation.budget import numbers_of_step
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.signal_to_noise import noise_warnings, signal_to_noise
from privctl.train.release.adapter import released_adapter
from privctl.train.release.model import save_network
from privctl.train.release.reload_check import reference_answers
from privctl.train.release.report import report_for, zeroed_warning
from privctl.train.runs.placing import gather_network, lockstep_workers, place_network
from privctl.train.runs.setup import measure_held_out, prepared, rehearsed_network, shared_source
from privctl.train.secrets.posteriors import CheckedSecrets, check_secrets
from privctl.train.settings.session import Session
from privctl.train.state.resuming import mention_saved_state, open_folder, require_steps_left
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.contribution import (
    clipping_of,
    rounding_warning,
    run_gradient_test,
    run_quantized_test,
)
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise, noise_for
from privctl.train.steps.loop import FinishedRun, Trainer
from privctl.train.steps.precision import FullPrecision, Precision
from privctl.train.steps.public_gradients import PublicRecords
from privctl.train.steps.sampling import (
    BallsAndBins,
    BatchSource,
    CyclicPoisson,
    FixedOrder,
    Passes,
    PoissonBatches,
    PublicBatches,
    TruncatedPoisson,
    WeightedBatches,
)
from privctl.train.steps.step_noise import correlated

#: Builds a run's precision from its job and its network, which is already on its device.
PrecisionOf = Callable[[TrainingJob, nn.Module, torch.device], Precision]
#: Draws canaries for a network that is already on its device; None in processes that need none.
CanariesOf = Callable[[TrainingJob, nn.Module, Workers], GradientCanaries | None]
#: Stages files that get their final names together with the model.
Beside = Callable[[TrainingJob, nn.Module], AbstractContextManager[list[PendingFile]]]
#: Extends the common training report by one method's part.
Amend = Callable[[PrivacyReport, FinishedRun], PrivacyReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodHooks:
    """What a method adds to training by gradients.

    ``files`` are written to the run's folder, ``precision`` builds its precision, ``amend`` adds its part of the
    report, ``announce`` makes the sentence shown at the start, ``canaries`` draws gradient canaries, and ``beside``
    stages files next to the model. With ``holds_base``, frozen weights may be kept in bfloat16.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    precision: PrecisionOf = lambda job, network, device: FullPrecision()
    amend: Amend = lambda report, finished: report
    announce: Callable[[TrainingJob], str] = lambda job: announced(job)
    canaries: CanariesOf = lambda job, network, workers: None
    beside: Beside = lambda job, network: nullcontext([])
    holds_base: bool = True


NO_HOOKS = MethodHooks()


def train_by_gradients(job: TrainingJob, session: Session, hooks: MethodHooks = NO_HOOKS) -> PrivacyReport | None:
    """Train, save the model and its report, and return the report (None except in the main process).

    Until then, the state of the run is kept in a folder next to the output. Raises PrivctlError if the run cannot
    continue; its saved state is kept.
    """
    request, recipe, workers = job.request, job.recipe, lockstep_workers(job.request, session.workers)
    if announcement := hooks.announce(job):
        session.notify(announcement)
    if job.model.by_main is not None:
        session.notify(
            f"the main process reads the whole model and hands out shares of it: {job.model.by_main!r} is not the same "
            "tensor in its files and in the network"
        )
    secrets = _checked_secrets(job, workers, session.progress)
    device = own_device(choose_device(request.device))
    network = rehearsed_network(job, workers, device)
    network, spare = place_network(network, job, workers, device, hold=recipe.bf16 and hooks.holds_base)
    network = prepared(network, job)
    for warning in _noise_warnings(job, network):
        session.notify(warning)
    # Before the folder is made, because these tests may refuse the run.
    if request.method.clips:
        job = run_gradient_test(job, network, device, session.notify, workers)
    precision = hooks.precision(job, network, device)
    job = run_quantized_test(job, network, device, precision, session.notify, workers)
    for warning in rounding_warning(job):
        session.notify(warning)
    seed_dropout_secretly(network)
    canaries = hooks.canaries(job, network, workers)
    folder, start = open_folder(job, workers, hooks.files)
    noise = correlated(noise_for(device), recipe.coefficients, recipe.matrix) if request.method.noised else None
    trainer = Trainer(
        network=network,
        task=job.task,
        recipe=job.recipe,  # not ``recipe``: the test may have lowered the micro-batch size
        clipping=clipping_of(job) if request.method.clips else None,
        batches=_batches(job, workers, folder),
        noise=noise,
        workers=workers,
        device=device,
        precision=precision,
        folder=folder,
        canaries=canaries,
        public=public_records(job),
        promoted=None if job.contribution is None else job.contribution.promoted,
        evaluate=lambda trained: measure_held_out(job, trained, device, workers, session.on_epoch),
        first_look=lambda untrained: measure_held_out(job, untrained, device, workers),
        notify=session.notify,
        may_pass_twice=job.may_pass_twice,
    )
    # With noise, the position in the schedule is the number of steps begun, as in the loop.
    done = 0 if start is None else start.steps_begun if request.method.noised else start.updates
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    spent, released = steps_ledger(job), numbers_of_step(request, trained)
    with (
        folder or nullcontext(),
        observed(job, session, device=device, spent=spent, done=done, folder=folder, trained=released) as observers,
    ):
        trainer.advance, trainer.watch = observers
        if request.method.noised:
            require_steps_left(start, recipe.steps, session.notify)
        with session.interrupts as stop:
            finished = trainer.run(start, stop)
        network, job = gather_network(network, job, spare, workers)

        def save() -> PrivacyReport:
            with mention_saved_state(folder, job):
                if not request.model.adapter_only:
                    widen(network)
                return save_trained(job, network, finished, noise, secrets, hooks)

        report = workers.in_main(save)
    if folder is not None and (left := folder.remove()):
        session.notify(left)
    return report


def _noise_warnings(job: TrainingJob, network: nn.Module) -> Iterator[str]:
    """A warning if the noise is so large that nothing or little can be learned."""
    if job.request.method.noised:
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        yield from noise_warnings(signal_to_noise(job.recipe, trained, planned=job.plan is not None))


def _checked_secrets(job: TrainingJob, workers: Workers, progress: Progress) -> CheckedSecrets | None:
    """The plan's numbers, checked before any budget is spent; None in other processes, which write no report."""
    plan = job.plan
    if plan is None:
        return None
    return workers.in_main(lambda: check_secrets(plan, job.recipe.noise_multiplier, progress))


def save_trained(
    job: TrainingJob,
    network: nn.Module,
    finished: FinishedRun,
    noise: GradientNoise | None,
    secrets: CheckedSecrets | None,
    hooks: MethodHooks,
) -> PrivacyReport:
    """Write the model, its report, the private file and the hooks' files together, once the model was checked.

    Raises as ``save_network`` does.
    """
    if job.model.converted is not None:
        require_initial(job.model.network, job.model.frozen_norms)
    reference = reference_answers(job.model, network)  # of the evaluated network, before adapters are merged
    with (
        staged_private(job.request, finished.history, list(zeroed_warning(finished))) as private,
        hooks.beside(job, network) as more,
    ):
        return save_network(
            merged(network, job.request.model),
            job.model.companion,
            job.request.output,
            lambda place, outputs: hooks.amend(report_for(job, finished, noise, place, outputs, secrets), finished),
            reference=reference,
            adapter=released_adapter(network, job.model, job.request.model),
            public=job.request.method.private,
            force=job.request.force,
            beside=[*private, *more],
        )


def _batches(job: TrainingJob, workers: Workers, folder: RunFolder | None) -> BatchSource:
    if job.plan is not None:
        return WeightedBatches(job.plan.protection.probabilities, shared_source(workers))
    if job.recipe.batches is Batches.BALLS_AND_BINS:
        # A resumed run must not redraw the pass that it stopped in, as no record may take part in it twice.
        key = None if folder is None or not workers.is_main else folder.batch_key()
        return BallsAndBins(len(job.task), job.recipe.steps_per_epoch, shared_source(workers, key))
    if job.recipe.batches is Batches.CYCLIC_POISSON:
        # Nor may it redraw the parts, as a record could take part again within ``bands`` steps.
        key = None if folder is None or not workers.is_main else folder.batch_key()
        return CyclicPoisson(len(job.task), job.recipe.bands, job.recipe.sample_rate, shared_source(workers, key))
    if job.recipe.batches is Batches.FIXED_ORDER:
        return FixedOrder(len(job.task), job.recipe.steps_per_epoch, job.request.seed)
    if (largest := job.recipe.largest_batch) is not None:
        return TruncatedPoisson(len(job.task), job.recipe.sample_rate, largest, shared_source(workers))
    if job.request.method.noised:
        return PoissonBatches(len(job.task), job.recipe.sample_rate, shared_source(workers))
    return Passes(len(job.task), job.request.batch_size, job.request.seed)


def public_records(job: TrainingJob) -> PublicRecords | None:
    """The public records that each step mixes in; None if there are none or their weight is 0."""
    mixing = job.recipe.public
    if mixing is None or job.public is None or not mixing.weight:
        return None
    batches = PublicBatches(len(job.public), mixing.batch_size, job.request.seed)
    return PublicRecords(task=job.public, batches=batches, weight=mixing.weight)


def announced(job: TrainingJob) -> str:
    """A sentence with the run's steps, noise and plan of protection."""
    recipe = job.recipe
    sentence = counted(recipe.steps, "step")
    if job.delta is not None:
        sentence += f", noise multiplier {recipe.noise_multiplier:.6g} at delta {job.delta:g}"
    sentence += f", learning rate {recipe.learning_rate:g}"
    if (mixing := recipe.public) is not None:
        sentence += (
            f"; {mixing.weight:g} times the mean gradient of {counted(mixing.batch_size, 'public record')} a step"
        )
    if recipe.largest_batch is not None:
        sentence += f", {recipe.largest_batch} examples at most in a batch"
    if recipe.adaptive is not None:
        sentence += (
            f"; the clip norm follows quantile {recipe.adaptive.quantile:g} of the gradients' norms from "
            f"{recipe.clip_norm:g}, by counts with noise of standard deviation {recipe.adaptive.count_stddev:g}, for "
            f"which the sum's noise is {recipe.sum_noise_multiplier:.6g} clip norms"
        )
    if job.plan is not None:
        protection = job.plan.protection
        sentence += (
            f"; {counted(len(protection.ids), 'secret')}; {recipe.batch_size:g} expected records per step, "
            f"{recipe.steps * recipe.sample_rate:.3g} epochs in all; each record is drawn with probability at most "
            f"{protection.largest_probability:.3g}"
        )
    return sentence
