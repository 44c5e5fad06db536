"""Builds a training request from the options of ``privctl retrain``; ``privctl.retrain`` uses it too."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from privctl.data.columns import Columns, columns_of, require_separated
from privctl.data.labels import labels_named
from privctl.data.places import STDIN, found, holds_classes
from privctl.data.rows import column_names
from privctl.data.several import DataPath, data_at, paths_of, real_paths
from privctl.domain.errors import CommandError, InputError
from privctl.domain.mechanism import Optimizer
from privctl.domain.progress import Notify
from privctl.models.adapters import adapter_at, task_type_of
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.purpose import class_named, task_meant
from privctl.train.settings.choices import ClippingPasses, ClippingStyle, LogName, PublicOverlap, Schedule
from privctl.train.settings.own_settings import own_settings
from privctl.train.settings.public_mixing import WEIGHT
from privctl.train.settings.request import (
    BudgetRequest,
    DataRequest,
    Method,
    ModelRequest,
    PublicRequest,
    RetrainRequest,
    SecretsRequest,
)

#: The peft task types that determine the task, whatever the head of the base.
_TASKS_OF_PEFT = {
    "SEQ_CLS": TaskName.TEXT_CLASSIFICATION,
    "TOKEN_CLS": TaskName.TOKEN_CLASSIFICATION,
    "QUESTION_ANS": TaskName.QUESTION_ANSWERING,
    "SEQ_2_SEQ_LM": TaskName.SEQ2SEQ_LM,
}


def request_of(method: Method, options: Mapping[str, Any], given: Container[str], notify: Notify) -> RetrainRequest:
    """The request for ``privctl retrain METHOD`` with these ``options``, by name.

    ``given`` holds the names of the options that the user gave; ``notify`` is called with what the user should know.
    Raises CommandError for values that are invalid or contradict each other.
    """
    settings = own_settings(method.settings, options)
    value: Callable[[str], Any] = options.get
    data = data_at(options["data"])
    model = model_of(options, "" if "adapters" in method.takes else method.name)
    try:
        return RetrainRequest(
            method=method,
            settings=settings,
            model=model,
            data=data_of(options, data),
            task=task_of(options, model, data, notify),
            budget=BudgetRequest(
                epsilon=value("epsilon"), noise_multiplier=value("noise_multiplier"), delta=value("delta")
            ),
            secrets=_secrets_of(options, given),
            public=public_of(options),
            output=Path(options["output"]),
            clipping=ClippingStyle(options.get("clipping", "flat")),
            clip_norm=options.get("clip_norm", 1.0),
            clipping_passes=_passes(options.get("clipping_passes", "1")),
            show_unprotected=options.get("show_unprotected", False),
            logs=tuple(map(LogName, options.get("log", ()))),
            schedule=Schedule(options.get("schedule", "constant")),
            warmup_steps=options.get("warmup_steps", 0),
            optimizer=Optimizer(options["optimizer"] or method.optimizer),
            fsdp=options.get("fsdp", False),
            **{name: options[name] for name in _UNCHANGED},
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _passes(given: object) -> ClippingPasses:
    if str(given) not in list(ClippingPasses):
        raise CommandError(f"--clipping-passes is {given}; it must be one of {', '.join(ClippingPasses)}")
    return ClippingPasses(str(given))


def task_of(options: Mapping[str, Any], model: ModelRequest, data: DataPath, notify: Notify) -> TaskName:
    """The value of ``--task``, or else the task of the adapter or of the model's config.json.

    A task from config.json must fit the records at ``data``. Raises as ``_inferred_task`` does.
    """
    if options["task"] is not None:
        return TaskName(options["task"])
    stated = None if model.adapter is None else _TASKS_OF_PEFT.get(task_type_of(model.adapter) or "")
    if stated is not None:
        return stated
    return _inferred_task(model.path, data, notify, columns_of(options))


def _secrets_of(options: Mapping[str, Any], given: Container[str]) -> SecretsRequest | None:
    """The plan given by ``--secrets``, with ``--batch-size`` if the user gave it."""
    if options.get("secrets") is None:
        return None
    stated = options["batch_size"] if "batch_size" in given else None
    return SecretsRequest(plan=Path(options["secrets"]), batch_size=stated)


def public_of(options: Mapping[str, Any]) -> PublicRequest | None:
    """The public records given by ``--public``. Raises CommandError for files that are also private or held out."""
    if not options.get("public"):
        for name in ("public_weight", "public_batch_size", "public_overlap"):
            if options.get(name) is not None:
                raise CommandError(
                    f"--{name.replace('_', '-')} says how public records are mixed in; give --public too"
                )
        return None
    data, weight, overlap = data_at(options["public"]), options.get("public_weight"), options.get("public_overlap")
    for name, purpose in (("data", "the private data"), ("held_out", "what the model is evaluated on")):
        taken = real_paths(data_at(options[name])) if options.get(name) else ()
        for path in paths_of(data):
            if os.path.realpath(path) in taken:
                raise CommandError(f"--public {path} is {purpose}; give other records, which are public")
    if STDIN in paths_of(data):
        raise CommandError("--public reads its records twice; put them into a file")
    if overlap is not None and str(overlap) not in list(PublicOverlap):
        raise CommandError(f"--public-overlap is {overlap}; it must be one of {', '.join(PublicOverlap)}")
    return PublicRequest(
        data=data,
        weight=WEIGHT if weight is None else float(weight),
        batch_size=options.get("public_batch_size"),
        overlap=PublicOverlap(overlap or PublicOverlap.REFUSE),
    )


#: Options that the request takes unchanged, under the same names.
_UNCHANGED = (
    "epochs", "steps", "batch_size", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "micro_examples",
    "micro_tokens", "device", "bf16", "seed", "resume", "force",
)  # fmt: skip


def model_of(options: Mapping[str, Any], without_adapters: str = "") -> ModelRequest:
    """The model to train. ``without_adapters`` is the method's name if it cannot train adapters.

    Raises CommandError for options that contradict each other, and CommandError or InputError for an invalid adapter.
    """
    path, base = Path(options["model"]), options.get("base")
    adapter = adapter_at(path, None if base is None else Path(base))
    save_adapter, base_bits = bool(options.get("save_adapter", False)), _base_bits(options)
    if adapter is not None:
        _check_adapter(options, without_adapters)
    elif base is not None:
        raise CommandError(f"--base is the base of an adapter, and {path} is a whole model; remove it")
    elif base_bits is not None and not save_adapter:
        raise CommandError(
            "--base-bits holds the frozen base of an adapter in fewer bits, which merged weights cannot keep; add "
            "--lora-rank and --save-adapter, or give an adapter as MODEL"
        )
    elif save_adapter and options["lora_rank"] is None:
        raise CommandError("--save-adapter writes the adapters of --lora-rank; give both")
    elif save_adapter and (options["from_scratch"] or options["vocabulary"] is not None or options["train"]):
        raise CommandError("--save-adapter keeps the base as it is; remove --from-scratch, --vocabulary and --train")
    elif save_adapter and options.get("convert") is not None:
        raise CommandError("--save-adapter keeps the base as it is; give --norm frozen instead of --convert batch-norm")
    return ModelRequest(
        path=path if adapter is None else adapter.base,
        adapter=None if adapter is None else adapter.adapter,
        save_adapter=save_adapter,
        base_bits=base_bits,
        from_scratch=options["from_scratch"],
        vocabulary=options["vocabulary"],
        norm=options["norm"],
        convert=options.get("convert"),
        dropout=options["dropout"],
        train=options["train"],
        lora_rank=options["lora_rank"],
        checkpointing=options.get("checkpointing", False),
    )


def _base_bits(options: Mapping[str, Any]) -> int | None:
    stated = options.get("base_bits")
    if stated not in (None, "4", 4):
        raise CommandError(f"--base-bits is {stated}; it must be 4")
    return None if stated is None else int(stated)


def _check_adapter(options: Mapping[str, Any], without_adapters: str) -> None:
    """Raise CommandError for options that cannot be combined with an adapter as the model."""
    if without_adapters:
        raise CommandError(
            f"{options['model']} is an adapter, which {without_adapters} does not train; give a whole model"
        )
    if options.get("convert") is not None:
        raise CommandError(
            f"--convert batch-norm changes the base, which the adapter {options['model']} keeps as it is; give --norm "
            "frozen instead"
        )
    for name in ("from_scratch", "vocabulary", "train", "lora_rank", "save_adapter"):
        if options.get(name):
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} does not apply to {options['model']}, which is an adapter; remove it")


def data_of(options: Mapping[str, Any], train: DataPath) -> DataRequest:
    """The training data at ``train``, with the options that describe it. Raises CommandError if it is also held out."""
    held_out = data_at(options["held_out"]) if options.get("held_out") else None
    trained_on = real_paths(train)
    for path in () if held_out is None else paths_of(held_out):
        if path != STDIN and os.path.realpath(path) in trained_on:
            raise CommandError(
                f"--held-out {path} is the training data; give examples that the model is not trained on"
            )
    return DataRequest(
        train=train,
        held_out=held_out,
        unit=options.get("unit"),
        labels=labels_named(options["labels"]) if options["labels"] else (),
        columns=columns_of(options),
        long=None if options["long"] is None else LongTextPolicy(options["long"]),
        max_length=options["max_length"],
        response_only=options["response_only"],
        resize=options["resize"],
    )


def _inferred_task(model: Path, data: DataPath, notify: Notify, columns: Columns) -> TaskName:
    """The task that config.json of ``model`` implies, passed to ``notify``, with a note if labels are not used.

    Raises InputError if the model is a text classifier and the records at ``data`` have no labels, CommandError if the
    model can be trained for several tasks, and as ``read_config`` does.
    """
    task, label = task_meant(model), columns.label_name
    # Data without records are refused when they are read.
    fields = None if holds_classes(data) or not found(data) else column_names(data)
    note = f"task {task}, by the model's config.json"
    if fields is not None and task is TaskName.TEXT_CLASSIFICATION and label not in fields:
        quoted_fields = ", ".join(map(repr, fields))
        if len(fields) == 1:
            require_separated(next(iter(fields)), str(data))
        raise InputError(
            f"{data} has no {label!r} in its first record, which holds {quoted_fields}; {model} is a text "
            f"classifier ({class_named(model)}): give every record a label, name its field with --label-column, or "
            "train a language model"
        )
    if fields is not None and task in (TaskName.CAUSAL_LM, TaskName.MASKED_LM) and label in fields:
        note += f"; it does not use the records' labels, as --task {TaskName.TEXT_CLASSIFICATION} would with a new head"
    notify(note)
    return task
