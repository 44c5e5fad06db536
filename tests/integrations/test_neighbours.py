"""Loops whose losses, networks or collate functions let one record change what others add, and ones that seem to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import CommandError, InputError
from privctl.integrations.neighbours import Neighbours, _by_row, _replaced, _Replacing
from privctl.integrations.private_training import PrivateTraining

_ROWS, _BATCH, _LENGTH = 100, 20, 7
Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]


def data(rows: int = _ROWS) -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, _LENGTH, generator=source)
    return TensorDataset(inputs, torch.randint(0, 3, (rows,), generator=source))


def own(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), labels, reduction="none")


def private_loop(model: nn.Module, **options: Any) -> tuple[PrivateTraining, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(options.pop("data", data()), batch_size=_BATCH, collate_fn=options.pop("collate", None))
    return privctl.make_private(model, optimizer, loader, noise_multiplier=1.0, **options), optimizer


def train(
    losses: Losses = own, model: nn.Module | None = None, pieces: int = 0, steps: int = 5, **options: Any
) -> PrivateTraining:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(_LENGTH, 5), nn.Dropout(0.3), nn.Linear(5, 3))
    private, optimizer = private_loop(model, **options)
    for _ in range(steps):
        inputs, labels = next(iter(private.loader))
        for rows in private.pieces(pieces) if pieces else [slice(0, len(labels))]:
            private.backward(lambda x=inputs, y=labels, rows=rows: losses(model, x[rows], y[rows]))
        optimizer.step()
    return private


def divided_by_a_count(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """As where the losses of tokens are divided by how many the whole batch has."""
    counted = (inputs > 0).double() @ torch.rand(
        _LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    return own(model, inputs, labels) * counted / counted.sum()


def on_scaled_inputs(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, (inputs - inputs.mean(0)) / inputs.std(0), labels)


def among_targets_without_gradients(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    first, second = model(inputs), model(inputs + 0.1).detach()
    return F.cross_entropy(first @ second.T, torch.arange(len(first)), reduction="none")


def of_mixed_rows(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    order, share = torch.randperm(len(inputs)), float(np.random.beta(1, 1))
    mixed = model(share * inputs + (1 - share) * inputs[order])
    parts = [F.cross_entropy(mixed, each, reduction="none") for each in (labels, labels[order])]
    return share * parts[0] + (1 - share) * parts[1]


def weighted_by_classes(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs, labels) / torch.bincount(labels, minlength=3)[labels]


def divided_by_the_size(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs, labels) / len(labels)


def divided_by_the_size_as_a_number(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs, labels) / inputs.shape[0]


@pytest.mark.parametrize("pieces", [0, 9])
@pytest.mark.parametrize("losses", [divided_by_the_size, divided_by_the_size_as_a_number])
def test_losses_that_are_divided_by_the_size_of_the_batch_end_the_training(losses: Losses, pieces: int) -> None:
    """A record then changes the sum by its own gradient and by the share that it takes from all others."""
    with pytest.raises(InputError, match="losses of rows change when the batch has fewer rows"):
        train(losses, pieces=pieces, steps=12)


@pytest.mark.parametrize("pieces", [0, 9])
@pytest.mark.parametrize(
    "losses",
    [
        divided_by_a_count,
        on_scaled_inputs,
        among_targets_without_gradients,
        of_mixed_rows,
        weighted_by_classes,
    ],
)
def test_losses_of_several_rows_end_the_training(losses: Losses, pieces: int) -> None:
    with pytest.raises(InputError, match="losses of rows change when other rows of the batch are replaced"):
        train(losses, pieces=pieces)


def test_a_network_that_scales_its_inputs_by_the_batch_ends_the_training() -> None:
    class Scaled(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs / inputs.abs().amax(0))

    with pytest.raises(InputError, match="losses of rows change"):
        train(model=nn.Sequential(Scaled(_LENGTH, 3)))


def test_the_losses_of_a_user_may_depend_on_the_records_of_that_user() -> None:
    class OfPairs(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            pairs = inputs.unflatten(0, (-1, 2))
            return super().forward((inputs.unflatten(0, (-1, 2)) + pairs.mean(1, keepdim=True)).flatten(0, 1))

    users = {"users": [f"user {row % 50}" for row in range(_ROWS)], "records_per_draw": 2}
    train(model=nn.Sequential(OfPairs(_LENGTH, 3)), **users)
    with pytest.raises(InputError, match="losses of rows change"):
        train(on_scaled_inputs, **users)


def in_an_order_of_their_own(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    order = inputs[:, 0].argsort(descending=True)
    return own(model, inputs[order], labels[order])


def at_random_by_numpy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs + float(np.random.default_rng().normal()), labels)


def of_branches_at_random(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs * random.choice([1, 2]) * random.SystemRandom().choice([1, 2]), labels)


def with_draws_that_depend_on_rows(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return own(model, inputs + torch.distributions.Gamma(inputs.abs() + 0.1, 1.0).sample(), labels)


def of_some_rows_only(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    if len(labels.unique()) < 2:
        raise ValueError("there is nothing to compare")
    return own(model, inputs, labels)


@pytest.mark.parametrize(
    "losses",
    [
        own,
        in_an_order_of_their_own,
        at_random_by_numpy,
        of_branches_at_random,
        with_draws_that_depend_on_rows,
        of_some_rows_only,
    ],
)
def test_losses_of_one_row_each_are_not_refused(losses: Losses) -> None:
    for _ in range(3):
        assert train(losses).guarantee().epsilon


def test_the_test_leaves_random_numbers_and_gradients_as_they_were() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(0)
    expected = random.random(), float(np.random.rand())
    random.seed(3)
    np.random.seed(3)
    train(of_some_rows_only, steps=1)
    assert (random.random(), float(np.random.rand())) == expected


Items = list[tuple[Tensor, Tensor]]


def stacked(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = zip(*items, strict=True)
    return torch.stack(inputs), torch.stack(labels)


def mixing(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(items)
    return 0.7 * inputs + 0.3 * inputs.roll(1, 0), labels


def scaling(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(items)
    return inputs / inputs.abs().amax(), labels


@pytest.mark.parametrize("collate", [mixing, scaling])
def test_a_collate_function_that_mixes_records_ends_the_training(collate: Callable[[Items], Any]) -> None:
    with pytest.raises(InputError, match="collate_fn gives a record other rows"):
        train(collate=collate)
    model = nn.Sequential(nn.Linear(_LENGTH, 3))
    private, optimizer = private_loop(model, collate=collate)
    with pytest.raises(InputError, match="collate_fn"):
        for inputs, labels in private.loader:
            private.backward(lambda x=inputs, y=labels: own(model, x, y))
            optimizer.step()
    with pytest.raises(CommandError, match="not stepped"):
        private.guarantee()


def sorting(items: Items) -> tuple[Tensor, Tensor]:
    return stacked(sorted(items, key=lambda item: -float(item[0][0])))


def masking(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(items)
    return torch.where(torch.rand_like(inputs) < 0.1, 0.0, inputs), labels


def masking_by_numpy(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(items)
    return torch.where(torch.from_numpy(np.random.default_rng().random(inputs.shape)) < 0.1, 0.0, inputs), labels


def cutting(items: Items) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(items)
    longest = int(max((row > 1).sum() for row in inputs))
    return F.pad(inputs[:, :longest], (0, _LENGTH - longest)), labels


@pytest.mark.parametrize("collate", [stacked, sorting, masking, masking_by_numpy])
def test_a_collate_function_of_one_record_each_is_not_refused(collate: Callable[[Items], Any]) -> None:
    for _ in range(3):
        assert train(collate=collate).guarantee().epsilon


def test_records_from_which_a_collate_function_takes_fields_are_whole_afterwards() -> None:
    records = [{"inputs": torch.randn(2), "label": row} for row in range(8)]

    def collate(items: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([item.pop("label") for item in items])
        return torch.stack([item["inputs"] for item in items]), labels

    Neighbours(1, nn.Module(), {}).require_own_rows(collate, records)
    assert [record["label"] for record in records] == list(range(8))


def test_a_tensor_that_all_rows_share_may_have_as_many_rows_as_a_batch() -> None:
    """Its rows seem to be those of records in a batch of one size, and in no other."""
    prototypes = torch.randn(23, 3)

    def with_prototypes(items: Items) -> tuple[Tensor, Tensor, Tensor]:
        return (*stacked(items), prototypes.clone())

    model = nn.Sequential(nn.Linear(_LENGTH, 3))
    private, optimizer = private_loop(model, collate=with_prototypes)
    seen = set[int]()
    while len(seen) < 10 or 23 not in seen:
        private._neighbours = Neighbours(1, private._model, private._engine.trainable)
        inputs, labels, others = next(iter(private.loader))
        seen.add(len(labels))
        private.backward(lambda x=inputs, y=labels, z=others: own(model, x, y) + (model(x) @ z.T).mean(1))
        optimizer.step()


def test_rows_of_records_are_replaced_and_where_they_begin_is_not() -> None:
    batch = {"starts": torch.tensor([0, 2, 3, 9]), "labels": torch.tensor([2, 0, 1, 1]), "square": torch.eye(4)}
    (labels,) = _by_row(batch, 4)
    assert labels is batch["labels"]
    with _Replacing(_replaced([labels], slice(1, 4), torch.tensor([1, 1, 2]))):
        assert (labels + 0).tolist() == [2, 1, 1, 1]
        assert (torch.tensor([0, 1, 1]) + 0).tolist() == [1, 1, 1]
        assert (torch.tensor([2, 0, 1, 2]) + 0).tolist() == [2, 0, 1, 2]
