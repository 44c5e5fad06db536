"""Groups are consecutive, balanced, complete; ties count once and frozen tensors not at all."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from privctl.domain.errors import CommandError, InputError
from privctl.train.methods.ferret.groups import group_sizes, group_tensors, repeat_groups, trainable

SIZES = dict(zip("abcdefghij", (9, 1, 1, 4, 4, 20, 1, 2, 3, 5), strict=True))


def test_max_and_eighth() -> None:
    assert group_tensors(SIZES, "max") == tuple((name,) for name in SIZES)
    assert group_tensors(SIZES, "eighth") == (tuple("abcdefgh"), tuple("ij"))
    # docs/papers.md#mutual-information-of-sign-bits: 148 tensors make 19 buckets.
    assert len(group_tensors({str(i): 1 for i in range(148)}, "eighth")) == 19


@pytest.mark.parametrize("count", range(1, 11))
def test_a_number_of_groups_is_met_and_balanced(count: int) -> None:
    groups = group_tensors(SIZES, str(count))
    assert len(groups) == count
    assert [name for group in groups for name in group] == list(SIZES)
    largest = max(group_sizes(groups, SIZES))
    names = list(SIZES)
    for ends in itertools.combinations(range(1, 10), count - 1):
        parts = [names[a:b] for a, b in itertools.pairwise((0, *ends, 10))]
        assert max(group_sizes(parts, SIZES)) >= largest


def test_each_group_stands_once_for_each_direction() -> None:
    assert repeat_groups((("a", "b"), ("c",)), 2) == (("a", "b"), ("a", "b"), ("c",), ("c",))


@pytest.mark.parametrize("asked", ["0", "11", "-1", "1.5", "all", ""])
def test_other_groups_are_refused(asked: str) -> None:
    with pytest.raises(CommandError, match="from 1 to 10"):
        group_tensors(SIZES, asked)


def test_ties_count_once_and_frozen_tensors_not_at_all() -> None:
    network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3), nn.Linear(3, 2))
    network[1].weight = network[0].weight
    network[2].bias.requires_grad_(False)
    assert list(trainable(network)) == ["0.weight", "1.bias", "2.weight"]
    with pytest.raises(InputError, match="nothing to train"):
        trainable(network.requires_grad_(False))
    assert torch.equal(network[0].weight, network[1].weight)
