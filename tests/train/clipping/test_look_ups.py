"""Gradients of look-ups, measured however they lie in memory, and look-ups that write."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample, embedding, terms


def test_gradients_of_look_ups_may_lie_in_memory_in_any_order() -> None:
    """T5 permutes what it looks up for distances, so that the width comes first in memory."""
    ids = torch.tensor([[0, 1, 1], [2, 0, 2]])
    term = embedding.Lookup(ids, torch.randn(4, 2, 3).permute(1, 2, 0), 3)
    formed = terms.Dense(term.example_gradients(slice(None)))
    torch.testing.assert_close(term.squares().square, formed.squares().square, rtol=1e-5, atol=0)


@pytest.mark.parametrize("rare", [False, True])
def test_a_forward_pass_that_writes_to_weights_is_refused(rare: bool) -> None:
    """A look-up with a bound shortens the rows that it reads, in place, which shows what was read."""

    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            largest = 0.5 if bool((ids == 8).any()) or not rare else None
            return self.last(nn.functional.embedding(ids, self.table.weight, max_norm=largest).detach())

    model = Bounded()
    with PerExample(model, Clipping(norm=1.0)) as engine:
        ids = torch.tensor([[1, 2], [3, 4]])
        if rare:
            engine.accumulate(lambda: model(ids).sum((1, 2)))
        with pytest.raises(InputError, match=r"wrote to 'table\.weight'"):
            engine.accumulate(lambda: model(ids * 2).sum((1, 2)))
