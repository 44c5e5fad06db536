"""Training requests from command-line options, and training reports as terminal text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.options import columns_of, verbose
from privctl.domain.errors import CommandError
from privctl.domain.mechanism import Optimizer

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.models.choices import TaskName
    from privctl.train.request import DataRequest, ModelRequest, RetrainRequest, SecretsRequest

STOPPING = "stopping after this step to save it; interrupt again to stop now and lose unsaved progress"


def on_epoch(measures: Mapping[str, float], *, quiet: bool) -> None:
    """Note an epoch's measures."""
    from privctl.show.progress import note

    if measures:
        note(", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in measures.items()), quiet=quiet)


def request_of(method: str, options: dict[str, Any], **fields: Any) -> RetrainRequest:
    """The request that the options describe; ``fields`` are further fields of it."""
    from privctl.train.choices import ClippingStyle, LogName, Schedule
    from privctl.train.request import BudgetRequest, RetrainRequest

    given: Callable[[str], Any] = options.get
    try:
        return RetrainRequest(
            method_name=method,
            model=model_of(options),
            data=data_of(options, Path(options["data"])),
            task=task_of(options, Path(options["data"])),
            budget=BudgetRequest(
                epsilon=given("epsilon"), noise_multiplier=given("noise_multiplier"), delta=given("delta")
            ),
            secrets=secrets_of(options),
            output=Path(options["output"]),
            clipping=ClippingStyle(options.get("clipping", "flat")),
            clip_norm=options.get("clip_norm", 1.0),
            show_unprotected=options.get("show_unprotected", False),
            logs=tuple(map(LogName, options.get("log", ()))),
            schedule=Schedule(options.get("schedule", "constant")),
            warmup_steps=options.get("warmup_steps", 0),
            optimizer=Optimizer(options["optimizer"]),
            **{name: options[name] for name in _SAME},
            **fields,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def task_of(options: Mapping[str, Any], data: Path) -> TaskName:
    """``--task``, or without it what the model's config.json says, which must fit the records at ``data``."""
    from privctl.models.choices import TaskName
    from privctl.show.progress import note
    from privctl.train.inferred_task import infer_task

    if options["task"] is not None:
        return TaskName(options["task"])
    return infer_task(Path(options["model"]), data, partial(note, quiet=options["quiet"]), columns_of(options))


def secrets_of(options: Mapping[str, Any]) -> SecretsRequest | None:
    """The plan that ``--secrets`` names, with ``--batch-size`` if the user gave it."""
    from privctl.train.request import SecretsRequest

    if options.get("secrets") is None:
        return None
    source = click.get_current_context().get_parameter_source("batch_size")
    given = None if source is click.core.ParameterSource.DEFAULT else options["batch_size"]
    return SecretsRequest(plan=Path(options["secrets"]), batch_size=given)


#: Options that go into the request under their own names.
_SAME = (
    "epochs", "steps", "batch_size", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "micro_examples",
    "micro_tokens", "device", "bf16", "compiled", "seed", "resume", "force",
)  # fmt: skip


def rendered(report: PrivacyReport, caveat: str, *, quiet: bool = False) -> str:
    """The report for a terminal; of its notes, when ``quiet``, only the method's ``caveat``."""
    from privctl.show.text.retrain import retrain_text

    return retrain_text(report, verbose=verbose(), only=caveat if quiet else None)


def model_of(options: Mapping[str, Any]) -> ModelRequest:
    """The model to train, from the options."""
    from privctl.train.request import ModelRequest

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
    from privctl.data.labels import labels_named
    from privctl.models.choices import LongTextPolicy
    from privctl.train.request import DataRequest

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
