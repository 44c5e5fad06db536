"""Checks that a loaded network has exactly the digested weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.storage.header import TensorInfo
from privctl.storage.reader import Checkpoint, SafetensorsFile

#: Number format in a safetensors file -> torch dtype.
TORCH_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
#: Former suffixes of a layer's weight and bias -> current ones.
_FORMER_SUFFIXES = ((".gamma", ".weight"), (".beta", ".bias"))
#: Allowed difference of sums over rearranged tensors, relative to the sum of magnitudes.
_TOLERANCE = 1e-9


def check_loaded(network: nn.Module, checkpoint: Checkpoint, unused: Collection[str], fresh: Collection[str]) -> None:
    """Raise InputError unless every number of ``network`` is one of ``checkpoint``, converted to the network's format.

    ``unused`` names tensors of the checkpoint that the network lacks, ``fresh`` those of the network that were drawn at
    random. Tensors are compared by name. If an architecture renames or rearranges tensors (experts in one tensor), the
    network's are first converted back to the file's form, as for saving. The remaining tensors of both sides must agree
    in their number of elements, their sum and their sum of squares.
    """
    state = dict(network.state_dict())
    prefix: str = getattr(network, "base_model_prefix", "")
    ignored = getattr(network, "_keys_to_ignore_on_load_unexpected", None) or ()
    loaded_addresses: set[int] = set()
    unmatched: list[tuple[SafetensorsFile, TensorInfo]] = []
    for file, info in checkpoint.tensors():
        names = list(names_in_network(info.name, prefix))
        if info.name in unused or any(candidate in fresh for candidate in names):
            continue
        name = next((candidate for candidate in names if candidate in state), None)
        if name is None and any(re.search(pattern, info.name) for pattern in ignored):
            continue  # a buffer that older versions saved and that is now computed
        if name is None or tuple(state[name].shape) != info.shape:
            unmatched.append((file, info))
            continue
        if not equal(state[name], tensor_of(file, info)):
            raise InputError(
                f"{checkpoint.root}: the loaded tensor {name!r} is not the one in {file.path.name}, so results would "
                "be about other weights; remove whatever redirects the loader"
            )
        loaded_addresses.add(state[name].data_ptr())
    unaccounted = {n: t for n, t in state.items() if t.data_ptr() not in loaded_addresses and n not in fresh}
    buffers = {t.data_ptr() for n, t in unaccounted.items() if not _is_parameter(network, n)}
    if unmatched:
        unaccounted, unmatched = _without_restored(checkpoint, _restored(network, unaccounted), unmatched)
    learned = [tensor for tensor in unaccounted.values() if tensor.data_ptr() not in buffers]
    _check_rearranged(checkpoint, unmatched, learned)


def names_in_network(name: str, prefix: str) -> Iterator[str]:
    """The names under which a file's tensor ``name`` may be in a network with this base model ``prefix``."""
    yield name
    yield f"{prefix}.{name}"
    yield name.removeprefix(f"{prefix}.")
    for old, new in _FORMER_SUFFIXES:
        if name.endswith(old):
            yield from names_in_network(name.removesuffix(old) + new, prefix)


def _is_parameter(network: nn.Module, name: str) -> bool:
    """Whether the tensor ``name`` is a parameter rather than a buffer, which may be computed."""
    value: Any = network
    for part in name.split("."):
        value = getattr(value, part)
    return isinstance(value, nn.Parameter)


def _restored(network: nn.Module, loaded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The ``loaded`` tensors converted to the file's form by transformers; unchanged if it cannot convert them."""
    try:
        from transformers.core_model_loading import revert_weight_conversion

        restored: dict[str, torch.Tensor] = revert_weight_conversion(network, loaded)
    except Exception:  # the conversion has no inverse, or transformers is another version; sums are compared instead
        return loaded
    return restored


def _without_restored(
    checkpoint: Checkpoint, restored: dict[str, torch.Tensor], unmatched: list[tuple[SafetensorsFile, TensorInfo]]
) -> tuple[dict[str, torch.Tensor], list[tuple[SafetensorsFile, TensorInfo]]]:
    """Both sides without the tensors that agree by name. Raises InputError if tensors of one name differ."""
    left, beyond = dict(restored), []
    matched: set[tuple[int, int]] = set()
    for file, info in unmatched:
        restored_tensor = restored.get(info.name)
        if restored_tensor is None or tuple(restored_tensor.shape) != info.shape:
            beyond.append((file, info))
            continue
        if not equal(restored_tensor, tensor_of(file, info)):
            raise _other_numbers(checkpoint, info.name, 1)
        matched.add(_memory_place(left.pop(info.name)))
    return {name: tensor for name, tensor in left.items() if _memory_place(tensor) not in matched}, beyond


def _memory_place(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, number of elements) of a tensor, which is the same for tied tensors."""
    return tensor.data_ptr(), tensor.numel()


def tensor_of(file: SafetensorsFile, info: TensorInfo) -> torch.Tensor:
    """A tensor of a file, in the file's number format; raises InputError for an unsupported format."""
    kind = TORCH_TYPES.get(info.dtype)
    if kind is None:
        raise InputError(f"{file.path}: the tensor {info.name!r} is {info.dtype}, which is not run here; convert it")
    raw = file.read(info)
    return torch.frombuffer(raw, dtype=kind).reshape(info.shape) if raw else torch.empty(info.shape, dtype=kind)


def equal(loaded: torch.Tensor, stored: torch.Tensor) -> bool:
    """Whether ``loaded`` equals ``stored`` converted to the format of ``loaded``; NaN equals NaN."""
    actual, expected = loaded.detach().cpu(), stored.to(loaded.dtype)
    if torch.equal(actual, expected):
        return True
    return actual.is_floating_point() and torch.equal(actual.isnan(), expected.isnan()) and torch.equal(
        torch.nan_to_num(actual.float()), torch.nan_to_num(expected.float())
    )  # fmt: skip


def _check_rearranged(
    checkpoint: Checkpoint, unmatched: list[tuple[SafetensorsFile, TensorInfo]], learned: list[torch.Tensor]
) -> None:
    if not unmatched and not learned:
        return
    kind = learned[0].dtype if learned else torch.float32
    network_moments = _moments(learned)
    stored_moments = _moments(tensor_of(file, info).to(kind) for file, info in unmatched)
    room = _TOLERANCE * max(network_moments[3], stored_moments[3], 1e-300)
    if network_moments[0] != stored_moments[0] or not all(
        abs(a - b) <= room for a, b in zip(network_moments[1:3], stored_moments[1:3], strict=True)
    ):
        tensor_name = unmatched[0][1].name if unmatched else "tensors of the network"
        raise _other_numbers(checkpoint, tensor_name, len(unmatched))


def _other_numbers(checkpoint: Checkpoint, name: str, count: int) -> InputError:
    more = f" and {count - 1} more" if count > 1 else ""
    return InputError(
        f"{checkpoint.root}: the loaded model holds other numbers than the file for {name!r}{more}, so results would "
        "be about other weights; remove whatever redirects the loader"
    )


def _moments(tensors: Iterable[torch.Tensor]) -> tuple[int, float, float, float]:
    """(number of elements, sum, sum of squares, scale of both sums) over all ``tensors``."""
    count, total, squares, scale = 0, 0.0, 0.0, 0.0
    for tensor in tensors:
        values = tensor.detach().cpu().double()
        count += values.numel()
        total += float(values.sum())
        squares += float((values * values).sum())
        scale += float(values.abs().sum()) + float((values * values).sum())
    return count, total, squares, scale
