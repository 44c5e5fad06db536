"""The task of a training for which none was asked: what the model's config.json says, held against the data."""

from __future__ import annotations

from pathlib import Path

from privctl.data.columns import USUAL, Columns
from privctl.data.places import found, holds_classes
from privctl.data.texts import first_fields
from privctl.domain.errors import InputError
from privctl.domain.progress import Notify
from privctl.models.choices import TaskName
from privctl.models.purpose import class_named, task_to_train


def infer_task(model: Path, data: Path, notify: Notify, columns: Columns = USUAL) -> TaskName:
    """The task for the model at ``model``, whose head must fit the records at ``data``; says which, and what is unused.

    Raises InputError where a classifier of texts gets records without labels, CommandError where the model may be
    trained for several tasks, and as ``read_config`` does.
    """
    task, label = task_to_train(model), columns.label_name
    # Where there are no records, whoever reads the data says so.
    fields = None if holds_classes(data) or not found(data) else first_fields(data)
    told = f"task {task}, by the model's config.json"
    if fields is not None and task is TaskName.TEXT_CLASSIFICATION and label not in fields:
        raise InputError(
            f"{data} has no {label!r} in its first record, and {model} is a text classifier ({class_named(model)}); "
            "give every record a label, name its field with --label-column, or train a language model"
        )
    if fields is not None and task in (TaskName.CAUSAL_LM, TaskName.MASKED_LM) and label in fields:
        told += f"; it does not use the records' labels, as --task {TaskName.TEXT_CLASSIFICATION} would with a new head"
    notify(told)
    return task
