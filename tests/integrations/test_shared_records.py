"""Data sets whose items are made of several records, so that one record is in several items."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import privctl
from privctl.domain.errors import CommandError
from privctl.integrations.shared_records import require_own_items

_COUNT = 60


class _Records(Dataset[Any]):
    """Records of tensors, a data set below, arrays and lists; a subclass says which an item is made of."""

    def __init__(self) -> None:
        self.inputs, self.labels = torch.randn(_COUNT, 5), [each % 3 for each in range(_COUNT)]
        self.below = TensorDataset(self.inputs, torch.zeros(_COUNT))
        self.array, self.order = self.inputs.numpy(), np.random.default_rng(0).permutation(_COUNT)
        self.cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return _COUNT

    def inputs_of(self, item: int) -> Tensor:
        raise NotImplementedError

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return self.inputs_of(item), self.labels[item]


class _Mixup(_Records):
    def inputs_of(self, item: int) -> Tensor:
        other = int(torch.randint(0, _COUNT, ()))
        return 0.7 * self.inputs[item] + 0.3 * self.inputs[other]


class _MixupBelow(_Records):
    def inputs_of(self, item: int) -> Tensor:
        own, _ = self.below[item]
        return own if random.random() < 0.3 else 0.5 * (own + self.below[random.randrange(_COUNT)][0])


class _NextOne(_Records):
    def inputs_of(self, item: int) -> Tensor:
        return torch.from_numpy(self.array[item] - self.array[(item + 1) % _COUNT])


class _NextOfFive(_Records):
    def inputs_of(self, item: int) -> Tensor:
        return self.inputs[item] + self.inputs[item // 5 * 5 + (item + 1) % 5]


class _TwoAtOnce(_Records):
    def inputs_of(self, item: int) -> Tensor:
        return self.inputs[[item, (item + 7) % _COUNT]].sum(0)


class _Standardized(_Records):
    def inputs_of(self, item: int) -> Tensor:
        return self.inputs[item] - self.inputs.mean(0)


class _Shuffled(_Records):
    def inputs_of(self, item: int) -> Tensor:
        return self.inputs[self.order[item]] + 0.1 * torch.randn(5)


class _TwoViews(_Records):
    """As in contrastive learning: two changes of one record. The second time, it is in the cache."""

    def inputs_of(self, item: int) -> Tensor:
        if item not in self.cache:
            self.cache[item] = self.below[item][0] + self.below[item - _COUNT][0] * torch.randn(())
        return self.cache[item]


class _Windows(_Records):
    """Pairs of records that no two items share."""

    def inputs_of(self, item: int) -> Tensor:
        first = 2 * item % _COUNT
        return self.inputs[first] + self.inputs[first + 1] if item < _COUNT // 2 else torch.zeros(5)


class _KnownNames(_Records):
    """It looks through a list with as many entries as there are records."""

    def inputs_of(self, item: int) -> Tensor:
        return self.inputs[item] if 2 in self.labels and self.labels.count(1) else torch.zeros(5)


def _made(data: Any, **more: Any) -> None:
    model = nn.Linear(5, 3)
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4)
    privctl.make_private(model, optimizer, loader, noise_multiplier=1.0, **more).close()


@pytest.mark.parametrize("kind", [_Mixup, _MixupBelow, _NextOne, _TwoAtOnce, _Standardized])
def test_planted_a_data_set_that_mixes_records_is_refused(kind: type[_Records]) -> None:
    random.seed(0)
    for data in (kind(), random_split(kind(), [40, 20])[0]):
        with pytest.raises(CommandError, match="are made of the same record of its '(inputs|below|array)'"):
            _made(data)


def test_the_records_of_one_user_may_be_mixed() -> None:
    _made(_NextOfFive(), users=[each // 5 for each in range(_COUNT)])
    with pytest.raises(CommandError, match="are made of the same record"):
        _made(_NextOfFive(), users=list(range(_COUNT)))


@pytest.mark.parametrize("kind", [_Shuffled, _TwoViews, _Windows, _KnownNames])
def test_a_data_set_of_one_record_each_is_not_refused(kind: type[_Records]) -> None:
    data = kind()
    torch.manual_seed(0)
    random.seed(0)
    states = torch.get_rng_state(), random.getstate()
    attributes = dict(vars(data))
    require_own_items(data, None)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert all(vars(data)[name] is value for name, value in attributes.items())


def test_a_data_set_that_fails_is_left_to_the_training() -> None:
    class Failing(_Records):
        def inputs_of(self, item: int) -> Tensor:
            raise OSError("truncated")

    _made(Failing())
