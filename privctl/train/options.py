"""A training from the options of ``privctl retrain``, by their names; ``privctl.retrain`` calls it too."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from privctl.data.columns import Columns, columns_of
from privctl.data.labels import labels_named
from privctl.data.places import found, holds_classes
from privctl.data.texts import first_fields
from privctl.domain.errors import CommandError, InputError
from privctl.domain.mechanism import Optimizer
from privctl.domain.progress import Notify
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.purpose import class_named, task_to_train
from privctl.train.choices import ClippingStyle, LogName, Schedule
from privctl.train.method import Method
from privctl.train.own_settings import own_settings
from privctl.train.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest, SecretsRequest


def request_of(method: Method, options: Mapping[str, Any], given: Container[str], notify: Notify) -> RetrainRequest:
    """The request that the options of ``privctl retrain METHOD`` describe, all by their names.

    ``given`` are those that the user stated, whatever their values; ``notify`` is called with what the user should
    know. Raises CommandError for values that do not fit or go together.
    """
    settings = own_settings(method.settings, options)
    if options["data"] is None:
        raise CommandError(
            f"there is nothing to train {method.name} on; give --data, or --replay with a stream of updates"
        )
    value: Callable[[str], Any] = options.get
    try:
        return RetrainRequest(
            method_name=method.name,
            settings=settings,
            model=model_of(options),
            data=data_of(options, Path(options["data"])),
            task=task_of(options, Path(options["data"]), notify),
            budget=BudgetRequest(
                epsilon=value("epsilon"), noise_multiplier=value("noise_multiplier"), delta=value("delta")
            ),
            secrets=_secrets_of(options, given),
            output=Path(options["output"]),
            clipping=ClippingStyle(options.get("clipping", "flat")),
            clip_norm=options.get("clip_norm", 1.0),
            show_unprotected=options.get("show_unprotected", False),
            logs=tuple(map(LogName, options.get("log", ()))),
            schedule=Schedule(options.get("schedule", "constant")),
            warmup_steps=options.get("warmup_steps", 0),
            optimizer=Optimizer(options["optimizer"]),
            **{name: options[name] for name in _SAME},
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def task_of(options: Mapping[str, Any], data: Path, notify: Notify) -> TaskName:
    """``--task``, or without it what the model's config.json says, which must fit the records at ``data``."""
    if options["task"] is not None:
        return TaskName(options["task"])
    return _inferred_task(Path(options["model"]), data, notify, columns_of(options))


def _secrets_of(options: Mapping[str, Any], given: Container[str]) -> SecretsRequest | None:
    """The plan that ``--secrets`` names, with ``--batch-size`` if the user gave it."""
    if options.get("secrets") is None:
        return None
    stated = options["batch_size"] if "batch_size" in given else None
    return SecretsRequest(plan=Path(options["secrets"]), batch_size=stated)


#: Options that go into the request under their own names.
_SAME = (
    "epochs", "steps", "batch_size", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "micro_examples",
    "micro_tokens", "device", "bf16", "compiled", "seed", "resume", "force",
)  # fmt: skip


def model_of(options: Mapping[str, Any]) -> ModelRequest:
    """The model to train, from the options."""
    return ModelRequest(
        path=Path(options["model"]),
        from_scratch=options["from_scratch"],
        vocabulary=options["vocabulary"],
        norm=options["norm"],
        dropout=options["dropout"],
        train=options["train"],
        lora_rank=options["lora_rank"],
        checkpointing=options.get("checkpointing", False),
    )


def data_of(options: Mapping[str, Any], train: Path) -> DataRequest:
    """The training data at ``train``, with the options that describe it."""
    held_out = options.get("held_out")
    return DataRequest(
        train=train,
        held_out=Path(held_out) if held_out else None,
        unit=options.get("unit"),
        labels=labels_named(options["labels"]) if options["labels"] else (),
        columns=columns_of(options),
        long=None if options["long"] is None else LongTextPolicy(options["long"]),
        max_length=options["max_length"],
        response_only=options["response_only"],
        resize=options["resize"],
    )


def _inferred_task(model: Path, data: Path, notify: Notify, columns: Columns) -> TaskName:
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
