"""The stream of updates of a run: everything that was published, and how to replay it on the initial model.

It is a safetensors file of a few kilobytes with the bits or values in order of (step, group). Its header has everything
else that a replay needs, all of it public.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from privctl.domain.checks import at_least, probability
from privctl.domain.errors import InputError
from privctl.domain.ranges import DIRECTIONS
from privctl.models.choices import TaskName
from privctl.reports.codec import decode_value, encode_value
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import tag
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile
from privctl.train.methods.ferret.groups import Groups
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.update import UpdateRule
from privctl.train.network.tensors import read_tensors, staged_tensors

#: The key of the recipe, as JSON, in the header's metadata.
_KEY = "privctl.updates"
_BITS, _VALUES = "bits", "values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How the run made its network from the files of a model.

    ``adapter`` says that an adapter was given, ``save_adapter`` that a new one was released by itself. Raises
    ValueError for a seed out of range.
    """

    task: TaskName
    labels: tuple[str, ...] | None = None
    from_scratch: bool = False
    seed: int = 0
    norm: str | None = None
    train: tuple[str, ...] = ()
    lora_rank: int | None = None
    convert: str | None = None
    adapter: bool = False
    save_adapter: bool = False
    private_vocabulary: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be at least 0 and below 2^63")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecipe:
    """How to replay a stream.

    ``seed`` is hexadecimal. ``layout`` is the digest of names and shapes of the groups' tensors, ``base`` that of all
    initial weights. An epoch, after which silent steps were made up for, is ``epoch_steps`` steps; with an
    ``epoch_rate``, epoch k ends with step ceil(k / rate) instead. ``lost`` are ranges of steps (from, to) that were
    begun, interrupted and never made; what they published is unknown. Raises ValueError for values that no run can
    have.
    """

    seed: str
    groups: str
    fire_probability: float
    layout: str
    base: str
    epoch_steps: int
    epoch_rate: float | None = None
    rule: UpdateRule
    lost: tuple[tuple[int, ...], ...] = ()
    model: Origin
    version: int = 1

    def __post_init__(self) -> None:
        at_least("epoch_steps", self.epoch_steps, 1)
        if self.epoch_rate is not None:
            probability("epoch_rate", self.epoch_rate)
        probability("fire_probability", self.fire_probability)
        steps = self.rule.steps
        if not all(len(span) == 2 and 0 <= span[0] < span[1] <= steps for span in self.lost):
            raise ValueError(f"lost is {self.lost}; it must hold pairs of steps, rising, up to {steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """All published ``amounts`` (fired,) float64, in order of step and group; with ``bits`` each is 1 or -1."""

    recipe: StreamRecipe
    amounts: Tensor
    bits: bool

    def masks(self, groups: int) -> Masks:
        """The masks of the run for ``groups`` groups."""
        return Masks(
            seed=bytes.fromhex(self.recipe.seed),
            groups=groups,
            fire_probability=self.recipe.fire_probability,
            steps=self.recipe.rule.steps,
        )


def staged_stream(path: Path, stream: Stream) -> AbstractContextManager[PendingFile]:
    """The file of ``stream``, before it gets its final name ``path``."""
    if stream.bits:
        packed = np.packbits((stream.amounts > 0).numpy(), bitorder="little")
        tensors = {_BITS: torch.from_numpy(packed)}
    else:
        tensors = {_VALUES: stream.amounts.float()}
    header = {**encode_value(stream.recipe), "published": len(stream.amounts)}
    return staged_tensors(path, tensors, {"format": "pt", _KEY: json.dumps(header)})


def read_stream(path: Path) -> Stream:
    """The stream at ``path``. Raises InputError for a file that is not a valid stream."""
    with SafetensorsFile(path) as file:
        text = file.metadata.get(_KEY)
    if text is None:
        raise InputError(f"{path} holds no updates; give the *.updates.safetensors that privctl retrain ferret wrote")
    data = parse_json(text, str(path))
    count = data.pop("published", None) if isinstance(data, dict) else None
    recipe = decode_value(StreamRecipe, data, str(path), _KEY)
    tensors = read_tensors(path)
    bits = _BITS in tensors
    tensor = tensors.get(_BITS if bits else _VALUES)
    fits = (
        tensor is not None
        and isinstance(count, int)
        and tensor.dtype == (torch.uint8 if bits else torch.float32)
        and tensor.shape == ((count + 7) // 8 if bits else count,)
    )
    known = recipe.version == 1 and recipe.rule.directions <= DIRECTIONS.high  # more directions would exhaust memory
    if not known or not fits or not _is_hexadecimal(recipe.seed):
        raise InputError(f"{path} is damaged, or of a version that is not known here; get it again from its maker")
    assert tensor is not None
    if bits:
        ones = np.unpackbits(tensor.numpy(), count=count, bitorder="little").astype(np.float64)
        return Stream(recipe=recipe, amounts=torch.from_numpy(2 * ones - 1), bits=True)
    return Stream(recipe=recipe, amounts=tensor.double(), bits=False)


def layout_of(groups: Groups, shapes: Mapping[str, Iterable[int]]) -> str:
    """The digest of the groups' tensors: names, order and shapes."""
    layout = [[[name, list(shapes[name])] for name in group] for group in groups]
    return tag(blake3(json.dumps(layout).encode()))


def base_of(tensors: Mapping[str, Tensor]) -> str:
    """The digest of weights in memory: names, types, shapes and values."""
    hasher = blake3()
    for name, tensor in sorted(tensors.items()):
        hasher.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        hasher.update(flat.view(torch.uint8).numpy().data)
    return tag(hasher)


def _is_hexadecimal(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
