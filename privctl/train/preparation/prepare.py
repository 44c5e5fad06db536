"""Turns a request into a job with model, data and settings. Nothing is written yet."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from privctl.data.bounded import BoundedRecords, bounded
from privctl.data.columns import HeadKind
from privctl.data.count import similar_names
from privctl.data.labels import labels_of, numbers_below
from privctl.data.places import require_inputs
from privctl.data.recorded import recorded_files, require_same
from privctl.data.several import DataPath, paths_of
from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.models.adapters import trained_classes
from privctl.models.choices import CLASSIFICATION, LongTextPolicy, TaskName
from privctl.models.corpora import IN_MEMORY, CorpusStorage
from privctl.models.encoding import TextOptions
from privctl.models.loading import (
    TrainingModel,
    class_count,
    known_labels,
    load_for_training,
    trained_outputs,
)
from privctl.models.purpose import problem_of
from privctl.models.stored import leave_stored
from privctl.models.tasks.base import Task
from privctl.models.tasks.build import image_task, sound_task, text_task
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.unfilled import layout_of
from privctl.models.vocabulary import Vocabulary, frequent_words, private_vocabulary, vocabulary_from_file
from privctl.parallel import ALONE, Workers
from privctl.storage.digest import DigestedFile
from privctl.storage.reader import open_checkpoint
from privctl.train.preparation.budget import mixing_of, recipe_for, require_budget
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.log_places import require_logs
from privctl.train.preparation.places import (
    nothing_to_resume,
    remove_finished,
    require_places,
    require_private_file_absent,
    run_folder,
)
from privctl.train.preparation.reading import images_at, require_apart, sounds_at, texts_at
from privctl.train.preparation.refusals import require_applicable
from privctl.train.secrets.read_plan import SecretPlan, read_secret_plan
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest

if TYPE_CHECKING:
    from torch import nn


def prepare(request: RetrainRequest, keep: CorpusStorage = IN_MEMORY, workers: Workers = ALONE) -> TrainingJob:
    """Read model and data and determine all settings. Texts are read by one process per machine.

    All ``workers`` must call this, with a ``keep`` that belongs to them. Raises PrivctlError for a request, model or
    data that do not fit together, and for data that change while they are read.
    """
    request.method.check(request)
    if request.fsdp and not request.method.shards:
        raise CommandError(f"{request.method_name} needs the whole model in each process; remove --fsdp")
    require_budget(request)
    _check_task(request)
    _check_places(request)
    plan = read_secret_plan(request)
    data = {"data": request.data.train, "held-out": request.data.held_out}
    data |= {"public": None if request.public is None else request.public.data}
    places = {role: path for role, path in data.items() if path is not None}
    before = {role: recorded_files(path) for role, path in places.items()} if workers.is_main else {}
    workers.in_main(lambda: _require_held_out(before))
    require_apart(request, workers)
    job = _read_job(request, keep, workers, plan)

    def unchanged() -> None:
        for role, files in before.items():
            require_same(places[role], files)

    workers.in_main(unchanged)
    return replace(job, read=before)


def _require_held_out(read: Mapping[str, Collection[DigestedFile]]) -> None:
    """Raise CommandError if a held-out file is a copy of a training file; ``read`` holds the files by role.

    Held-out metrics are exact and are reported, so they must not be measured on private data.
    """
    private = {file.digest for file in read.get("data", ())}
    for file in read.get("held-out", ()):
        if file.digest in private:
            raise CommandError(
                f"--held-out {file.path} is a copy of the training data; give examples that the model is not trained on"
            )


def _read_job(request: RetrainRequest, keep: CorpusStorage, workers: Workers, plan: SecretPlan | None) -> TrainingJob:
    """The job of a request whose options were checked."""
    labels: tuple[str, ...] = ()
    collected = False
    if request.task is TaskName.IMAGE_CLASSIFICATION:
        return _prepare_images(request, workers)
    if request.task is TaskName.AUDIO_CLASSIFICATION:
        return _prepare_sounds(request, workers)
    classify = request.task in CLASSIFICATION
    problem = problem_of(request.model.path, request.task)
    train = training_texts(request)
    workers.once_per_machine(lambda: _read_first(train()))
    similar = _similar_names(request, workers)
    if classify and problem is not HeadKind.NUMBER:
        labels, collected = _labels(request, lambda: _labels_in(train, workers, problem))
    model = _loaded(request, workers, labels or request.data.labels, _vocabulary(request.model, train, workers))
    task = text_task(model, train(), text_options(request.data), seed=request.seed, keep=keep)
    if isinstance(task, CorpusTask) and (several := request.method.per_draw(request)) > 1:
        task = replace(task, per_draw=several)
    return replace(_job(request, model, task, keep, collected=collected, plan=plan), similar_names=similar)


def _similar_names(request: RetrainRequest, workers: Workers) -> int | None:
    """The number of users whose names are spelled like another's; None if records have no users."""
    if (unit := request.data.unit) is None:
        return None
    shared = request.method.shared(request) is not None

    def count() -> bytes:
        return json.dumps(similar_names(texts_at(request, request.data.train, unit=unit, shared=shared))).encode()

    return int(json.loads(workers.once_per_machine(count)))


def training_texts(request: RetrainRequest) -> Callable[[], Iterator[TextRecord]]:
    """A function that reads the texts of ``--data`` that are trained on, after any bound on records per user."""
    data, most, rule = request.data, request.method.group(request), request.method.shared(request)
    train = partial(texts_at, request, data.train, unit=data.unit, shared=rule is not None)
    if most is None:
        return train
    return partial(_bounded, train, most) if rule is None else BoundedRecords(train, most, rule, str(data.train))


def _bounded(read: Callable[[], Iterable[TextRecord]], most: int) -> Iterator[TextRecord]:
    return bounded(read(), most)


def other_task(request: RetrainRequest, model: TrainingModel, path: DataPath, keep: CorpusStorage = IN_MEMORY) -> Task:
    """The records at ``path``, which are not private, read like those of ``--data``. Raises as ``prepare`` does."""
    if request.task is TaskName.AUDIO_CLASSIFICATION:
        return sound_task(model, sounds_at(request, path))
    if request.task is not TaskName.IMAGE_CLASSIFICATION:
        return text_task(model, texts_at(request, path), text_options(request.data), seed=request.seed, keep=keep)
    return image_task(model, images_at(request, path))


def _read_first(records: Iterator[TextRecord]) -> bytes:
    """Read the first record, so that data of the wrong format are refused before a large model is loaded."""
    next(records, None)
    return b""


def _labels_in(train: Callable[[], Iterable[TextRecord]], workers: Workers, problem: HeadKind) -> set[str]:
    """The labels that occur in the records, each of which has one label or a list of them."""
    stated = json.loads(workers.once_per_machine(lambda: json.dumps([*{r.label or "" for r in train()}]).encode()))
    return _names(stated, problem)


def _names(stated: Collection[str], problem: HeadKind) -> set[str]:
    return set(stated) if problem is HeadKind.ONE else {name for label in stated for name in json.loads(label)}


def text_options(data: DataRequest) -> TextOptions:
    """How texts become examples. Long texts are truncated by default."""
    return TextOptions(
        long=data.long or LongTextPolicy.TRUNCATE, max_length=data.max_length, response_only=data.response_only
    )


def _labels_among(request: RetrainRequest, stated: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """As ``_labels``, for the labels ``stated`` of all records; no labels where the model predicts numbers."""
    problem = problem_of(request.model.path, request.task)
    if problem is HeadKind.NUMBER:
        return (), False
    return _labels(request, lambda: _names(set(stated), problem))


def _prepare_images(request: RetrainRequest, workers: Workers) -> TrainingJob:
    images = images_at(request, request.data.train)
    labels, collected = _labels_among(request, images.labels)
    model = _loaded(request, workers, labels, None)
    return _job(request, model, image_task(model, images), collected=collected)


def _prepare_sounds(request: RetrainRequest, workers: Workers) -> TrainingJob:
    sounds = sounds_at(request, request.data.train)
    labels, collected = _labels_among(request, sounds.labels)
    model = of_samples(_loaded(request, workers, labels, None), request.data.max_length)
    return _job(request, model, sound_task(model, sounds), collected=collected)


def of_samples(model: TrainingModel, samples: int | None) -> TrainingModel:
    """The model with every sound padded or cut to ``samples``; unchanged if that is None."""
    if samples is None or model.sounds is None:
        return model
    return replace(model, sounds=replace(model.sounds, samples=samples))


def _loaded(
    request: RetrainRequest, workers: Workers, labels: tuple[str, ...], vocabulary: Vocabulary | None
) -> TrainingModel:
    """The model. With ``--fsdp`` its weights may still be in files, from which ``shard`` has every process read rows.

    If the files' tensors are not those of the network, only the main process reads them, and sends them to the others.
    """
    requested = request.model
    load = partial(
        load_for_training,
        requested.path,
        request.task,
        labels=labels or None,
        from_scratch=requested.from_scratch,
        seed=request.seed,
        vocabulary=vocabulary,
        norm=requested.norm,
        dropout=requested.dropout,
        adapter=requested.adapter,
        convert=requested.convert,
    )
    # Converting normalisation needs the statistics of a loaded network.
    if not request.fsdp or workers.size == 1 or requested.convert is not None:
        return load()
    loaded, elsewhere = _left_in_files(load(unfilled=True), workers)
    if loaded is not None:
        return loaded
    models: list[TrainingModel] = []

    def layout() -> bytes:
        models.append(load())
        return layout_of(models[0].network)

    expected = workers.once(layout)
    if workers.is_main:
        return replace(models[0], by_main=elsewhere)
    unfilled = load(unfilled=True)
    # The loader may tie or untie weights depending on the file; then this process must read it as well.
    return unfilled if layout_of(unfilled.network) == expected else load()


def _left_in_files(model: TrainingModel, workers: Workers) -> tuple[TrainingModel | None, str | None]:
    """The unfilled ``model`` with the files of its weights, from which each process will read its rows, and None.

    If the files' tensors are not the network's, None and the name of the tensor that differs; if the weights are random
    or the processes see different files, None and None.
    """
    if model.initial_weights == "random":
        return None, None
    checkpoint = open_checkpoint(model.path)
    elsewhere = leave_stored(model.network, checkpoint)
    seen = json.dumps([elsewhere, [file.version for file in checkpoint.files]]).encode()
    if not workers.any_of(seen != workers.once(lambda: seen))[0] and elsewhere is None:
        return replace(model, files=checkpoint.files), None
    for file in checkpoint.files:
        file.close()
    return None, elsewhere


def _check_places(request: RetrainRequest) -> None:
    """Raise CommandError if an output exists already, or if there is no run to resume, and for missing inputs."""
    data = [request.data.train, request.data.held_out, None if request.public is None else request.public.data]
    inputs = [request.model.path, request.model.adapter, *(path for each in data if each for path in paths_of(each))]
    require_inputs(*data)
    remove_finished(request.output)
    if request.resume and not run_folder(request.output).is_dir():
        raise nothing_to_resume(run_folder(request.output), request.output)
    require_places(
        request.output,
        force=request.force,
        suffixes=request.method.files,
        inputs=[path for path in inputs if path is not None],
    )
    require_private_file_absent(request)
    require_logs(request)


def _check_task(request: RetrainRequest) -> None:
    """Refuse settings that do not apply to the task, as the report would still state some of them."""
    data = request.data
    require_applicable(
        request.task,
        {
            "--unit": data.unit is not None,
            "--long": data.long is not None,
            "--max-length": data.max_length is not None,
            "--text-column": data.columns.text is not None,
            "--label-column": data.columns.label is not None,
            "--vocabulary": request.model.vocabulary is not None,
            "--response-only": data.response_only,
            "--resize": data.resize is not None,
            "--labels": bool(data.labels),
        },
    )


def _job(
    request: RetrainRequest,
    model: TrainingModel,
    task: Task,
    keep: CorpusStorage = IN_MEMORY,
    *,
    collected: bool,
    plan: SecretPlan | None = None,
) -> TrainingJob:
    """The job of ``task``, with held-out and public records as requested, whose tokens ``keep`` stores."""
    if plan is not None:
        plan.check_examples(len(task))
    choose_trained(model.network, request.model)
    trained = most_trained(model.network, request.model)
    held_out = None if request.data.held_out is None else other_task(request, model, request.data.held_out, keep)
    public = None if request.public is None else other_task(request, model, request.public.data, keep)
    recipe, delta = recipe_for(request, len(task), None if plan is None else plan.protection, trained)
    mixing = mixing_of(request, 0 if public is None else len(public), recipe.batch_size)
    return TrainingJob(
        request=request,
        model=model,
        task=task,
        held_out=held_out,
        public=public,
        recipe=replace(recipe, public=mixing),
        delta=delta,
        labels_from_private_data=collected,
        plan=plan,
    )


def _labels(request: RetrainRequest, find: Callable[[], set[str]]) -> tuple[tuple[str, ...], bool]:
    """The class names, and whether they were collected from the private data; ``find`` collects them.

    The names are those given, or else those of the model. If both model and data only number the classes, the names are
    the model's numbers. Otherwise they are collected. Raises InputError if the model's head has another number of
    classes.
    """
    if request.data.labels:
        return request.data.labels, False
    known = known_labels(request.model.path)
    if known is not None:
        return known, False
    occurring = find()
    adapted = None if request.model.adapter is None else trained_classes(request.model.adapter)
    numbered = numbers_below(adapted or class_count(request.model.path), occurring)
    if numbered is not None:
        return numbered, False
    labels = labels_of(occurring, str(request.data.train)).names
    outputs = None if request.model.from_scratch else trained_outputs(request.model.path, request.task)
    outputs = adapted or outputs
    if outputs not in (None, len(labels)):
        raise InputError(
            f"{request.model.path} has a head for {outputs} classes, and {request.data.train} holds {len(labels)}; "
            "name all classes in order with --labels, and if they are not as many a new head is drawn for them"
        )
    return labels, True


def _vocabulary(model: ModelRequest, train: Callable[[], Iterable[TextRecord]], workers: Workers) -> Vocabulary | None:
    if model.vocabulary is None:
        return None
    if model.vocabulary == "private":
        words = workers.once_per_machine(lambda: json.dumps(frequent_words(train())).encode())
        return private_vocabulary(json.loads(words))
    return vocabulary_from_file(Path(model.vocabulary))


def most_trained(network: nn.Module, request: ModelRequest) -> int:
    """The number of trained parameters; with new adapters an upper bound: two low-rank matrices for every parameter."""
    if request.adapter is not None:
        with open_checkpoint(request.adapter) as checkpoint:
            return sum(math.prod(info.shape) for _, info in checkpoint.tensors())
    if request.lora_rank is None:
        return sum(p.numel() for p in network.parameters() if p.requires_grad)
    return sum(p.numel() + request.lora_rank * sum(p.shape) for p in network.parameters())


def choose_trained(network: nn.Module, request: ModelRequest) -> None:
    """Freeze every parameter that none of the globs matches. Raises CommandError for a glob that matches nothing."""
    if not request.train:
        return
    names = [name for name, _ in network.named_parameters()]
    for glob in request.train:
        if not fnmatch.filter(names, glob):
            raise CommandError(f"--train {glob} matches no parameter; the first are {', '.join(names[:3])}")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, glob) for glob in request.train))
