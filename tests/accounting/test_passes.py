"""Visits of one record in shuffled passes: counted on real loaders, by the accounting and by verify."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privctl.accounting import gaussian, ledger
from privctl.accounting.passes import certain_participations, participations
from privctl.accounting.published import poster_naive_holds
from privctl.cli import run
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.train.steps.sampling import Passes
from verify.losses.visits import visits
from verify.recompute import ledger as again


def dropping(size: int, batch: int, seed: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """A loader that shuffles each pass and drops the last, smaller batch."""
    for number in range(10**6):
        order = np.random.default_rng((seed, number)).permutation(size)
        for start in range(0, size - batch + 1, batch):
            yield order[start : start + batch]


def most_visits(size: int, batch: int, steps: int, *, drop: bool) -> int:
    """Of the record that is visited most, over orders until it has been as lucky as it can be."""
    most = 0
    for seed in range(300):
        counts: Counter[int] = Counter()
        loader = dropping(size, batch, seed)
        keeping = Passes(size, batch, seed)
        for step in range(steps):
            counts.update((next(loader) if drop else keeping.batch(step)).tolist())
        most = max(most, *counts.values())
    return most


@pytest.mark.parametrize(("size", "batch", "steps"), [(10, 3, 12), (7, 2, 7), (5, 5, 3), (11, 4, 5), (6, 2, 9)])
def test_loaders_visit_a_record_as_often_as_is_counted(size: int, batch: int, steps: int) -> None:
    rate = batch / size
    assert most_visits(size, batch, steps, drop=True) == participations(rate, steps)
    assert most_visits(size, batch, steps, drop=False) == certain_participations(rate, steps)


@pytest.mark.parametrize(
    ("rate", "steps", "most", "least"),
    [
        (0.3, 30, 10, 8),
        (0.1, 30, 3, 3),
        (1 / 3, 3, 1, 1),
        (0.3333, 3, 1, 1),
        (0.33334, 3, 2, 1),
        (1.0, 7, 7, 7),
        (0.7, 5, 5, 3),
        (256 / 60000, 14062, 61, 60),
        (1e-9, 1_000_000_001, 2, 2),
        (5e-324, 4, 1, 1),
        (0.0, 9, 0, 0),
    ],
)
def test_visits_by_rate(rate: float, steps: int, most: int, least: int) -> None:
    assert (participations(rate, steps), certain_participations(rate, steps)) == (most, least)
    assert visits(rate, steps) == (least, most)


def test_rates_of_all_small_data_sets_are_read_exactly() -> None:
    for size in range(1, 120):
        for batch in range(1, size + 1):
            steps = 1 + (size * 31 + batch * 17) % 1000
            expected = -(-steps // -(-size // batch)), -(-steps // (size // batch))
            assert visits(batch / size, steps) == expected
            assert (certain_participations(batch / size, steps), participations(batch / size, steps)) == expected


def test_ten_epochs_that_drop_the_rest() -> None:
    event = SampledGaussian(noise_multiplier=1.0, sample_rate=0.3, steps=30, batches=Batches.SHUFFLED)
    book = Ledger(events=(event,))
    found = ledger.epsilon_bound(book, 1e-5)
    assert found == pytest.approx(gaussian.epsilon_at(1e-5, math.sqrt(10)), rel=1e-12)
    # If the orders stay secret, each pass drops the record with probability 1/10: a mixture of binomial visits, whose
    # epsilon lies below; nine visits, which would give 16.675, are no bound even then.
    truth = 17.230
    mixed = sum(math.comb(10, k) * 0.9**k * 0.1 ** (10 - k) * gaussian.delta_at(truth, math.sqrt(k)) for k in range(11))
    assert mixed == pytest.approx(1e-5, rel=1e-3)
    assert gaussian.epsilon_at(1e-5, 3.0) < truth < found
    assert again.exact_shift(book) == pytest.approx(math.sqrt(10), rel=1e-15)
    # What sums nine participations, the poster's formula, is no bound here.
    assert not poster_naive_holds(1, 0.3, 30)


def old_formula(rate: float, steps: int) -> int:
    return math.ceil(steps * rate * (1 - 1e-12))


def test_verify_refutes_the_product_of_rate_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["account", "--batches", "shuffled", "--noise-multiplier", "1", "--sample-rate", "0.3", "--steps", "30"]
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    assert run([*asked, "--delta", "1e-5", "--no-peers", "--method", "tight", "-o", str(right)]) == 0
    monkeypatch.setattr("privctl.accounting.events.sampled_gaussian.participations", old_formula)
    assert run([*asked, "--delta", "1e-5", "--no-peers", "--method", "tight", "-o", str(wrong)]) == 0
    found = capsys.readouterr()
    assert "17.8566" in found.out
    assert "16.6755" in found.out
    assert "a pass is taken to be 3 steps" in found.err
    assert run(["verify", str(right)]) == 0
    assert run(["verify", str(wrong)]) == 1
    assert "REFUTED" in capsys.readouterr().out
