"""A trained adapter in peft's format: its settings and tensors, and the check that peft loads the same network."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.models.adapters import peft_library, state_of
from privctl.models.choices import TaskName
from privctl.models.four_bit import in_full_precision, settings_for_transformers
from privctl.models.guard.adapters import BASE, adapter_config
from privctl.models.guard.keys import without_code
from privctl.models.loading import TrainingModel
from privctl.models.quiet import quiet_transformers
from privctl.storage.atomic import writing
from privctl.storage.folder import adds_weights
from privctl.storage.reader import ADAPTER_CONFIG
from privctl.train.release.reload_check import ReferenceAnswers, answers, distance
from privctl.train.release.saved import saved_files
from privctl.train.settings.request import ModelRequest

#: What peft calls the tasks that it knows by a name.
_TASK_TYPES = {
    TaskName.CAUSAL_LM: "CAUSAL_LM",
    TaskName.TEXT_CLASSIFICATION: "SEQ_CLS",
    TaskName.TOKEN_CLASSIFICATION: "TOKEN_CLS",
    TaskName.QUESTION_ANSWERING: "QUESTION_ANS",
    TaskName.SEQ2SEQ_LM: "SEQ_2_SEQ_LM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAdapter:
    """An adapter's ``settings``, as the bytes of its file, and the folder of its ``base``.

    ``classes`` is set if the base must be loaded with another number of classes than its config.json has, ``quantized``
    (settings for transformers) if it must be quantized.
    """

    settings: bytes
    base: Path
    classes: int | None
    quantized: Any = None

    def files(self, companion: Any) -> Iterator[tuple[str, bytes]]:
        """The files next to the weights, by name: the settings, and the tokenizer or the scaling of images."""
        yield ADAPTER_CONFIG, self.settings
        with tempfile.TemporaryDirectory(prefix="privctl-") as scratch, writing(Path(scratch)):
            companion.save_pretrained(scratch)
            yield from saved_files(Path(scratch))

    def require(self, folder: Path, reference: ReferenceAnswers, joined: nn.Module, output: Path) -> None:
        """Raise InputError unless peft loads base and ``folder`` as the network ``joined``, with the same outputs.

        Errors name the folder ``output``.
        """
        fault = next(self._faults(folder, reference, joined), None)
        if fault is not None:
            raise InputError(
                f"{output} would not be the trained adapter: {fault}; nothing was written, so check that the installed "
                "peft and transformers fit the base"
            )

    def _faults(self, folder: Path, reference: ReferenceAnswers, joined: nn.Module) -> Iterator[str]:
        more: dict[str, Any] = {} if self.classes is None else {"num_labels": self.classes}
        if self.quantized is not None:
            # On the device of the reference, as kernels round differently.
            more |= {"quantization_config": self.quantized, "device_map": {"": next(joined.parameters()).device}}
        try:
            with quiet_transformers(), torch.random.fork_rng(devices=[]):
                base = reference.kind.auto.from_pretrained(
                    self.base, local_files_only=True, trust_remote_code=False, ignore_mismatched_sizes=True, **more
                )
                if self.quantized is None:
                    base = base.float()
                in_full_precision(base)
                loaded = peft_library().PeftModel.from_pretrained(base, folder, local_files_only=True)
        except Exception as error:  # users of the model would get the same error, whatever its type
            yield f"peft cannot load it ({str(error).strip().splitlines()[0] if str(error) else error!r})"
            return
        trained, read = state_of(joined), state_of(loaded)
        for name in sorted(trained.keys() | read.keys()):
            if name not in trained or name not in read or not torch.equal(trained[name].cpu(), read[name].cpu()):
                yield f"peft loads another {name} than was trained"
        yield from reference.other_tokens(folder)
        far = distance(answers(loaded, reference.inputs), reference.answers)
        if far > reference.tolerance:
            yield (
                f"loaded by peft on {self.base} its answers differ by {far:.2g} of the largest, where "
                f"{reference.tolerance:g} is rounding"
            )


def released_adapter(joined: Any, model: TrainingModel, request: ModelRequest) -> ReleasedAdapter | None:
    """The settings and base of the adapter in ``joined``; None if no adapter is released by itself.

    Raises InputError for a base without weights or that is not a folder, which is what peft refers to.
    """
    if not request.adapter_only:
        return None
    base = request.path
    if model.initial_weights == "random":
        raise InputError(f"{base} has no weights, and an adapter needs a base that has; train that first")
    if not base.is_dir():
        raise InputError(f"{base} is a file, and an adapter names the folder of its base; give that folder")
    if added := sorted(file.name for file in base.iterdir() if adds_weights(file.name)):
        raise InputError(
            f"{base} also holds {added[0]}, by which a loader adds another adapter to this base; move it to another "
            "folder"
        )
    if request.adapter is not None:
        settings, _ = without_code(adapter_config(request.adapter / ADAPTER_CONFIG))
    else:
        settings = joined.peft_config["default"].to_dict() | {"task_type": _TASK_TYPES.get(model.task)}
    settings = {**settings, BASE: str(base), "inference_mode": True}
    content = json.dumps(settings, indent=2, sort_keys=True, default=_as_plain).encode() + b"\n"
    return ReleasedAdapter(
        settings=content,
        base=base,
        classes=_classes(model, base),
        quantized=settings_for_transformers(joined.base_model.model),
    )


def _classes(model: TrainingModel, base: Path) -> int | None:
    if model.labels is None:
        return None
    stated = json.loads((base / "config.json").read_text(encoding="utf-8")).get("id2label")
    return None if len(stated or (0, 1)) == len(model.labels) else len(model.labels)


def _as_plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
