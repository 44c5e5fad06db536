"""A stream on disk: a bit a sign, everything needed to replay it, and nothing that is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import TaskName
from privctl.storage.reader import SafetensorsFile
from privctl.train.methods.ferret.settings import SilentMomentum, UpdateScale
from privctl.train.methods.ferret.stream import (
    Origin,
    Stream,
    StreamRecipe,
    base_of,
    layout_of,
    read_stream,
    staged_stream,
)
from privctl.train.methods.ferret.update import UpdateRule
from privctl.train.network.tensors import read_tensors, write_tensors
from privctl.train.settings.choices import Schedule

RECIPE = StreamRecipe(
    seed="00ff",
    groups="eighth",
    fire_probability=0.1 + 0.2,
    layout="blake3:00",
    base="blake3:11",
    epoch_steps=7,
    rule=UpdateRule(
        steps=1000,
        learning_rate=0.1,
        optimizer=Optimizer.MOMENTUM,
        momentum=0.9,
        schedule=Schedule.COSINE,
        silent=SilentMomentum.HOLD,
        update_scale=UpdateScale.ROOT_DIMENSION,
    ),
    lost=((3, 5), (9, 10)),
    model=Origin(task=TaskName.TEXT_CLASSIFICATION, labels=("a", "b"), train=("*.bias",), seed=3),
)


def signs(count: int) -> Tensor:
    return 2 * torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(0)).double() - 1


@pytest.mark.parametrize("count", [0, 1, 8, 1001])
def test_signs_come_back_and_take_a_bit_each(count: int, tmp_path: Path) -> None:
    stream = Stream(recipe=RECIPE, amounts=signs(count), bits=True)
    with staged_stream(tmp_path / "a.safetensors", stream) as pending:
        pending.commit()
    found = read_stream(tmp_path / "a.safetensors")
    assert (found.recipe, found.bits) == (RECIPE, True)
    assert torch.equal(found.amounts, stream.amounts)
    assert len(read_tensors(tmp_path / "a.safetensors")["bits"]) == (count + 7) // 8
    assert found.masks(19).seed == b"\x00\xff"
    assert found.masks(19).fire_probability == 0.1 + 0.2


def test_values_come_back(tmp_path: Path) -> None:
    values = torch.randn(9).double()
    with staged_stream(tmp_path / "a.safetensors", Stream(recipe=RECIPE, amounts=values, bits=False)) as pending:
        pending.commit()
    found = read_stream(tmp_path / "a.safetensors")
    assert not found.bits
    assert torch.equal(found.amounts, values)


DAMAGES: dict[str, Callable[[dict[str, object]], object]] = {
    "more bits than there are": lambda header: header.update(published=99),
    "no count": lambda header: header.pop("published"),
    "another version": lambda header: header.update(version=2),
    "a seed that is none": lambda header: header.update(seed="xyz"),
    "no steps": lambda header: header["rule"].update(steps=0),  # type: ignore[attr-defined]
    "no steps an epoch": lambda header: header.update(epoch_steps=0),
    "no probability": lambda header: header.update(fire_probability=1.5),
    "a stretch that goes back": lambda header: header.update(lost=[[5, 3]]),
    "half a stretch": lambda header: header.update(lost=[[5]]),
    "a stretch after the end": lambda header: header.update(lost=[[5, 1001]]),
    "a rank that is none": lambda header: header["model"].update(lora_rank="x"),  # type: ignore[attr-defined]
    "a glob that is none": lambda header: header["model"].update(train=[1]),  # type: ignore[attr-defined]
    "a seed below 0": lambda header: header["model"].update(seed=-1),  # type: ignore[attr-defined]
    "a rate that float32 does not hold": lambda header: header["rule"].update(learning_rate=1e300),  # type: ignore[attr-defined]
    "an unknown key": lambda header: header.update(more=1),
    "nothing": lambda header: header.clear(),
}


@pytest.mark.parametrize("directions", [4096, 4097, 10**12])
def test_a_stream_has_no_more_directions_than_a_training(directions: int, tmp_path: Path) -> None:
    """Of a trillion the groups alone would take all memory."""
    rule = UpdateRule(steps=10, learning_rate=0.1, optimizer=Optimizer.SGD, directions=directions)
    stream = Stream(recipe=replace(RECIPE, rule=rule, lost=()), amounts=signs(20), bits=True)
    with staged_stream(tmp_path / "a.safetensors", stream) as pending:
        pending.commit()
    refused = pytest.raises(InputError, match="is damaged, or of a version that is not known here")
    with nullcontext() if directions <= 4096 else refused:
        read_stream(tmp_path / "a.safetensors")


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_what_is_damaged_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with staged_stream(path, Stream(recipe=RECIPE, amounts=signs(20), bits=True)) as pending:
        pending.commit()
    with SafetensorsFile(path) as file:
        header = json.loads(file.metadata["privctl.updates"])
    DAMAGES[damage](header)
    write_tensors(path, read_tensors(path), {"privctl.updates": json.dumps(header)})
    with pytest.raises(InputError, match=str(path)):
        read_stream(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a": torch.ones(2)}, {})
    with pytest.raises(InputError, match="holds no updates"):
        read_stream(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"none\.safetensors"):
        read_stream(tmp_path / "none.safetensors")


def test_digests_tell_models_and_layouts_apart() -> None:
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(())}
    other = {**weights, "a": torch.zeros(3, 2)}
    assert base_of(weights) == base_of(dict(reversed(weights.items())))
    assert len({base_of(weights), base_of(other), base_of({"a": weights["a"]})}) == 3
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    assert layout_of((("a",), ("b",)), shapes) != layout_of((("a", "b"),), shapes)
