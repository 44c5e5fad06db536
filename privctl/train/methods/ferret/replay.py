"""Reproduces a trained model from the initial model and the stream of updates, without any data."""

from __future__ import annotations

from pathlib import Path

from privctl.data.places import require_inputs
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Progress
from privctl.domain.report import Artifact, PrivacyReport
from privctl.models.adapters import adapter_at
from privctl.models.language import choose_device
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.vocabulary import vocabulary_from_file
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.folder import base_files, companions_of
from privctl.storage.reader import open_checkpoint
from privctl.train.methods.ferret.amounts import RecordedStream
from privctl.train.methods.ferret.groups import group_tensors, repeat_groups, trainable
from privctl.train.methods.ferret.stream import Stream, base_of, layout_of, read_stream
from privctl.train.methods.ferret.trainer import FerretTrainer
from privctl.train.network.adapters import adapted, merged
from privctl.train.network.tensors import named_tensors
from privctl.train.preparation.places import require_places
from privctl.train.preparation.prepare import choose_trained
from privctl.train.release.adapter import released_adapter
from privctl.train.release.model import save_network
from privctl.train.release.reload_check import reference_answers
from privctl.train.settings.request import ModelRequest, ReplayRequest

_POST_PROCESSING = (
    "made from the stream and the first model alone, so it gives away what the stream does and nothing more: what is "
    "guaranteed stands in the report of the run that wrote the stream"
)


def replay(request: ReplayRequest, progress: Progress) -> PrivacyReport:
    """Write the model that ``request.stream`` leads to, with its report, which is returned.

    Raises InputError if the model is not the one that the stream began with, or the stream is damaged.
    """
    require_inputs(request.stream)
    require_places(request.output, force=request.force, inputs=[request.model, request.stream])
    stream = read_stream(request.stream)
    model, requested = _loaded(request, stream)
    device = choose_device(request.device)
    network = adapted(model.network, requested, model.seed).to(device)
    parameters = trainable(network)
    recipe = stream.recipe
    sizes = {name: p.numel() for name, p in parameters.items()}
    groups = repeat_groups(group_tensors(sizes, recipe.groups), recipe.rule.directions)
    layout = layout_of(groups, {name: p.shape for name, p in parameters.items()})
    if layout != recipe.layout or base_of(named_tensors(network)) != recipe.base:
        raise InputError(f"{request.model} is not the model that {request.stream} began with; give the original model")
    source = RecordedStream(published=stream.amounts)
    trainer = FerretTrainer(
        network=network,
        groups=groups,
        masks=stream.masks(len(groups)),
        rule=recipe.rule,
        source=source,
        epoch_steps=recipe.epoch_steps,
        epoch_rate=recipe.epoch_rate,
        device=device,
    )
    adapter = released_adapter(network, model, requested)
    with progress("replaying", recipe.rule.steps, "steps") as advance:
        trainer.advance = advance
        trainer.run(lost=recipe.lost)
    if source.place != len(stream.amounts):
        raise InputError(f"{request.stream} goes on after its last step; get it again from its maker")

    def describe(report_path: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
        return _report(request, stream, model, requested, report_path, outputs)

    reference = reference_answers(model, network)
    return save_network(
        merged(network, requested),
        model.companion,
        request.output,
        describe,
        reference=reference,
        adapter=adapter,
        public=True,
        force=request.force,
    )


def _loaded(request: ReplayRequest, stream: Stream) -> tuple[TrainingModel, ModelRequest]:
    """The model as the run loaded it, and the request that says which parameters are trained."""
    origin = stream.recipe.model
    if origin.private_vocabulary:
        raise CommandError(
            f"the tokenizer's words of {request.stream}'s model came from private data, which a replay does not have; "
            "use the model that the run wrote"
        )
    adapter = adapter_at(request.model, request.base)
    if (adapter is not None) is not origin.adapter:
        began = "an adapter" if origin.adapter else "a whole model"
        raise InputError(f"{request.stream} began with {began}, which {request.model} is not; give the original model")
    if adapter is None and request.base is not None:
        raise CommandError(f"--base is the base of an adapter, and {request.model} is a whole model; remove it")
    requested = ModelRequest(
        path=request.model if adapter is None else adapter.base,
        adapter=None if adapter is None else adapter.adapter,
        save_adapter=origin.save_adapter,
        convert=origin.convert,
        from_scratch=origin.from_scratch,
        norm=origin.norm,
        train=origin.train,
        lora_rank=origin.lora_rank,
    )
    model = load_for_training(
        requested.path,
        origin.task,
        labels=origin.labels,
        from_scratch=requested.from_scratch,
        seed=origin.seed,
        vocabulary=None if request.vocabulary is None else vocabulary_from_file(request.vocabulary),
        norm=requested.norm,
        adapter=requested.adapter,
        convert=requested.convert,
    )
    choose_trained(model.network, requested)
    return model, requested


def _report(
    request: ReplayRequest,
    stream: Stream,
    model: TrainingModel,
    requested: ModelRequest,
    report_path: Path,
    outputs: tuple[Artifact, ...],
) -> PrivacyReport:
    inputs = [file_artifact("updates", request.stream, report_path)]
    if requested.adapter_only:
        inputs += [file_artifact(role, file, report_path) for role, file in base_files(requested.path).items()]
    started = requested.adapter if requested.adapter_only else requested.path
    if started is not None and model.initial_weights != "random":
        with open_checkpoint(started) as checkpoint:
            files = [*(file.path for file in checkpoint.files), *companions_of(checkpoint)]
            inputs += [file_artifact(f"start-{file.name}", file, report_path) for file in files]
    return PrivacyReport(
        step="replay",
        created=now(),
        versions=versions(("torch", "transformers", "tokenizers", "numpy", "blake3")),
        inputs=tuple(inputs),
        outputs=outputs,
        parameters={
            "public_seed": stream.recipe.seed,
            "groups": stream.recipe.groups,
            **({"directions": stream.recipe.rule.directions} if stream.recipe.rule.directions > 1 else {}),
            "steps": stream.recipe.rule.steps,
            "fired": len(stream.amounts),
            "base": stream.recipe.base,
            **({"adapter": True} if requested.adapter_only else {}),
        },
        warnings=(_POST_PROCESSING,),
    )
