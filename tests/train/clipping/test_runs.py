"""Users of several rows each, against a loop of autograd over users; and what notices a norm of single rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.runs import Runs, Summed
from privctl.train.clipping.terms import GradientTerm, Squares
from tests.train.clipping.layer_table import CASES, Case
from tests.train.clipping.support import (
    Batch,
    Gradients,
    Losses,
    causal,
    clipped_sum,
    count,
    distance,
    length,
    looped,
    squared,
    tokens,
)
from tests.train.clipping.test_families import gpt2


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def of_users(losses: Losses, run: int) -> Losses:
    """Each user's mean loss over its ``run`` rows."""
    return lambda model, batch: losses(model, batch).view(-1, run).mean(1)


def each_user(model: nn.Module, losses: Losses, batch: Batch, run: int) -> list[Gradients]:
    """Each user's gradient by plain autograd, from one row at a time: the mean over its rows."""
    by_row = looped(model, losses, batch)
    return [
        {name: torch.stack([g[name] for g in by_row[i : i + run]]).mean(0) for name in by_row[0]}
        for i in range(0, count(batch), run)
    ]


def clipped(model: nn.Module, losses: Losses, batch: Batch, run: int, clip: float, passes: int = 1) -> Gradients:
    with PerExample(model, Clipping(norm=clip), passes=passes) as engine:
        engine.accumulate(lambda: of_users(losses, run)(model, batch), run=run)
        found = {name: p.grad.clone() for name, p in engine.trainable.items() if p.grad is not None}
    model.zero_grad()
    return found


def users_agree(
    model: nn.Module, losses: Losses, batch: Batch, run: int, *, passes: int = 1, tolerance: float = 1e-3
) -> None:
    expected = each_user(model, losses, batch, run)
    norms = torch.tensor([length(g) for g in expected], dtype=torch.float64)
    clip = float(norms.median()) * 0.999
    with PerExample(model, Clipping(norm=clip), passes=passes) as engine:
        result = engine.accumulate(lambda: of_users(losses, run)(model, batch), run=run)
        found = {name: p.grad.clone() for name, p in engine.trainable.items() if p.grad is not None}
    model.zero_grad()
    torch.testing.assert_close(result.norms, norms, rtol=tolerance, atol=0)
    assert len(result.losses) == len(norms)
    # A share of the clip norm is left for rounding.
    assert distance(found, clipped_sum(expected, clip)) < max(tolerance, 1e-4)


LAYERS = [case for case in CASES if case.quick and not case.refused]


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if i % 8 == 0 else pytest.mark.slow, id=c.name) for i, c in enumerate(LAYERS)],
)
def test_every_kind_of_layer_agrees_with_a_loop_over_users(case: Case) -> None:
    batch = {name: x.double() if x.is_floating_point() else x for name, x in case.batch().items()}
    model = case.make().double()
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.bound_rows()  # as after every step, so that the loop reads the weights that the engine will read
    users_agree(model, case.losses, batch, 2, tolerance=1e-8)


TEXTS = tokens(6, 5, 40)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_agrees_with_a_loop_over_users(tied: bool, passes: int) -> None:
    for run in (2, 3):
        users_agree(gpt2(tie_word_embeddings=tied).eval(), causal, TEXTS, run, passes=passes)


class Images(nn.Module):
    """Two convolutions, of which one is measured by Gram matrices, and a group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 40, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


@pytest.mark.parametrize("passes", [1, 2])
def test_images_agree_with_a_loop_over_users(passes: int) -> None:
    users_agree(Images(), squared, {"x": torch.randn(6, 3, 6, 6)}, 3, passes=passes)


def test_rows_that_cancel_have_no_norm_and_rows_alike_have_it_once() -> None:
    """Cross terms between a user's rows count: x and -x of a linear loss cancel, x and x are one."""
    model = nn.Linear(4, 3, bias=False)
    x = torch.randn(1, 4)
    for other, share in ((-x, 0.0), (x, 1.0)):
        batch = torch.cat([x, other, torch.randn(2, 4)])
        with PerExample(model, Clipping(norm=1.0)) as engine:
            norms = engine.accumulate(lambda batch=batch: model(batch).sum(1).view(-1, 2).mean(1), run=2).norms
        model.zero_grad()
        assert float(norms[0]) == pytest.approx(share * float(x.norm()) * 3**0.5, abs=1e-5)


def test_clipping_each_row_instead_of_the_user_is_another_sum() -> None:
    """The planted fault: a user would move the sum by several clip norms."""
    model, clip = gpt2().eval(), 0.01
    expected = clipped_sum(each_user(model, causal, TEXTS, 3), clip)
    by_row = clipped_sum(looped(model, causal, TEXTS), clip)
    assert distance(clipped(model, causal, TEXTS, 3, clip), expected) < 1e-3
    assert distance(by_row, expected) > 0.5
    # A user of three records alike would move it by three clip norms.
    alike = {name: values[:1].repeat(3, 1) for name, values in TEXTS.items()}
    assert length(clipped(model, causal, alike, 3, clip)) <= clip
    assert length(clipped_sum(looped(model, causal, alike), clip)) > 2.9 * clip


def _measured_by_row(runs: Runs, term: GradientTerm) -> GradientTerm:
    return RowByRow(term, runs)


class RowByRow(Summed):
    """A wrong term: it leaves out what a user's rows have in common."""

    def squares(self) -> Squares:
        found = self.term.squares()
        return Squares(self.runs.summed(found.square), self.runs.summed(found.slack))


def test_norms_without_cross_terms_are_noticed_on_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runs, "of", _measured_by_row)
    with pytest.raises(InputError, match="has norm .* as measured"):
        clipped(nn.Linear(4, 3), squared, {"x": torch.randn(4, 4)}, 2, 1.0)


@pytest.mark.parametrize("model", [Images, gpt2])
def test_no_user_changes_anothers_contribution(model: Callable[[], nn.Module]) -> None:
    """With a user more the sum is another by that user's clipped gradient alone."""
    network = model().eval()
    batch, losses = (TEXTS, causal) if model is gpt2 else ({"x": torch.randn(6, 3, 6, 6)}, squared)
    clip = 0.05
    whole, without, alone = (
        clipped(network, losses, {name: x[which] for name, x in batch.items()}, 2, clip)
        for which in (slice(0, 6), slice(0, 4), slice(4, 6))
    )
    assert length({name: whole[name] - without[name] - alone[name] for name in whole}) < 1e-3 * clip
    assert length(alone) <= clip


def test_a_loss_for_every_row_is_refused() -> None:
    model, batch = nn.Linear(4, 3), torch.randn(4, 4)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        with pytest.raises(InputError, match="4 rows and 4 losses .* one loss for 2 rows"):
            engine.accumulate(lambda: model(batch).sum(1), run=2)
        engine.accumulate(lambda: model(batch).sum(1))  # the run was of that call alone


def test_positions_of_several_rows_are_positions_of_one() -> None:
    term = Runs(2).of(Outer(torch.randn(4, 3, 5), torch.randn(4, 3, 2)))
    assert isinstance(term, Outer)
    assert term.inputs.shape == (2, 6, 5)
