"""Poisson draws have the right law and are never repeated; passes visit everyone once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from privctl.domain.errors import InputError
from privctl.domain.events import TruncatedGaussian
from privctl.randomness import NoiseSource
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.sampling import BallsAndBins, CyclicPoisson, Passes, PoissonBatches, TruncatedPoisson
from verify.events.truncated_gaussian import _chances


def sizes(rate: float, steps: int, size: int = 2000) -> np.ndarray:
    source = PoissonBatches(size, rate, NoiseSource(1))
    return np.array([len(source.batch(step)) for step in range(steps)])


def dispersion(counts: np.ndarray, rate: float, size: int) -> float:
    """How far the variance of batch sizes is from size * rate * (1 - rate), in standard errors."""
    expected = size * rate * (1 - rate)
    return (counts.var(ddof=1) / expected - 1) / math.sqrt(2 / (len(counts) - 1))


def test_sizes_follow_the_binomial_law() -> None:
    counts = sizes(0.05, 1500)
    assert abs(counts.mean() - 100) < 5 * math.sqrt(95 / 1500)
    assert abs(dispersion(counts, 0.05, 2000)) < 5


def test_fixed_sizes_would_be_noticed() -> None:
    """What a shuffling loader gives: the same mean, no variance."""
    assert abs(dispersion(np.full(1500, 100), 0.05, 2000)) > 20


def test_each_example_and_each_pair_is_drawn_as_often_as_it_should_be() -> None:
    source = PoissonBatches(50, 0.3, NoiseSource(2))
    drawn = np.zeros((4000, 50), dtype=bool)
    for step in range(4000):
        drawn[step, source.batch(step)] = True
    error = math.sqrt(0.3 * 0.7 / 4000)
    assert np.abs(drawn.mean(0) - 0.3).max() < 5 * error
    together = (drawn[:, :, None] & drawn[:, None, :]).mean(0)[np.triu_indices(50, 1)]
    assert np.abs(together - 0.09).max() < 6 * math.sqrt(0.09 * 0.91 / 4000)
    # Neighbouring steps know nothing of each other.
    assert abs((drawn[1:] & drawn[:-1]).mean() - 0.09) < 5 * math.sqrt(0.09 * 0.91 / 4000 / 50) * 2


def test_rates_at_the_ends_and_tiny_ones() -> None:
    assert len(PoissonBatches(1000, 0.0, NoiseSource()).batch(0)) == 0
    assert PoissonBatches(1000, 1.0, NoiseSource()).batch(0).tolist() == list(range(1000))
    assert len(PoissonBatches(1000, 1e-18, NoiseSource()).batch(0)) == 0
    assert len(PoissonBatches(3_000_000, 0.5, NoiseSource(3)).batch(0)) == pytest.approx(1_500_000, abs=6000)


def test_two_runs_draw_differently_and_a_key_alike() -> None:
    first, second = (PoissonBatches(5000, 0.1, NoiseSource()) for _ in range(2))
    assert first.batch(0).tolist() != second.batch(0).tolist()
    again = PoissonBatches(5000, 0.1, NoiseSource(key=first.source.key))
    assert first.batch(7).tolist() == again.batch(7).tolist()


@pytest.mark.parametrize(("size", "rate"), [(0, 0.5), (10, 1.5), (10, -0.1), (10, float("nan"))])
def test_rates_outside_their_range_are_refused(size: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"size|rate"):
        PoissonBatches(size, rate, NoiseSource())


def test_passes_visit_everyone_once() -> None:
    passes = Passes(103, 10, seed=5)
    for epoch in range(3):
        visited = np.concatenate([passes.batch(epoch * 11 + i) for i in range(11)])
        assert sorted(visited) == list(range(103))
    assert passes.batch(0).tolist() != passes.batch(11).tolist()
    assert len(passes.batch(10)) == 3
    assert Passes(103, 10, seed=5).batch(4).tolist() == passes.batch(4).tolist()


def test_each_example_takes_one_step_of_a_pass_independently_of_all_others() -> None:
    source = BallsAndBins(300, 7, NoiseSource(5))
    passes = np.full((400, 300), -1)
    for step in range(400 * 7):
        batch = source.batch(step)
        assert (passes[step // 7, batch] == -1).all()
        passes[step // 7, batch] = step % 7
    assert (passes >= 0).all()
    # Uniform, and neither neighbours nor following passes know of each other: each cell is a count of 120,000.
    error = math.sqrt(passes.size / 7)
    assert np.abs(np.bincount(passes.ravel()) - passes.size / 7).max() < 5 * error
    for first, second in ((passes[:, :-1], passes[:, 1:]), (passes[:-1], passes[1:])):
        together = np.bincount((7 * first + second).ravel(), minlength=49)
        assert np.abs(together - first.size / 49).max() < 5 * math.sqrt(first.size / 49)
    # Sizes vary as they must: with batches of fixed size a record's step would follow from the others'.
    sizes_seen = np.array([(row == 0).sum() for row in passes])
    assert sizes_seen.var() == pytest.approx(300 / 7 * 6 / 7, rel=0.35)


def test_bins_far_apart_and_none() -> None:
    source = BallsAndBins(1000, 2**31, NoiseSource(6))
    assert all(len(source.batch(step)) == 0 for step in (0, 1, 2**31 - 1))
    assert BallsAndBins(5, 1, NoiseSource()).batch(3).tolist() == [0, 1, 2, 3, 4]
    for bins in (0, 2**32):
        with pytest.raises(ValueError, match="bins"):
            BallsAndBins(5, bins, NoiseSource())


def test_parts_take_turns_and_their_examples_coins() -> None:
    source = CyclicPoisson(600, 4, 0.1, NoiseSource(7))
    drawn = np.zeros((2000, 600), dtype=bool)
    for step in range(2000):
        drawn[step, source.batch(step)] = True
    turns = np.stack([drawn[turn::4].any(0) for turn in range(4)])
    assert (turns.sum(0) == 1).all()  # each takes part in steps of one part only, so at most every 4
    sizes_of_parts = turns.sum(1)
    assert np.abs(sizes_of_parts - 150).max() < 5 * math.sqrt(600 * 3 / 16)
    assert sizes_of_parts.std() > 0  # each example draws for itself
    own = np.stack([drawn[turn::4][:, turns[turn]].sum() for turn in range(4)])
    expected = 500 * sizes_of_parts * 0.4
    assert (np.abs(own - expected) < 5 * np.sqrt(expected * 0.6)).all()
    # Coins of one turn know nothing of those of the next.
    first = drawn[0::4][:, turns[0]]
    assert abs((first[1:] & first[:-1]).mean() - 0.16) < 5 * math.sqrt(0.16 * 0.84 / first[1:].size) * 2


def test_taking_part_every_three_steps_would_be_noticed() -> None:
    """What is drawn with a part too few: some example comes back after 3 steps, where 4 are promised."""
    source = CyclicPoisson(600, 3, 0.1, NoiseSource(7))
    drawn = [set(source.batch(step).tolist()) for step in range(60)]
    assert any(drawn[step] & drawn[step + 3] for step in range(57))


def test_parts_are_the_same_under_one_key_and_whole_where_the_rate_says_so() -> None:
    first = CyclicPoisson(100, 4, 0.25, NoiseSource(8))
    again = CyclicPoisson(100, 4, 0.25, NoiseSource(8))
    drawn = np.concatenate([first.batch(0), first.batch(1), again.batch(2), again.batch(3)])
    assert sorted(drawn.tolist()) == list(range(100))
    assert first.batch(4).tolist() == first.batch(0).tolist()
    assert CyclicPoisson(3, 60_000, 1e-5, NoiseSource(1)).batch(59_999).tolist() in ([], [0], [1], [2])
    for parts, rate in ((0, 0.1), (2**16, 0.1), (4, 1.5)):
        with pytest.raises(ValueError, match=r"parts|rate"):
            CyclicPoisson(5, parts, rate, NoiseSource())


def test_a_resumed_run_goes_on_with_the_same_order(tmp_path: Path) -> None:
    facts = {"method": "dp-sgd"}
    folder = RunFolder.begin(tmp_path / "run", facts)
    key = folder.batch_key()
    again, _ = RunFolder.resume(tmp_path / "run", facts)
    assert again.batch_key() == key != RunFolder.begin(tmp_path / "other", facts).batch_key()
    assert (tmp_path / "run" / "batches").stat().st_mode & 0o077 == 0
    before, after = (BallsAndBins(100, 4, NoiseSource(key=each)) for each in (key, again.batch_key()))
    drawn = np.concatenate([before.batch(0), before.batch(1), after.batch(2), after.batch(3)])
    assert sorted(drawn.tolist()) == list(range(100))
    (tmp_path / "run" / "batches").write_bytes(b"short")
    with pytest.raises(InputError, match="remove .* and start again"):
        again.batch_key()


def test_of_a_large_batch_every_set_of_the_largest_size_is_as_likely() -> None:
    """10 are drawn and 3 kept: each record in 3 of 10 steps, each pair in 2 of 30. The first 3 would be noticed."""
    source = TruncatedPoisson(10, 1.0, 3, NoiseSource(7))
    kept = np.zeros((4000, 10), dtype=bool)
    for step in range(4000):
        kept[step, source.batch(step)] = True
    assert (kept.sum(1) == 3).all()
    assert np.abs(kept.mean(0) - 0.3).max() < 5 * math.sqrt(0.3 * 0.7 / 4000)
    together = (kept[:, :, None] & kept[:, None, :]).mean(0)[np.triu_indices(10, 1)]
    assert np.abs(together - 1 / 15).max() < 5 * math.sqrt(14 / 15**2 / 4000)
    assert abs((kept[1:] & kept[:-1]).mean() - 0.09) < 5 * math.sqrt(0.09 * 0.91 / 4000 / 10) * 2
    first = np.arange(10) < 3
    assert np.abs(first - 0.3).max() > 50 * math.sqrt(0.3 * 0.7 / 4000)


def test_a_record_is_in_a_cut_batch_as_often_as_is_accounted_for() -> None:
    event = TruncatedGaussian(noise_multiplier=1, largest_batch=8, examples=20, sample_rate=0.3)
    source = TruncatedPoisson(20, 0.3, 8, NoiseSource(8))
    whole = PoissonBatches(20, 0.3, NoiseSource(8))
    taken = 0
    for step in range(4000):
        batch, drawn = source.batch(step), whole.batch(step)
        assert len(batch) == min(8, len(drawn))
        assert set(batch) <= set(drawn)
        assert (np.diff(batch) > 0).all()
        taken += len(batch)
    # Of M others that are drawn, min(1, 8 / (M + 1)) of those drawn with the record are kept.
    others = np.arange(20)
    chance = float((binom.pmf(others, 19, 0.3) * 0.3 * np.minimum(1, 8 / (others + 1))).sum())
    assert taken / 80_000 == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / 80_000))
    assert _chances(event)[2] == pytest.approx(chance, rel=1e-12)
    assert chance < 0.3 - 5 * math.sqrt(0.21 / 80_000)


def test_bad_largest_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="largest is 0"):
        TruncatedPoisson(5, 0.5, 0, NoiseSource())
    assert TruncatedPoisson(5, 1.0, 5, NoiseSource()).batch(0).tolist() == [0, 1, 2, 3, 4]
