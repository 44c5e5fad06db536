"""Measures an existing model as ``retrain --held-out`` does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from privctl.data.columns import USUAL, HeadKind
from privctl.data.images import read_images
from privctl.data.labels import numbers_below
from privctl.data.several import DataPath
from privctl.data.sounds import read_sounds
from privctl.data.texts import iter_texts
from privctl.domain.errors import InputError, PrivctlError
from privctl.models.chat import chat_of
from privctl.models.choices import CLASSIFICATION, TaskName
from privctl.models.kinds import KINDS
from privctl.models.language import load_model
from privctl.models.loading import TrainingModel, known_labels, load_for_training
from privctl.models.normalisation import FROZEN
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors
from privctl.models.tasks.base import Task
from privctl.models.tasks.build import image_task, sound_task, text_task
from privctl.reports.measures import QUANTITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out records as a ``task`` for all models of one architecture, whose settings are in ``folder``."""

    task: Task
    folder: Path

    def measures(self, weights: Path) -> dict[str, float]:
        """The held-out metrics of ``weights``, by their names in reports: accuracy, F1 or perplexity before the loss.

        ``weights`` is a model's folder, or a file that is read with the settings in ``folder``. Raises InputError as
        ``load_model`` does.
        """
        folder = None if weights.is_dir() else self.folder
        model = load_model(weights, folder=folder, kind=KINDS[self.task.name])
        with quiet_transformers(), network_errors(weights, model.network):
            measured = self.task.evaluate(model.network, model.device)
        named = {QUANTITIES.get(f"held_out_{name}"): value for name, value in measured.items()}
        loss = "held_out_loss"
        ordered = sorted(
            ((name, value) for name, value in named.items() if name), key=lambda e: e[0] == QUANTITIES[loss]
        )
        return {str(name): value for name, value in ordered}


def held_out(path: Path, task: TaskName, data: DataPath) -> HeldOut:
    """The records at ``data`` for the model at ``path``, read as ``retrain --held-out`` reads them.

    Raises InputError, with the record's number, for a record that does not fit the model.
    """
    model = _loaded(path, task)
    columns = replace(USUAL, problem=model.problem)
    folder = path if path.is_dir() else path.parent
    if model.images is not None:
        images = read_images(data, channels=model.images.channels, resize=model.images.size, columns=columns)
        return HeldOut(task=image_task(_numbered(model, images.labels), images), folder=folder)
    if model.sounds is not None:
        sounds = read_sounds(data, rate=model.sounds.rate, columns=columns)
        return HeldOut(task=sound_task(_numbered(model, sounds.labels), sounds), folder=folder)
    columns = replace(columns, chat=chat_of(path, None), pair=task is TaskName.SEQ2SEQ_LM)
    labelled = task in CLASSIFICATION
    if labelled:
        model = _numbered(model, (record.label or "" for record in iter_texts(data, labelled=True, columns=columns)))
    return HeldOut(task=text_task(model, iter_texts(data, labelled=labelled, columns=columns)), folder=folder)


def _numbered(model: TrainingModel, stated: Iterable[str]) -> TrainingModel:
    """The model with numbers as its labels, if both model and data only number them; else the model."""
    if model.labels is None or known_labels(model.path) is not None:
        return model
    names = set(stated) if model.problem is HeadKind.ONE else {name for label in stated for name in json.loads(label)}
    return replace(model, labels=numbers_below(len(model.labels), names) or model.labels)


def _loaded(path: Path, task: TaskName) -> TrainingModel:
    try:
        return load_for_training(path, task)
    except InputError as fault:
        try:  # batch normalisation only prevents training, not evaluation
            return load_for_training(path, task, norm=FROZEN)
        except PrivctlError:
            raise fault from None
