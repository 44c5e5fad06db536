"""Tree aggregation against nodes counted one by one, published and dp_accounting's values, and the verifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, SelfComposedDpEvent
from dp_accounting.dp_event import SingleEpochTreeAggregationDpEvent
from dp_accounting.rdp import RdpAccountant

from privctl.accounting import renyi
from privctl.accounting.events.tree_gaussian import squared_sensitivity
from privctl.accounting.ledger import epsilon_bound, gaussian_shift
from privctl.cli import run
from privctl.domain.events import Event, Ledger, SampledGaussian, TreeGaussian
from verify.events.tree_gaussian import moved_by_one, toy_training
from verify.recompute.ledger import epsilon_of


def ledger_of(event: Event) -> Ledger:
    return Ledger(events=(event,))


def nodes(leaves: int, steps: int) -> Iterator[range]:
    """The steps below each node that is released."""
    for begun in range(0, steps, leaves):
        size, count = 1, min(leaves, steps - begun)
        while size <= count:
            yield from (range(begun + k * size, begun + (k + 1) * size) for k in range(count // size))
            size *= 2


def counted(leaves: int, steps_per_pass: int, steps: int) -> int:
    """The largest sum of squares over the positions of a record."""
    return max(
        sum(sum(step % steps_per_pass == position for step in node) ** 2 for node in nodes(leaves, steps))
        for position in range(min(steps_per_pass, steps))
    )


CASES = [
    (leaves, steps_per_pass, steps)
    for leaves in (1, 2, 5, 7, 8, 12)
    for steps_per_pass in (1, 3, 4, 8, 12)
    for steps in (1, 7, 12, 31)
]


def test_a_record_moves_each_node_as_often_as_it_takes_part_below() -> None:
    for case in CASES:
        assert squared_sensitivity(*case) == counted(*case) == moved_by_one(*case), case


def test_with_a_level_less_it_would_be_too_small() -> None:
    """The planted fault: a tree of n steps has floor(log2 n) + 1 levels, not floor(log2 n)."""
    event = TreeGaussian(noise_multiplier=4, leaves=100, sample_rate=0.01, steps=100)
    noise_warnings = epsilon_bound(ledger_of(SampledGaussian(noise_multiplier=4 / math.sqrt(6))), 1e-6)
    assert epsilon_bound(ledger_of(event), 1e-6) == epsilon_bound(
        ledger_of(SampledGaussian(noise_multiplier=4 / math.sqrt(7))), 1e-6
    )
    assert epsilon_of(ledger_of(event), 1e-6, (noise_warnings,)).at_most(noise_warnings) is False


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("leaves", [1, 7, 8, 400])
def test_against_dp_accounting(leaves: int, epochs: int) -> None:
    """Divergences are equal for a tree that starts again with every pass."""
    event = TreeGaussian(noise_multiplier=6, leaves=leaves, sample_rate=1 / leaves, steps=epochs * leaves)
    theirs = RdpAccountant([2.0, 7.5], NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(SelfComposedDpEvent(SingleEpochTreeAggregationDpEvent(6.0, leaves), epochs))
    assert renyi.renyi(event, [2.0, 7.5]) == pytest.approx(theirs._rdp, rel=1e-12)


def test_a_published_value() -> None:
    """Kairouz et al. 2021, Stack Overflow: 1600 rounds at noise 8.83 have epsilon 2.04 at 1e-6, by divergences."""
    event = TreeGaussian(noise_multiplier=8.83, leaves=1600, sample_rate=1 / 1600, steps=1600)
    assert gaussian_shift(ledger_of(event)) == pytest.approx(math.sqrt(11) / 8.83)
    assert 1.6 < epsilon_bound(ledger_of(event), 1e-6) < 2.04


def test_without_restarts_passes_meet_in_the_upper_nodes() -> None:
    restarted = TreeGaussian(noise_multiplier=6, leaves=16, sample_rate=1 / 16, steps=64)
    assert squared_sensitivity(16, 16, 64) == 4 * 5
    # Below the two nodes of 32 steps it takes part twice, and below the root four times.
    assert squared_sensitivity(64, 16, 64) == 4 * 5 + 2 * 2**2 + 4**2
    assert epsilon_bound(ledger_of(replace(restarted, leaves=64)), 1e-6) > epsilon_bound(ledger_of(restarted), 1e-6)


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_trainings_that_release_every_node(noise: float) -> None:
    """Losses of simulated runs have the Gaussian's mean and deviation; with half the noise they do not."""
    event = TreeGaussian(noise_multiplier=5, leaves=6, sample_rate=0.25, steps=14)
    draw = toy_training(event, 14, noise=noise)
    losses = draw(np.random.default_rng(3), 40_000, True)
    mu = math.sqrt(squared_sensitivity(6, 4, 14)) / 5
    spread = float(losses.std()) / mu
    assert float(losses.mean()) == pytest.approx(mu**2 / 2, abs=5 * mu / 200)
    assert (abs(spread - 1) < 0.02) is (noise == 1.0)


def test_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["account", "--mechanism", "tree", "--delta", "1e-6", "--sample-rate", "0.01", "--steps", "300"]
    assert run([*call, "--epsilon", "2", "--tree-steps", "100"]) == 0
    assert "epsilon 2 at" in " ".join(capsys.readouterr().out.split())
    assert run([*call, "--epsilon", "2"]) == 2
    assert "needs --tree-steps" in capsys.readouterr().err


def test_more_steps_than_are_followed_are_refused() -> None:
    with pytest.raises(ValueError, match="steps is 2000000; correlated noise is supported for at most 1,000,000 steps"):
        TreeGaussian(noise_multiplier=5, leaves=7, sample_rate=0.01, steps=2_000_000)
    whole = TreeGaussian(noise_multiplier=5, leaves=100, sample_rate=0.01, steps=2_000_050)
    assert gaussian_shift(ledger_of(whole)) == pytest.approx(math.sqrt(20_000 * 7 + 6) / 5)
