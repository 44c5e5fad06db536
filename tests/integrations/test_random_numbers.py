"""Random numbers inside a private loop's ``backward``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import privctl

_ROWS = 257


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def losses_after_seed(seed: int) -> tuple[Tensor, Tensor]:
    """The losses of a batch of equal rows under dropout, and what torch draws after it, for a given seed."""
    model = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
        model[2].weight[0] = torch.linspace(-1, 1, 30)
    data = TensorDataset(torch.ones(_ROWS, 4), torch.zeros(_ROWS, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privctl.make_private(
        model, optimizer, DataLoader(data, batch_size=_ROWS), noise_multiplier=1.0, delta=1e-5
    )
    for x, y in private.loader:
        torch.manual_seed(seed)
        clipped = private.backward(lambda x=x, y=y: functional.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
    return clipped.losses, torch.rand(3)


def test_dropout_is_not_that_of_a_known_seed() -> None:
    """Else one record more would visibly move the dropout of all rows behind it."""
    first, second = losses_after_seed(0), losses_after_seed(0)
    assert len(set(first[0].tolist())) > _ROWS / 2  # each row has its own
    assert not torch.equal(first[0], second[0])


def test_other_random_numbers_do_not_depend_on_how_many_a_batch_drew() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    assert torch.equal(losses_after_seed(5)[1], expected)


def test_random_changes_of_rows_are_not_those_of_a_known_seed() -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, row: int) -> tuple[Tensor, ...]:
            return (super().__getitem__(row)[0] + torch.randn(4),)

    seen, after = [], []
    for _ in range(2):
        model = nn.Linear(4, 1)
        private = privctl.make_private(
            model, torch.optim.SGD(model.parameters()), DataLoader(Noisy(torch.ones(9, 4)), batch_size=9),
            noise_multiplier=1.0, delta=1e-3,
        )  # fmt: skip
        torch.manual_seed(0)
        seen.append(next(iter(private.loader))[0])
        after.append(torch.rand(2))
    assert not torch.equal(*seen)
    assert torch.equal(*after)
