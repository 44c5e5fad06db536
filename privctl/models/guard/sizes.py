"""Checks, before a network is built, that its configuration agrees in size with the weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.storage.header import TensorInfo

#: Most layers of a network; the deepest published ones have about 1,000.
MOST_LAYERS = 2048
#: Most classes, heads and experts; each creates Python objects before there is a tensor.
MOST_PARTS = 1 << 20
#: Largest integer of a configuration, except for lengths, where huge numbers mean no limit.
MOST = 1 << 40
#: Allowed excess over the numbers in the weights (a head, position tables): a factor, and a constant in addition.
SPARE_FACTOR, SPARE = 2, 1 << 26
#: Bytes per number while a network is built, and the fraction of the machine's memory that it may take.
_BYTES, _FRACTION = 4, 0.8

#: Cache of ``numbers_of``, by transformers class, configuration class and configuration JSON.
_SIZES: dict[tuple[Any, type, str], int] = {}

_LAYERS = re.compile(r"(^|_)(layers?|depths?|stages|blocks)$")
#: Keys that are not counts of layers but the index of the first layer of another kind, which may exceed the count.
_LAYER_INDICES = frozenset({"max_window_layers"})
_PARTS = re.compile(r"(^|_)(labels|heads|experts|groups|channels)$")


def check_counts(data: Any, path: Path, tensors: Iterable[TensorInfo] | None) -> None:
    """Raise InputError if ``data``, a configuration from ``path``, states impossible counts, such as of layers.

    ``tensors`` are those of the weights, None for random weights. Every layer has at least one tensor.
    """
    stored = None if tensors is None else sum(1 for _ in tensors)
    for key, count in _integers(data):
        if _LAYERS.search(key) and key not in _LAYER_INDICES:
            if stored is not None and count > max(stored, 1):
                raise InputError(
                    f"{path} has {key} {count}, but the weights are {stored} tensors, and each layer has at least one; "
                    "give the weights' own config.json"
                )
            if count > MOST_LAYERS:
                raise InputError(f"{path} has {key} {count}; at most {MOST_LAYERS} layers are built")
        most = MOST_PARTS if _PARTS.search(key) else MOST
        if abs(count) > most and not _is_unlimited(key):
            raise InputError(f"{path} has {key} {count}, and {most} is the most; give the weights' own config.json")


def _is_unlimited(key: str) -> bool:
    return "max" in key or "length" in key


def _integers(data: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """(key, integer) for every integer, at any depth."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _integers(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from _integers(value, key)
    elif isinstance(data, int) and not isinstance(data, bool):
        yield key, data


def check_built(built: int, path: Path, tensors: Iterable[TensorInfo] | None) -> None:
    """Raise InputError if the network of the configuration at ``path``, with ``built`` numbers, is too large.

    The limit is ``SPARE_FACTOR`` times the numbers in ``tensors``, plus ``SPARE``; for random weights, a fraction of
    the machine's memory.
    """
    if tensors is None:
        room = int(_FRACTION * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        if built * _BYTES > room:
            raise InputError(
                f"{path} describes a network of {built} numbers, {built * _BYTES >> 30} GiB, and this machine has "
                f"room for {room >> 30} GiB; give a smaller one"
            )
        return
    stored = sum(_count(tensor.shape) for tensor in tensors)
    if built > SPARE_FACTOR * stored + SPARE:
        raise InputError(
            f"{path} describes a network of {built} numbers, but the weights hold {stored}; give the weights' own "
            "config.json"
        )


def numbers_of(auto: Any, config: Any) -> int:
    """The number of elements of all parameters and buffers of the network that ``auto`` builds from ``config``.

    The network is built on the meta device, without memory and without drawing numbers, once per process and
    configuration; this takes as long as loading a small model.
    """
    facts = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    key = (auto, type(config), json.dumps(facts, sort_keys=True, default=repr))
    if key not in _SIZES:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            built: nn.Module = auto.from_config(config, trust_remote_code=False)
        _SIZES[key] = sum(tensor.numel() for tensor in (*built.parameters(), *built.buffers()))
    return _SIZES[key]


def _count(shape: tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements
