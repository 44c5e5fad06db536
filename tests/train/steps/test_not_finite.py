"""An example without a finite gradient counts as zero in a private run (``test_loop`` has the others, which stop)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from privctl.train.clipping import ClippedBatch, PerExample
from privctl.train.steps.loop import FinishedRun, Trainer
from privctl.train.steps.sampling import Passes
from tests.few import few
from tests.train.steps.test_loop import ROWS, Points, recipe, trainer, weight


class Sharing(Points):
    """Losses that share a sum over the batch, times zero: a row that is not finite spoils the others."""

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        found = super().losses(network, batch)
        return found + 0 * found.sum()


def spoiled(*rows: int, by: float = math.nan) -> Tensor:
    found = ROWS.clone()
    found[list(rows), 1] = by
    return found


def private(rows: Tensor, task: type[Points] = Points, micro: int = 64) -> tuple[Trainer, FinishedRun]:
    """Four steps over all rows, under noise that is the same every time."""
    plan = recipe(method="dp-sgd", noise_multiplier=0.5, micro_examples=micro)
    training = trainer(rows, plan, Passes(4, 4, seed=0), task=task(rows))
    return training, training.run()


@pytest.mark.parametrize("by", few([math.nan, math.inf, pytest.param(-math.inf, marks=pytest.mark.slow)], 0))
@pytest.mark.parametrize("task", [Points, Sharing])
@pytest.mark.parametrize("micro", few([1, 3, 64], 0, 1))
@pytest.mark.parametrize("bad", [pytest.param((2,), marks=pytest.mark.slow), (0, 3), (0, 1, 2, 3)])
def test_it_counts_as_zero_whatever_it_does_to_the_others(
    by: float, task: type[Points], micro: int, bad: tuple[int, ...]
) -> None:
    training, done = private(spoiled(*bad, by=by), task, micro)
    without = ROWS.clone()
    without[list(bad)] = 0.0
    expected, _ = private(without)
    assert torch.allclose(weight(training), weight(expected), atol=1e-6)
    (entry,) = done.history
    assert entry["zeroed_fraction"] == len(bad) / 4
    kept = [row for row in range(4) if row not in bad]
    if kept:
        assert entry["median_norm"] == pytest.approx(float(ROWS[kept].norm(dim=1).double().median()))
    else:
        assert set(entry) == {"step", "zeroed_fraction"}


def test_a_step_is_looked_at_once_and_each_micro_batch_only_where_something_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[bool]()

    def watched(
        self: PerExample, losses: Callable[[], Tensor], *, check_finite: bool, **settings: float
    ) -> ClippedBatch:
        looked.append(check_finite)
        return accumulate(self, losses, check_finite=check_finite, **settings)

    accumulate = PerExample.accumulate
    monkeypatch.setattr(PerExample, "accumulate", watched)
    private(ROWS, micro=1)
    assert looked == [False] * 16
    looked.clear()
    private(spoiled(2), micro=2)
    # Each step: both micro-batches, then both again, of which one falls apart into its two rows.
    assert looked == [False, False, True, True, True, True] * 4


def test_a_run_without_such_examples_says_nothing() -> None:
    assert "zeroed_fraction" not in private(ROWS)[1].history[0]


def test_measures_that_are_none_are_left_out() -> None:
    measures = {"held_out_loss": 800.0, "held_out_perplexity": math.inf}
    training = trainer(ROWS, recipe(), Passes(4, 4, seed=0), evaluate=lambda _: measures)
    (entry,) = training.run().history
    assert entry["held_out_loss"] == 800.0
    assert "held_out_perplexity" not in entry
