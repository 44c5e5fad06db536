"""Batches that are computed in pieces: the same sums, and no row twice or left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from privctl.domain.errors import CommandError, PrivctlError
from tests.integrations.loops import Loop


def _backward(loop: Loop, inputs: Tensor, labels: Tensor, most: int | None) -> list[int]:
    """Clip the batch, in pieces or at once; the sizes of the pieces."""
    if most is None:
        loop.private.backward(loop.losses(inputs, labels))
        return [len(labels)]
    sizes = []
    for rows in loop.private.pieces(most):
        sizes.append(len(labels[rows]))
        loop.private.backward(loop.losses(inputs[rows], labels[rows]))
    return sizes


def _sums(most: int | None, batch: tuple[Tensor, Tensor] | None = None, **more: Any) -> tuple[list[Tensor], Any]:
    loop = Loop(batch=20, clip_norm=0.3, **more)
    if batch is None:
        batch = next(batches := iter(loop.private.loader))
        del batches
    loop.private._drawn.begin(len(batch[1]))
    loop.private._stage, loop.private.steps_begun = type(loop.private._stage)("drawn"), 1
    sizes = _backward(loop, *batch, most)
    assert sum(sizes) == len(batch[1])
    assert most is None or max(sizes) <= most
    return [*loop.private._sums, loop.private._count], batch


@pytest.mark.parametrize("more", [{}, {"target_unclipped_quantile": 0.5}], ids=["fixed", "adaptive"])
def test_pieces_have_the_sums_of_the_whole_batch(more: dict[str, Any]) -> None:
    whole, batch = _sums(None, **more)
    assert len(batch[1]) > 6
    for most in (1, 6, 1000):
        pieces, _ = _sums(most, batch, **more)
        for one, other in zip(whole, pieces, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    less, _ = _sums(6, (batch[0][:-1], batch[1][:-1]), **more)
    assert not torch.allclose(whole[0], less[0], rtol=1e-5, atol=1e-7)  # a row that is left out is seen


def test_the_records_of_a_user_are_not_parted() -> None:
    users = [f"user {row % 20}" for row in range(60)]
    whole, batch = _sums(None, users=users, records_per_draw=3)
    pieces, _ = _sums(8, batch, users=users, records_per_draw=3)
    for one, other in zip(whole, pieces, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    loop = Loop(batch=20, users=users, records_per_draw=3)
    for _ in loop.private.loader:
        with pytest.raises(CommandError, match="whole numbers of rows from 3, the records of one user"):
            list(loop.private.pieces(2))
        break


def test_a_step_needs_every_piece_once() -> None:
    loop = Loop(batch=20)
    with pytest.raises(CommandError, match="before backward"):
        loop.private.pieces(4)
    for inputs, labels in loop.private.loader:
        for rows in loop.private.pieces(4):
            with pytest.raises(CommandError, match="rows were drawn and .* losses came back; .* pieces"):
                loop.private.backward(loop.losses(inputs, labels))
            loop.private.backward(loop.losses(inputs[rows], labels[rows]))
            with pytest.raises(CommandError, match="before for rows 0 to 3"):
                loop.private.backward(loop.losses(inputs[rows], labels[rows]))
            break
        with pytest.raises(CommandError, match="after 4 of .* rows"):
            loop.optimizer.step()
        with pytest.raises(CommandError, match="rows 0 to 3 of the batch were left out"):
            list(loop.private.pieces(4))
        with pytest.raises(CommandError, match="'many' is none"):
            list(loop.private.pieces("many"))  # type: ignore[arg-type]
        _backward(loop, inputs, labels, 4)  # from the first row again
        with pytest.raises(CommandError, match="before backward"):
            loop.private.pieces(4)
        loop.optimizer.step()
    assert loop.private.guarantee().epsilon > 0


def test_a_batch_with_a_piece_left_out_for_its_content_ends_the_training() -> None:
    loop = Loop(batch=20)
    for inputs, labels in loop.private.loader:
        pieces = loop.private.pieces(4)
        rows = next(pieces)
        with pytest.raises(PrivctlError, match="not finite"):
            loop.private.backward(loop.losses(inputs[rows] * torch.nan, labels[rows]))
        with pytest.raises(CommandError, match="left out"):
            next(pieces)
        break
    with pytest.raises(CommandError, match="no guarantee holds"):
        loop.private.guarantee()


def test_a_state_loaded_before_the_first_step_is_refused() -> None:
    stepped = Loop()
    stepped.optimizer = torch.optim.Adam(stepped.model.parameters())
    F.cross_entropy(stepped.model(torch.randn(2, 5)), torch.tensor([0, 1])).backward()
    stepped.optimizer.step()
    loop = Loop()
    loop.optimizer.load_state_dict({**loop.optimizer.state_dict(), "state": stepped.optimizer.state_dict()["state"]})
    with pytest.raises(CommandError, match="has the state of one that did"):
        next(iter(loop.private.loader))
    assert loop.private.steps_begun == 0
