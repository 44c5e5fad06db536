"""A FERRET run from its first step to the model and its stream on disk."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from privctl.models.language import choose_device
from privctl.models.normalisation import require_initial
from privctl.parallel import Workers, own_device
from privctl.randomness import NoiseSource
from privctl.reports.files import pending_artifact
from privctl.train.clipping.products import full_precision
from privctl.train.contribution.network_state import seed_dropout_secretly
from privctl.train.directional import Derivatives
from privctl.train.logs.observed import observed
from privctl.train.logs.withheld import staged_private
from privctl.train.methods.ferret.amounts import PrivateExamples
from privctl.train.methods.ferret.compare import SignComparison
from privctl.train.methods.ferret.groups import trainable
from privctl.train.methods.ferret.planning import (
    FerretPlan,
    announced,
    derivative_stages,
    learning_warnings,
    methods_used,
    plan_for,
)
from privctl.train.methods.ferret.report import FerretRun, private_notes, report_for
from privctl.train.methods.ferret.settings import STREAM_SUFFIX, FerretSettings, Publish
from privctl.train.methods.ferret.stream import (
    Origin,
    Stream,
    StreamRecipe,
    base_of,
    layout_of,
    staged_stream,
)
from privctl.train.methods.ferret.trainer import FerretTrainer, FinishedFerret
from privctl.train.network.adapters import merged
from privctl.train.network.tensors import named_tensors
from privctl.train.release.adapter import released_adapter
from privctl.train.release.model import save_network
from privctl.train.release.reload_check import reference_answers
from privctl.train.runs.setup import measure_held_out, prepared, rehearsed_network, shared_source
from privctl.train.settings.session import Session
from privctl.train.state.public_seed import SEED_FILE, public_seed
from privctl.train.state.resuming import mention_saved_state, open_folder
from privctl.train.steps.contribution import rounding_warning, run_contribution_test
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.sampling import BatchSource, Passes, PoissonBatches

if TYPE_CHECKING:
    from torch import nn

    from privctl.domain.report import Artifact, PrivacyReport
    from privctl.train.preparation.job import TrainingJob


def run_ferret(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Like ``train_by_gradients``, for a run that uses directional derivatives."""
    request, workers = job.request, session.workers
    network = rehearsed_network(job, workers)
    device = own_device(choose_device(request.device))
    seed = public_seed(job.request, workers, request.settings_as(FerretSettings).public_seed)
    network = network.to(device)
    plan = plan_for(job, network, seed)
    session.notify(announced(plan, job))
    for warning in learning_warnings(plan, job):
        session.notify(warning)
    publisher = plan.publisher(job, source := NoiseSource())
    engine = Derivatives(network, request.settings_as(FerretSettings).derivatives)
    network = prepared(network, job)
    stages = [] if publisher.clip_norm is None else derivative_stages(job, plan, engine, device)
    job = run_contribution_test(job, network, device, stages, session.notify)
    for warning in rounding_warning(job):
        session.notify(warning)
    seed_dropout_secretly(network)
    folder, start = open_folder(job, workers, {SEED_FILE: seed.hex().encode()})
    base = base_of(named_tensors(network))
    noise = KeyedNoise(source)
    data = PrivateExamples(
        network=network,
        task=job.task,
        dimensions=plan.dimensions,
        recipe=job.recipe,
        batches=_batches(job, workers),
        engine=engine,
        publisher=publisher,
        workers=workers,
        device=device,
        compare=SignComparison(derivatives=engine, per_example=publisher.clip_norm is not None),
        notify=session.notify,
    )
    trainer = FerretTrainer(
        network=network,
        groups=plan.groups,
        masks=plan.masks,
        rule=plan.rule,
        source=data,
        epoch_steps=job.recipe.steps_per_epoch,
        epoch_rate=_epoch_rate(job),
        device=device,
        # Draws of noise, batches or dropout would differ, so a step made again would publish something else.
        once=request.method.sampled(request) or request.model.dropout,
        workers=workers,
        folder=folder,
        evaluate=lambda trained: measure_held_out(job, trained, device, workers, session.on_epoch),
        first_look=lambda untrained: measure_held_out(job, untrained, device, workers),
        notify=session.notify,
    )
    updates_made = start.updates if start else 0
    with (
        folder or nullcontext(),
        observed(
            job,
            session,
            device=device,
            spent=plan.spent,
            done=updates_made,
            folder=folder,
            trained=len(plan.sizes) // plan.rule.directions,
        ) as observers,
    ):
        trainer.advance, trainer.watch = observers
        with session.interrupts as stop, full_precision(device):
            outcome = trainer.run(start, stop)

        def save() -> PrivacyReport:
            stream = _stream(job, plan, outcome, network, base)
            done = FerretRun(
                plan=plan,
                outcome=outcome,
                noise=noise,
                methods=methods_used(plan, engine),
                agreement=data.statistics.compared.agreement,
            )
            with mention_saved_state(folder, job):
                return _save(job, network, done, stream)

        report = workers.in_main(save)
    if folder is not None and (left := folder.remove()):
        session.notify(left)
    return report


def stream_path(output: Path) -> Path:
    """The stream of updates of the directory ``output``, next to it, as only the model is inside."""
    return output.with_name(output.name + STREAM_SUFFIX)


def _batches(job: TrainingJob, workers: Workers) -> BatchSource:
    if job.request.method.sampled(job.request):
        return PoissonBatches(len(job.task), job.recipe.sample_rate, shared_source(workers))
    return Passes(len(job.task), job.request.batch_size, job.request.seed)


def _epoch_rate(job: TrainingJob) -> float | None:
    """The sampling rate by which epochs are counted; None for passes over the data."""
    return job.recipe.sample_rate if job.request.method.sampled(job.request) else None


def _stream(job: TrainingJob, plan: FerretPlan, outcome: FinishedFerret, network: nn.Module, base: str) -> Stream:
    request = job.request
    recipe = StreamRecipe(
        seed=plan.masks.seed.hex(),
        groups=request.settings_as(FerretSettings).groups,
        fire_probability=plan.masks.fire_probability,
        layout=layout_of(plan.groups, {name: p.shape for name, p in trainable(network).items()}),
        base=base,
        epoch_steps=job.recipe.steps_per_epoch,
        epoch_rate=_epoch_rate(job),
        rule=plan.rule,
        lost=outcome.lost,
        model=Origin(
            task=request.task,
            labels=job.model.labels,
            from_scratch=request.model.from_scratch,
            seed=request.seed,
            norm=request.model.norm,
            train=tuple(request.model.train),
            lora_rank=request.model.lora_rank,
            convert=request.model.convert,
            adapter=request.model.adapter is not None,
            save_adapter=request.model.save_adapter,
            private_vocabulary=job.model.vocabulary_from_private_data,
        ),
    )
    return Stream(recipe=recipe, amounts=outcome.amounts, bits=plan.publish is Publish.SIGN)


def _save(job: TrainingJob, network: nn.Module, done: FerretRun, stream: Stream) -> PrivacyReport:
    """Write the model, its report, the stream and the private file together, once the model was checked.

    Raises as ``save_network`` does.
    """
    request = job.request
    if job.model.converted is not None:
        require_initial(job.model.network, job.model.frozen_norms)
    reference = reference_answers(job.model, network)
    history, notes = done.outcome.finished.history, list(private_notes(done))
    with (
        staged_stream(stream_path(request.output), stream) as updates,
        staged_private(request, history, notes) as private,
    ):

        def describe(report: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
            return report_for(job, done, report, (*outputs, pending_artifact("updates", updates, report)))

        return save_network(
            merged(network, request.model),
            job.model.companion,
            request.output,
            describe,
            reference=reference,
            adapter=released_adapter(network, job.model, request.model),
            public=request.method.private,
            force=request.force,
            beside=[updates, *private],
        )
