"""Norms from Gram matrices by machine code: those of torch in double precision, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from llvmlite import ir

from privctl.machine_code import threads
from privctl.train.clipping import gram, gram_code, gram_program
from privctl.train.clipping.factors import GRAM_ERROR
from privctl.train.clipping.gram_code import gram_sums, suits_code
from privctl.train.clipping.gram_program import AVX2, AVX512, OTHER, Tile

TILES = {"sixteen lanes": AVX512, "eight lanes": AVX2, "four lanes": OTHER}


class GramSums(NamedTuple):
    """What ``gram_sums`` gives, each (layers, n)."""

    square: Tensor
    lengths: Tensor
    of_inputs: Tensor
    of_gradients: Tensor


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    gram_code._tested_code.cache_clear()
    yield
    gram_code._tested_code.cache_clear()


def exact(inputs: Tensor, gradients: list[Tensor]) -> GramSums:
    """From the gradients themselves, in float64."""
    a, gs = inputs.double(), [g.double() for g in gradients]
    sizes = a.norm(dim=2)
    return GramSums(
        torch.stack([torch.einsum("ntd,ntp->ndp", a, g).square().sum((1, 2)) for g in gs]),
        torch.stack([(sizes * g.norm(dim=2)).sum(1) for g in gs]),
        torch.stack([sizes.sum(1) for _ in gs]),
        torch.stack([g.norm(dim=2).sum(1) for g in gs]),
    )


def assert_close(sums: Tensor, right: GramSums) -> None:
    """Squares within what is allowed for them, and the rest within float32's rounding."""
    found = GramSums(*sums)
    assert ((found.square - right.square).abs() <= GRAM_ERROR / 4 * right.lengths.square()).all()
    for one, other in zip(found[1:], right[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("positions", [2, 4, 61, 130])
def test_sums_are_those_of_double_precision(positions: int, tile: Tile) -> None:
    inputs = torch.randn(3, positions, 48)
    gradients = [torch.randn(3, positions, size) * scale for size, scale in ((16, 1.0), (80, 1e-6))]
    assert_close(gram_code._sums(gram_code._Code.of(tile), inputs, gradients), exact(inputs, gradients))


def test_tensors_may_be_parts_of_others() -> None:
    whole = torch.randn(4, 64, 3, 128)
    inputs, gradients = whole[1:, :, 0], [whole[1:, :, 1], torch.randn(3, 128, 64).mT]
    assert_close(gram_sums(inputs, gradients), exact(inputs, gradients))


def test_results_do_not_depend_on_threads() -> None:
    inputs, gradients = torch.randn(5, 64, 256), [torch.randn(5, 64, 256)]
    alone = gram_sums(inputs, gradients)
    torch.set_num_threads(3)
    assert torch.equal(gram_sums(inputs, gradients), alone)


def test_threads_other_than_torchs_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_team", lambda: None)
    given = torch.randn(5, 64, 256), [torch.randn(5, 64, 256)]
    assert suits_code(*given)
    torch.set_num_threads(2)
    assert not suits_code(*given)


def test_an_example_that_is_not_finite_has_no_finite_square_and_changes_no_other() -> None:
    inputs, gradients = torch.randn(4, 64, 256), [torch.randn(4, 64, 256)]
    alone = gram_sums(inputs, gradients)
    inputs[1, 63, 5], gradients[0][2, 0, 0] = torch.nan, torch.inf
    (squares,) = gram_sums(inputs, gradients)[0]
    assert squares.isfinite().tolist() == [True, False, False, True]
    assert squares[::3].equal(alone[0, 0, ::3])


def test_products_that_vanish_are_in_the_slack() -> None:
    """Squares of 2e-23 are 0 in float32, but inputs of 1e18 times them are not."""
    inputs, gradients = torch.full((1, 64, 256), 1e18), [torch.full((1, 64, 256), 2e-23)]
    assert suits_code(inputs, gradients)
    (squares,) = gram.outer_squares(inputs, gradients)
    assert squares.square + GRAM_ERROR * squares.slack >= (64 * 256 * 1e18 * 2e-23) ** 2


def test_norms_of_layers_use_the_code_where_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(gram, "gram_sums", lambda *given: used.append(given[0].shape) or gram_sums(*given))
    for shape, gradient in (
        ((2, 64, 256), torch.randn(2, 64, 256)),
        ((2, 64, 250), torch.randn(2, 64, 256)),  # not whole registers
        ((2, 8, 64), torch.randn(2, 8, 64)),  # too small to be worth it
        ((2, 64, 256), torch.randn(2, 64, 256).bfloat16()),
        ((2, 64, 256), torch.randn(2, 64, 256).double()),
    ):
        inputs = torch.randn(shape, dtype=gradient.dtype)
        (found,) = gram.outer_squares(inputs, [gradient])
        expected = exact(inputs, [gradient])
        assert ((found.square - expected.square[0]).abs() <= GRAM_ERROR * expected.lengths[0].square()).all()
    assert used == [(2, 64, 256), (2, 64, 256)]


@pytest.mark.usefixtures("untested")
def test_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns beyond the diagonal are not left out, and then count twice."""
    monkeypatch.setattr(
        gram_program,
        "_up_to",
        lambda builder, row, start, lanes: ir.Constant(ir.VectorType(ir.IntType(1), lanes), [1] * lanes),
    )
    assert gram_code._tested_code() is None
    assert not suits_code(torch.randn(2, 64, 256), [torch.randn(2, 64, 256)])


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_torch_computes_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for name in ("privctl.machine_code.compiling", "privctl.train.clipping.gram_program"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("privctl.train.clipping.gram_program")
    assert gram_code._tested_code() is None
    inputs, gradients = torch.randn(2, 64, 256), [torch.randn(2, 64, 256)]
    (found,) = gram.outer_squares(inputs, gradients)
    torch.testing.assert_close(found.square, exact(inputs, gradients).square[0], rtol=1e-4, atol=0)
