"""Low-rank adapters (Hu et al. 2021, LoRA): found, loaded onto their base with peft, and compared with their file.

peft reads no file here: it is given checked settings and loaded tensors, so that it downloads, imports and unpickles
nothing.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import CommandError, InputError
from privctl.models.guard.adapters import BASE, adapter_config, base_at_hand, stated_base
from privctl.models.guard.loading import check_alone
from privctl.models.guard.weights import equal, tensor_of
from privctl.storage.json_text import shown
from privctl.storage.reader import ADAPTER_CONFIG, ADAPTER_NAME, Checkpoint, holds_adapter, open_checkpoint

#: The prefix that peft adds to the names of the network's tensors.
PREFIX = "base_model.model."
#: Settings that are copied, settings that follow from the tensors, and settings that do not affect results.
_TAKEN = ("r", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "use_dora", "rank_pattern",
          "alpha_pattern", "modules_to_save")  # fmt: skip
_FROM_TENSORS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
_WITHOUT_EFFECT = (BASE, "peft_type", "peft_version", "task_type", "inference_mode", "init_lora_weights", "revision",
                   "auto_mapping", "megatron_core", "qalora_group_size", "runtime_config")  # fmt: skip
#: Initializations that leave the base unchanged. The others subtract their product from the base's weights.
_STARTS = (True, False, "gaussian", "orthogonal")
_LOW_RANK = re.compile(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?$")
_NAME = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOnBase:
    """The folder of an ``adapter``, and that of its base model."""

    adapter: Path
    base: Path


def adapter_at(path: Path, base: Path | None) -> AdapterOnBase | None:
    """The adapter in the folder ``path`` with ``base``, by default the base that it names; None for other folders.

    Raises InputError if the base is not on this machine: nothing is downloaded.
    """
    if not holds_adapter(path):
        return None
    base_path = base_at_hand(path) if base is None else base
    if base_path is None:
        named = stated_base(path)
        which = "names no base" if named is None else f"belongs on {shown(named)}, which is not a model's folder here"
        raise InputError(
            f"{path} is an adapter and {which}; nothing is downloaded, so give the base's folder with --base"
        )
    if holds_adapter(base_path):
        raise InputError(f"{base_path} is an adapter itself; give --base the whole model that {path} was trained on")
    return AdapterOnBase(adapter=path, base=base_path)


def peft_library() -> Any:
    """The module peft; raises CommandError if it is not installed."""
    try:
        return importlib.import_module("peft")
    except ImportError:
        raise CommandError("adapters need peft, which is not installed; pip install 'privctl[peft]'") from None


def task_type_of(folder: Path) -> str | None:
    """The task of the adapter in ``folder`` by peft's name, such as ``SEQ_CLS``; None if it names none."""
    named = adapter_config(folder / ADAPTER_CONFIG).get("task_type")
    return named if isinstance(named, str) else None


def trained_classes(folder: Path) -> int | None:
    """The number of classes of the head in the adapter in ``folder``; None if it has no head."""
    heads = adapter_config(folder / ADAPTER_CONFIG).get("modules_to_save")
    if not isinstance(heads, list):
        return None
    with open_checkpoint(folder) as checkpoint:
        rows = [
            info.shape[0]
            for _, info in checkpoint.tensors()
            if info.shape and not _LOW_RANK.search(info.name) and any(str(h) in info.name.split(".") for h in heads)
        ]
    return min(rows, default=None)  # the last layer of a head has one row per class, the others the network's width


def on_base(network: nn.Module, folder: Path, *, trainable: bool) -> Any:
    """Add the adapter in ``folder`` to ``network``, in place, and return the PeftModel; all else is frozen.

    Raises InputError for settings other than LoRA's, for an adapter that does not fit the network, and if a loaded
    tensor differs from the one in the file.
    """
    peft = peft_library()
    with open_checkpoint(folder) as checkpoint:
        check_alone(checkpoint)
        tensors = {info.name: tensor_of(file, info) for file, info in checkpoint.tensors()}
        config = _settings(peft, folder, checkpoint, inference=not trainable)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{folder}: {name!r} holds NaN or infinity; give other weights")
    dtype = next(p.dtype for p in network.parameters() if p.is_floating_point())
    # As in peft: low-rank matrices in float32, copies of the network's own modules in the network's format.
    ready = {name: t.to(torch.float32 if _LOW_RANK.search(name) else dtype) for name, t in tensors.items()}
    try:
        joined = peft.PeftModel(network, config, low_cpu_mem_usage=True)
        peft.set_peft_model_state_dict(joined, dict(ready), low_cpu_mem_usage=True)
        loaded: Mapping[str, torch.Tensor] = state_of(joined)
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise InputError(f"{folder} does not fit its base: {str(error).splitlines()[0]}; give another --base") from None
    _check_loaded(folder, loaded, ready)
    return joined


def state_of(joined: Any) -> dict[str, torch.Tensor]:
    """The adapter's tensors by their names in peft's files."""
    state: dict[str, torch.Tensor] = peft_library().get_peft_model_state_dict(joined, save_embedding_layers=False)
    return state


def _check_loaded(folder: Path, loaded: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError unless the tensors of the network, ``loaded``, are exactly the ``stored`` ones."""
    for name in sorted(loaded.keys() | stored.keys()):
        if name not in loaded:
            raise InputError(f"{folder} holds {name!r}, which has no place in its base; give another --base")
        if name not in stored or loaded[name].is_meta:
            raise InputError(f"{folder} lacks {name!r}, which its {ADAPTER_CONFIG} asks for; give the folder of peft")
        if loaded[name].shape != stored[name].shape or not equal(loaded[name], stored[name]):
            raise InputError(
                f"{folder}: the loaded tensor {name!r} is not the one in {ADAPTER_NAME}, so results would be about "
                "other weights; check that adapter and base belong together"
            )


def _settings(peft: Any, folder: Path, checkpoint: Checkpoint, *, inference: bool) -> Any:
    """The adapter's LoraConfig; raises InputError for unsupported settings."""
    path = folder / ADAPTER_CONFIG
    data = adapter_config(path)
    if data["peft_type"] != "LORA":
        raise InputError(f"{path} has peft_type {shown(data['peft_type'])}; only LORA is loaded here")
    start = data.get("init_lora_weights", True)
    if start is not None and start not in _STARTS:
        raise InputError(
            f"{path} has init_lora_weights {shown(start)}, by which a loader changes the base too; save it again as a "
            "plain adapter (peft: save_pretrained(..., path_initial_model_for_weight_conversion=...))"
        )
    known = {*_TAKEN, *_FROM_TENSORS, *_WITHOUT_EFFECT}
    for key, value in data.items():
        if key not in known and value not in (None, False, "", "none", {}, []):
            raise InputError(f"{path} has {key} {shown(value)}, which is not supported here; train without it")
    infos = [info for _, info in checkpoint.tensors()]
    modules = sorted({_LOW_RANK.sub("", i.name).removeprefix(PREFIX) for i in infos if _LOW_RANK.search(i.name)})
    if not modules:
        raise InputError(f"{folder} holds no low-rank matrices; give the folder that peft wrote")
    taken = {key: data[key] for key in _TAKEN if data.get(key) is not None}
    largest = max(min(info.shape) if info.shape else 0 for info in infos if _LOW_RANK.search(info.name))
    _check_numbers(path, taken, largest)
    try:
        return peft.LoraConfig(**taken, target_modules=modules, inference_mode=inference)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is refused by peft: {error}") from None


def _check_numbers(path: Path, taken: Mapping[str, Any], largest: int) -> None:
    """Raise InputError for numbers out of range, and for patterns that are not plain names of layers."""
    heads = taken.get("modules_to_save", [])
    if not isinstance(heads, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in heads):
        raise InputError(f"{path} has modules_to_save {shown(heads)}; expected a list of names")
    patterns = {key: taken.get(key) or {} for key in ("rank_pattern", "alpha_pattern")}
    for key, pattern in patterns.items():
        if not isinstance(pattern, dict) or not all(_NAME.fullmatch(name) for name in pattern):
            raise InputError(f"{path} has {key} {shown(pattern)}; expected an object by names of layers")
    for rank in (taken.get("r", 8), *patterns["rank_pattern"].values()):
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank <= max(largest, 1):
            raise InputError(f"{path} has the rank {shown(rank)}, and its matrices have at most {largest}")
    alphas = (taken.get("lora_alpha", 8), *patterns["alpha_pattern"].values())
    numbers = (*alphas, taken.get("lora_dropout", 0.0))
    if not all(isinstance(number, int | float) and abs(number) < 1e6 for number in numbers):
        raise InputError(f"{path} has a lora_alpha or lora_dropout that is no number below 1e6; give peft's own file")
    for key in ("fan_in_fan_out", "use_rslora", "use_dora"):
        if not isinstance(taken.get(key, False), bool):
            raise InputError(f"{path} has {key} {shown(taken[key])}; expected true or false")
