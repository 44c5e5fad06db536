"""``privctl.AuditCallback``: membership audits during a training by transformers' Trainer, and a report of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from audits.statistics.metrics import auc
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Omission, PrivacyReport
from privctl.integrations.report import report_place, write
from privctl.storage.atomic import require_absent, write_bytes
from privctl.train.logs.withheld import EXACT_MEASURES
from privctl.train.methods.plain import UNPROTECTED

_NAME = "transformers-trainer"
_SUFFIX = ".private-audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMembership:
    """The AUC of the loss attack after ``step`` steps, with its 95 % confidence interval; 0.5 is chance.

    ``members`` and ``nonmembers`` are numbers of examples. All of it is measured on private examples.
    """

    step: int
    epoch: float
    auc: float
    lower: float
    upper: float
    members: int
    nonmembers: int


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Measures during a training how well a model's losses distinguish ``members`` from ``nonmembers``.

    Both are sequences of examples as the Trainer's data set yields them: ones that are trained on, and similar ones
    that are not. They should be a random split of one source. Their losses are measured every ``every_steps`` steps, or
    by default after each epoch, one example at a time, in evaluation mode.

    The measures are exact and therefore private: no guarantee covers them. They are in ``history`` and, after the
    training, in ``OUTPUT.private-audit.json``, which only its owner can read. They are neither in the report nor in the
    Trainer's logs, which go into checkpoints and to other services.

    After the training the model (and its tokenizer or image processor) is saved in the directory ``output``, and a
    report beside it, which states no guarantee.

    Raises CommandError for settings that do not fit, examples that are both members and non-members, and existing
    files; InputError for a model that returns no loss, or NaN, for these examples.
    """

    def __init__(
        self,
        members: Sequence[Any],
        nonmembers: Sequence[Any],
        *,
        output: str | os.PathLike[str],
        every_steps: int | None = None,
        force: bool = False,
    ) -> None:
        if not len(members) or not len(nonmembers):
            raise CommandError("an audit compares two samples; give at least one member and one non-member")
        trained_on = {_content(members[i]) for i in range(len(members))}
        if both := sum(_content(nonmembers[i]) in trained_on for i in range(len(nonmembers))):
            raise CommandError(
                f"{both} of {len(nonmembers)} nonmembers are members too; give examples that are not trained on"
            )
        if every_steps is not None and every_steps < 1:
            raise CommandError(f"every_steps is {every_steps}; it must be at least 1")
        self.history: tuple[MeasuredMembership, ...] = ()
        self.report: PrivacyReport | None = None
        self._members, self._nonmembers = members, nonmembers
        self._output, self._every, self._force = Path(output), every_steps, force
        self._collate: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise CommandError for existing outputs, before the training, and where there is no training data."""
        if state.is_world_process_zero:
            self._require_places()
        loader = kwargs.get("train_dataloader")
        self._collate = getattr(loader, "collate_fn", None)
        if self._collate is None:
            raise CommandError("the Trainer gave no training data with a collate_fn; give it a train_dataset")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure if this is one of every ``every_steps`` steps."""
        if self._every is not None and state.global_step % self._every == 0:
            self._measure(state, kwargs["model"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure after an epoch, unless ``every_steps`` was given."""
        if self._every is None:
            self._measure(state, kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure once more, and save the model, its report and the private measures."""
        if not self.history or self.history[-1].step != state.global_step:
            self._measure(state, kwargs["model"])
        if not state.is_world_process_zero:
            return
        place = self._require_places()
        kwargs["model"].save_pretrained(self._output)
        if (companion := kwargs.get("processing_class")) is not None:
            companion.save_pretrained(self._output)
        private = self._output.with_name(self._output.name + _SUFFIX)
        measures = [asdict(measurement) for measurement in self.history]
        data = {"warning": EXACT_MEASURES, "model": self._output.name, "membership": measures}
        write_bytes(private, f"{json.dumps(data, indent=1)}\n".encode(), replace=self._force)
        self.report = write(
            self._output,
            place,
            program=_NAME,
            parameters={
                "examples": _size(kwargs.get("train_dataloader")),
                "batch_size": float(args.train_batch_size * args.gradient_accumulation_steps * args.world_size),
                "epochs": float(args.num_train_epochs),
                "learning_rate": float(args.learning_rate),
                "optimizer": str(getattr(args.optim, "value", args.optim)),
                "updates": int(state.global_step),
                "measured_members": len(self._members),
                "measured_nonmembers": len(self._nonmembers),
            },
            warnings=(UNPROTECTED,),
            omissions=(
                Omission(
                    what="how well losses told members from non-members during the training",
                    reason=f"it is exact, so no guarantee covers it; {private.name} has it, for its owner alone",
                ),
            ),
        )

    def _require_places(self) -> Path:
        if not self._force and self._output.is_dir() and any(self._output.iterdir()):
            raise CommandError(f"{self._output} holds files; give force=True to write into it, or another output")
        require_absent(self._output.with_name(self._output.name + _SUFFIX), self._force)
        return report_place(self._output, None, self._force)

    def _measure(self, state: Any, model: Any) -> None:
        area = auc(-self._losses(model, self._members), -self._losses(model, self._nonmembers))
        self.history += (
            MeasuredMembership(
                step=int(state.global_step),
                epoch=float(state.epoch or 0.0),
                auc=area.value,
                lower=area.lower,
                upper=area.upper,
                members=len(self._members),
                nonmembers=len(self._nonmembers),
            ),
        )

    def _losses(self, model: Any, examples: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The loss of each example, in nats [examples]. The state of the random generators is left as it was."""
        training, device = model.training, next(model.parameters()).device
        accelerators = [device.index or 0] if device.type == "cuda" else []
        losses = []
        model.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=accelerators):
                for i in range(len(examples)):
                    batch = {name: value.to(device) for name, value in self._collate([examples[i]]).items()}
                    loss = getattr(model(**batch), "loss", None)
                    if loss is None:
                        raise InputError(f"the model returns no loss for example {i}; give examples with their labels")
                    losses.append(float(loss))
                    if math.isnan(losses[-1]):
                        raise InputError(
                            f"the model's loss for example {i} is NaN, so nothing tells members from non-members; "
                            "lower the learning rate, or train in a format with a larger range"
                        )
        finally:
            model.train(training)
        return np.array(losses)


def _size(loader: Any) -> int | None:
    """The number of training examples; None where the loader's data set has no length."""
    data = getattr(loader, "dataset", None)
    return len(data) if isinstance(data, Sized) else None


def _content(value: Any) -> Any:
    """What is equal for equal examples of dictionaries, lists, tensors, arrays, images, texts and numbers."""
    if isinstance(value, Mapping):
        return tuple((name, _content(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_content, value))
    if isinstance(value, torch.Tensor):  # numpy has no bfloat16
        value = (value.double() if value.is_floating_point() else value).detach().cpu().numpy()
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    array = np.asarray(value)
    return id(value) if array.dtype == object else (array.shape, blake2b(array.tobytes()).digest())
