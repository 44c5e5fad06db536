"""The report of a training run: its settings, its guarantees and its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privctl.accounting.deltas import delta_warning
from privctl.accounting.gridded import NOTE, Released, guarantee_of_floats_in_nats
from privctl.accounting.guarantees import guarantee_of
from privctl.data.recorded import recorded_files
from privctl.data.several import DataPath
from privctl.domain.events import Batches, Ledger
from privctl.domain.evidence import MOST_FREQUENT, Bound, Evidence
from privctl.domain.guarantee import AssumptionState, Guarantee
from privctl.domain.mechanism import ClippedTraining, Mechanism
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.models.choices import LongTextPolicy
from privctl.models.encoding import length_limit
from privctl.models.language import CHAT_TEMPLATES, CONFIG_NAME, TOKENIZER_FILES
from privctl.models.tasks.classification import ImageClassification, TextClassification
from privctl.models.tasks.sounds import SoundClassification
from privctl.reports.files import digested_artifact, now, versions
from privctl.reports.measures import QUANTITIES
from privctl.storage.folder import base_files, companions_of
from privctl.storage.reader import open_checkpoint
from privctl.train.logs import withheld
from privctl.train.logs.held_out import shared_warning
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.ledgers import ledger_of
from privctl.train.preparation.prepare import text_options
from privctl.train.release import searched
from privctl.train.release.began_with import reports_of_start, unfitting_reports
from privctl.train.release.names import collected, released_names
from privctl.train.release.premises import normalisation, premises, secret_noise, starting_weights
from privctl.train.release.users import for_neighbours, unprotected_users, unsure_names
from privctl.train.secrets.guarantees import KEEP_THE_PLAN, secret_guarantees, secret_parameters
from privctl.train.secrets.posteriors import CheckedSecrets
from privctl.train.settings.adaptive_clipping import adaptive_parameters
from privctl.train.settings.public_mixing import public_parameters
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest
from privctl.train.steps.contribution import test_parameters, with_contribution_test
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.loop import FinishedRun

OWNER = (
    "no guarantee covers this report itself: losses, norms, fractions and the like were measured on the private "
    "examples, held-out measures on held-out ones, and the data's digest tells whoever guesses the data whether that "
    "is right; keep the report to yourself"
)
PRIVATE_OWNER = (
    "no guarantee covers this report itself: it holds the exact number of examples, and the data's digest tells "
    "whoever guesses the data whether that is right; keep the report to yourself"
)
#: Settings that a report only states if they differ from the default.
_UNLESS_USUAL = (
    "batches",
    "clipping_passes",
    "coefficients",
    "matrix",
    "adaptive",
    "search",
    "group",
    "largest_batch",
    "public",
)


def report_for(
    job: TrainingJob,
    finished: FinishedRun,
    noise: GradientNoise | None,
    report_path: Path,
    outputs: tuple[Artifact, ...],
    secrets: CheckedSecrets | None = None,
) -> PrivacyReport:
    """The report of a run with these ``outputs``, to be written at ``report_path``; ``secrets`` are those of its plan.

    Raises InputError if a file of weights has changed since it was read.
    """
    data, plan, public = job.request.data, job.plan, job.request.public
    inputs = {"data": data.train, "held-out": data.held_out, **start_files(job)}
    if public is not None:
        inputs["public"] = public.data
    if plan is not None:
        inputs["plan"] = plan.path
    report = PrivacyReport(
        step="retrain",
        created=now(),
        versions=versions(("torch", "transformers", "tokenizers", "numpy", "scipy", "blake3")),
        inputs=input_artifacts(job, inputs, report_path),
        outputs=outputs,
        parameters={**parameters_of(job, finished, noise), **_plan_parameters(job, secrets)},
        mechanism=_mechanism(job, finished),
        guarantees=tuple(_guarantees(job, finished, noise, secrets)),
        evidence=tuple(evidence_of(job, finished)),
        warnings=(
            *(searched.WARNINGS if job.recipe.search is not None else (job.request.method.warning,)),
            report_privacy_warning(job),
            *(unfitting_reports(job) if job.request.method.voided else ()),
            *adapter_warnings(job),
            *unprotected_users(job.request),
            *unsure_names(job),
            *large_delta(job),
            *withheld.caveats(job.request),
            *shared_warning(job),
            *(() if plan is None else (KEEP_THE_PLAN,)),
            *(() if withheld.withholds(job.request) else zeroed_warning(finished)),
        ),
        omissions=withheld.omissions(job.request),
        parents=tuple(_parents(job, report_path)),
    )
    require_unchanged(job)  # after their digests were taken for the report
    return report


def input_artifacts(job: TrainingJob, inputs: Mapping[str, DataPath | None], report_path: Path) -> tuple[Artifact, ...]:
    """The entries of the ``inputs`` by role in the report at ``report_path``; data have the digests taken when read."""
    return tuple(
        digested_artifact(role, file, report_path)
        for role, path in inputs.items()
        if path
        for file in (job.read[role] if role in job.read else recorded_files(path))
    )


def require_unchanged(job: TrainingJob) -> None:
    """Raise InputError if a file of weights has changed since it was read."""
    for weights in job.model.files:
        weights.require_unchanged()


def report_privacy_warning(job: TrainingJob) -> str:
    """The warning that the report itself is private."""
    return PRIVATE_OWNER if withheld.withholds(job.request) else OWNER


def _plan_parameters(job: TrainingJob, secrets: CheckedSecrets | None) -> dict[str, Any]:
    if job.plan is None or secrets is None:
        return {}
    return secret_parameters(job.plan, secrets, job.recipe.steps * job.recipe.sample_rate)


def _parents(job: TrainingJob, report_path: Path) -> Iterator[ParentReport]:
    """The reports of the plan, if it still exists, and of the initial weights, which say what those were trained on.

    A finished training must not fail because a plan's report is missing.
    """
    if job.plan is not None and job.plan.report is not None and job.plan.report.path.is_file():
        yield job.plan.report.parent_of(report_path)
    for start_report in reports_of_start(job):
        yield start_report.parent_of(report_path)


def large_delta(job: TrainingJob) -> Iterator[str]:
    """A warning about a delta that is not well below 1 / examples."""
    if job.delta is not None and (sentence := delta_warning(job.delta, len(job.task))):
        yield sentence


def zeroed_warning(finished: FinishedRun) -> Iterator[str]:
    """A warning about examples whose gradient was not finite. They counted as zero, so the guarantee holds."""
    share = max((entry.get("zeroed_fraction", 0.0) for entry in finished.history), default=0.0)
    if share:
        yield (
            f"up to {100 * share:.2g} % of an epoch's examples had no finite gradient and counted as zero: the "
            "guarantee holds, but nothing was learned from them; check those records, or lower --learning-rate if "
            "they are many"
        )


def start_files(job: TrainingJob) -> dict[str, Path]:
    """The files of the initial model: weights, unless random, and their companions."""
    path, adapter = job.request.model.path, job.request.model.adapter
    if job.request.model.adapter_only:
        begun = {} if adapter is None else {f"start-{file.name}": file for file in _files_of(adapter)}
        return {**begun, **base_files(path)}
    if job.model.initial_weights == "random":
        # With its own vocabulary, the run uses no tokenizer files of the model.
        words = TOKENIZER_FILES if job.request.model.vocabulary is None else ()
        files = [path / name for name in (CONFIG_NAME, *words, *CHAT_TEMPLATES)]
        return {f"start-{file.name}": file for file in files if file.is_file()}
    with open_checkpoint(path) as checkpoint:
        files = [*(shard.path for shard in checkpoint.files), *companions_of(checkpoint)]
        return {f"start-{file.relative_to(checkpoint.folder).as_posix()}": file for file in files}


def _files_of(adapter: Path) -> list[Path]:
    with open_checkpoint(adapter) as checkpoint:
        return [*(file.path for file in checkpoint.files), *companions_of(checkpoint)]


def adapter_warnings(job: TrainingJob) -> Iterator[str]:
    """Warnings about the base of a released adapter, and how it must be loaded."""
    if job.request.model.adapter_only:
        base, labels = job.request.model.path, job.model.labels
        yield (
            f"the weights are an adapter of {base}, whose digests are among the inputs; the guarantees are for the "
            "adapter, and its base must have been made without the data"
        )
        if labels is not None:
            yield f"load {base} with num_labels={len(labels)}; the classes are, in this order, {', '.join(labels)}"
        if job.request.model.base_bits is not None:
            yield (
                f"the adapter was trained and measured with {base} in 4 bits (NF4, doubly quantized scales); on the "
                "base in full its answers are others, so load it with bitsandbytes for the measures stated here"
            )


def _mechanism(job: TrainingJob, finished: FinishedRun) -> Mechanism | None:
    """The ledger of all steps begun for a private run, the training settings for a clipped one."""
    recipe = job.recipe
    if job.request.method.noised:
        return _ledger(job, finished)
    if not job.request.method.clips:
        return None
    return ClippedTraining(
        epochs=finished.updates // math.ceil(len(job.task) / job.request.batch_size),
        learning_rate=recipe.learning_rate,
        clip_norm=recipe.clip_norm,
        dataset_size=len(job.task),
        batch_size=job.request.batch_size,
        optimizer=recipe.optimizer,
        momentum=recipe.momentum,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
    )


def _ledger(job: TrainingJob, finished: FinishedRun) -> Ledger:
    recipe = job.recipe
    planned = job.request.method.side_releases(job.request, len(job.task), recipe.steps, recipe.sample_rate)
    measured = None if planned is None else planned.event(recipe.noise_multiplier, finished.side_releases_begun)
    return ledger_of(recipe, finished.steps_begun, None if job.plan is None else job.plan.protection, measured)


def _guarantees(
    job: TrainingJob, finished: FinishedRun, noise: GradientNoise | None, secrets: CheckedSecrets | None
) -> Iterator[Guarantee]:
    """The guarantee for one record if the run is private, and those for secrets if it followed a plan."""
    if not job.request.method.noised:
        return
    yield _for_records(job, finished, noise)
    if job.plan is not None and secrets is not None:
        shared = (starting_weights(job), *normalisation(job), *released_names(job), *secret_noise(noise))
        for guarantee in secret_guarantees(job.plan, job.recipe, finished.steps_begun, secrets, shared):
            yield with_contribution_test(
                guarantee_of_floats_in_nats(guarantee, Released(coordinates=finished.released)), job
            )


def _for_records(job: TrainingJob, finished: FinishedRun, noise: GradientNoise | None) -> Guarantee:
    assert job.delta is not None
    guarantee = guarantee_of(
        _ledger(job, finished),
        job.delta,
        name=job.request.method_name,
        state=AssumptionState.ENFORCED,
        assumptions=(*premises(job), *secret_noise(noise)),
        note=NOTE,
        released=Released(coordinates=finished.released * job.recipe.most_runs),
    )
    return with_contribution_test(for_neighbours(guarantee, job.request), job)


def parameters_of(job: TrainingJob, finished: FinishedRun, noise: GradientNoise | None) -> dict[str, Any]:
    """The report's parameters that all methods share."""
    request, recipe = job.request, job.recipe
    settings = {name: getattr(recipe, name) for name in recipe.__slots__ if name not in _UNLESS_USUAL}
    if "passes" in request.method.takes:
        settings["clipping_passes"] = recipe.clipping_passes
    settings |= _batch_parameters(request, recipe)
    if recipe.search is not None:
        settings["search"] = searched.parameters_of(request, recipe.search)
    if recipe.adaptive is not None:
        settings |= adaptive_parameters(recipe.adaptive, recipe.sum_noise_multiplier, finished.clip_norms)
    if recipe.public is not None:
        settings |= public_parameters(recipe.public)
    return {
        **{name: str(value) if isinstance(value, str) else value for name, value in settings.items()},
        "task": str(request.task),
        "clipping": str(request.clipping),
        "examples": len(job.task),
        "epsilon": request.budget.epsilon,
        "delta": job.delta,
        "data": request.data.train.name,
        **request.data.columns.named,
        **_sizes(job),
        "unit": request.data.unit,
        **({} if job.similar_names is None else {"similar_names": job.similar_names}),
        "initial_weights": job.model.initial_weights,
        "initial_seed": request.seed,
        "trained": list(request.model.train),
        "lora_rank": request.model.lora_rank,
        **({"adapter": True} if request.model.adapter_only else {}),
        **({"fsdp": True} if request.fsdp else {}),
        **({} if request.model.base_bits is None else {"base_bits": request.model.base_bits}),
        "fresh_tensors": list(job.model.fresh),
        "frozen_norm_layers": len(job.model.frozen_norms),
        **({} if job.model.converted is None else {"converted": job.model.converted}),
        "collected_from_data": list(collected(job)),
        "updates": finished.updates,
        "steps_begun": finished.steps_begun,
        "released_numbers": finished.released * recipe.most_runs if request.method.noised else None,
        "noise_source": None if noise is None else noise.description,
        **test_parameters(job),
        "history": withheld.released(request, finished.history),
    }


def _sizes(job: TrainingJob) -> dict[str, Any]:
    """The length limit of texts or sounds, whether long texts were split, and the size of images, where set."""
    data, text = job.request.data, job.model.text
    sizes = {
        "max_length": data.max_length if text is None else length_limit(text, text_options(data)),
        "long": str(data.long) if data.long is LongTextPolicy.SPLIT else None,
        "resize": None if data.resize is None else list(data.resize),
    }
    return {name: size for name, size in sizes.items() if size is not None}


def _batch_parameters(request: RetrainRequest, recipe: TrainingSettings) -> dict[str, Any]:
    """How batches are drawn, limits per user, and how noise is correlated, where they differ from the default."""
    settings: dict[str, Any] = {}
    if recipe.batches is not Batches.POISSON:
        settings["batches"] = recipe.batches
    if recipe.coefficients is not None:
        settings["coefficients"] = list(recipe.coefficients)
    if recipe.matrix is not None:
        settings["matrix"] = asdict(recipe.matrix)
    if recipe.group is not None:
        settings["max_records_per_user"] = recipe.group
    if (several := request.method.per_draw(request)) > 1:
        settings["records_per_draw"] = several
    if recipe.largest_batch is not None:
        settings["largest_batch"] = recipe.largest_batch
    if (rule := request.method.shared(request)) is not None:
        settings["shared_records"] = rule
    return settings


def evidence_of(job: TrainingJob, finished: FinishedRun) -> Iterator[Evidence]:
    """The last epoch's metrics, except withheld ones.

    The details hold the values of every epoch, held-out values ``before`` the training, and for an accuracy that of
    always predicting the most frequent label.
    """
    history = withheld.released(job.request, finished.history)
    last: Mapping[str, float] = history[-1] if history else {}
    for key, quantity in QUANTITIES.items():
        if key not in last:
            continue
        held_out = key.startswith("held_out")
        measured = job.held_out if held_out else job.public if key.startswith("public") else job.task
        count = len(job.task if measured is None else measured)
        yield Evidence(
            method="measured after the epoch" if held_out else "measured while training, each example as it was met",
            quantity=quantity,
            estimate=last[key],
            bound=Bound.NONE,
            samples={"examples": count},
            details={
                **({"before": finished.before[key]} if key in finished.before else {}),
                **{f"epoch {i}": e[key] for i, e in enumerate(history, start=1) if key in e},
                **(_most_frequent(job) if key == "held_out_accuracy" else {}),
            },
        )


def _most_frequent(job: TrainingJob) -> dict[str, float]:
    """The fraction of held-out examples with the most frequent label; empty for a task without labels."""
    if not isinstance(job.held_out, TextClassification | ImageClassification | SoundClassification):
        return {}
    return {MOST_FREQUENT: max(Counter(job.held_out.labels).values()) / len(job.held_out.labels)}
