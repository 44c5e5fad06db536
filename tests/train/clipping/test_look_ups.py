"""Gradients of look-ups, measured however they lie in memory."""

from __future__ import annotations

import torch

from privctl.train.clipping import embedding, terms


def test_gradients_of_look_ups_may_lie_in_memory_in_any_order() -> None:
    """T5 permutes what it looks up for distances, so that the width comes first in memory."""
    ids = torch.tensor([[0, 1, 1], [2, 0, 2]])
    term = embedding.Lookup(ids, torch.randn(4, 2, 3).permute(1, 2, 0), 3)
    formed = terms.Dense(term.example_gradients(slice(None)))
    torch.testing.assert_close(term.squares().square, formed.squares().square, rtol=1e-5, atol=0)
