"""Loops whose losses depend on how far a batch is padded, and ones that leave padding out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

import privctl
from privctl.domain.errors import InputError

_ROWS, _BATCH, _VOCABULARY, _WIDTH = 120, 24, 30, 8


def texts(longest: int = 14) -> list[tuple[Tensor, int]]:
    source = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, longest, (_ROWS,), generator=source)
    return [(torch.randint(1, _VOCABULARY, (int(n),), generator=source), int(n) % 2) for n in lengths]


def padded(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return pad_sequence([ids for ids, _ in items], batch_first=True), torch.tensor([label for _, label in items])


def padded_before(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    ids, labels = padded([(ids.flip(0), label) for ids, label in items])
    return ids.flip(1), labels


def padded_to_one_length(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    ids, labels = padded(items)
    return F.pad(ids, (0, 20 - ids.shape[1])), labels


class Mean(nn.Module):
    """The mean of all positions, or of those of tokens, classified."""

    def __init__(self, *, masked: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.masked = masked
        self.embedding, self.dropout = nn.Embedding(_VOCABULARY, _WIDTH), nn.Dropout(dropout)
        self.head = nn.Linear(_WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        kept = ((ids > 0) if self.masked else torch.ones_like(ids))[..., None]
        values = self.dropout(self.embedding(ids)) * kept
        return self.head(values.sum(1) / kept.sum(1))


class Packed(nn.Module):
    """The last state of a recurrent layer, at the last token or at the last position."""

    def __init__(self, *, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.embedding, self.layer = nn.Embedding(_VOCABULARY, _WIDTH), nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.head = nn.Linear(_WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        values: Any = self.embedding(ids)
        if self.packed:
            values = pack_padded_sequence(values, (ids > 0).sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.layer(values)[1][0])


class Attention(nn.Module):
    """A layer that attends to tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_VOCABULARY, _WIDTH), nn.Linear(_WIDTH, 2)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        values = self.layer(self.embedding(ids), src_key_padding_mask=ids == 0)
        kept = (ids > 0)[..., None]
        return self.head((values * kept).sum(1) / kept.sum(1))


def train(model: nn.Module, collate: Any = padded, steps: int = 5) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(texts(), batch_size=_BATCH, collate_fn=collate)
    private = privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)
    for _ in range(steps):
        for ids, labels in private.loader:
            private.backward(lambda ids=ids, labels=labels: F.cross_entropy(model(ids), labels, reduction="none"))
            optimizer.step()


@pytest.mark.parametrize(
    ("make", "collate"),
    [
        (lambda: Mean(masked=False), padded),
        (lambda: Mean(masked=False), padded_before),
        (lambda: Mean(masked=False, dropout=0.2), padded),
        (lambda: Packed(packed=False), padded),  # states before the first token would hardly change the last one
    ],
    ids=["mean", "mean, padded before", "mean with dropout", "last position"],
)
def test_losses_that_depend_on_the_longest_record_end_the_training(make: Callable[[], nn.Module], collate: Any) -> None:
    with pytest.raises(InputError, match="how far the batch is padded"):
        train(make(), collate)


@pytest.mark.parametrize(
    "make",
    [lambda: Mean(masked=True), lambda: Mean(masked=True, dropout=0.2), lambda: Packed(packed=True), Attention],
    ids=["masked mean", "masked mean with dropout", "packed", "attention"],
)  # fmt: skip
def test_losses_that_leave_padding_out_are_not_refused(make: Callable[[], nn.Module]) -> None:
    train(make())


def test_batches_of_one_length_are_not_refused() -> None:
    train(Mean(masked=False), padded_to_one_length)
