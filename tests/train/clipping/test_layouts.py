"""Where a window has as many positions as the batch has examples, their dimensions are told apart all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.layouts import Layout, Layouts
from privctl.train.clipping.linear import linear
from privctl.train.clipping.promotion import Promotion
from privctl.train.clipping.rerun import Mode
from tests.train.clipping.support import Batch, agree, length, looped, squared
from tests.train.clipping.windows import WIDTH, ShiftedWindows

ROWS = 6
PLACES = 2 * ROWS  # two windows, each of as many positions as there are examples


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def batch(rows: int = ROWS) -> Batch:
    return {"x": torch.randn(rows, PLACES, WIDTH)}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), ShiftedWindows())


def norms_by_loop(network: nn.Module, data: Batch) -> Tensor:
    return torch.tensor([length(gradients) for gradients in looped(network, squared, data)])


def test_only_the_shared_bias_is_promoted() -> None:
    network = model()
    agree(network, squared, batch())
    with PerExample(network, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(network, batch()))
        assert {each.module: each.mode for each in engine.promoted} == {"1.attention.bias": Mode.REPEATED}


def test_a_training_that_may_not_promote_goes_on() -> None:
    """Its promotions were found in the self-test, whose batches have other numbers of examples."""
    network, data = model(), batch()
    known = Promotion(module="1.attention.bias", kind="WindowBias", reason="", mode=Mode.REPEATED)
    with PerExample(network, Clipping(norm=1.0), (known,), may_promote=False) as engine:
        found = engine.accumulate(lambda: squared(network, data))
    torch.testing.assert_close(found.norms.float(), norms_by_loop(network, data), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kept", [True, False])
def test_an_engine_that_does_not_compare_needs_the_layouts_of_the_one_that_did(kept: bool) -> None:
    network, data, layouts = model(), batch(), Layouts()
    with PerExample(network, Clipping(norm=1.0), layouts=layouts) as engine:
        engine.accumulate(lambda: squared(network, batch(rows=4)))
        promoted = engine.promoted
    given = layouts if kept else Layouts()
    with PerExample(network, Clipping(norm=1.0), promoted, may_promote=False, compared=True, layouts=given) as engine:
        found = engine.accumulate(lambda: squared(network, data))
    right = torch.allclose(found.norms.float(), norms_by_loop(network, data), rtol=1e-4)
    assert right is kept


def test_a_guess_is_reconsidered_once() -> None:
    layer, layouts = nn.Linear(WIDTH, WIDTH), Layouts()
    output = (torch.zeros(2 * ROWS, ROWS, WIDTH),)
    assert layouts.find(layer, linear, output, ROWS) is Layout.SECOND
    assert layouts.reconsider([layer])
    assert layouts.find(layer, linear, output, ROWS) is Layout.FOLDED
    assert not layouts.reconsider([layer])


def test_a_layout_without_a_second_choice_is_kept() -> None:
    layer, layouts = nn.Linear(WIDTH, WIDTH), Layouts()
    output = (torch.zeros(2 * ROWS + 1, ROWS, WIDTH),)
    assert layouts.find(layer, linear, output, ROWS) is Layout.SECOND
    assert not layouts.reconsider([layer])
