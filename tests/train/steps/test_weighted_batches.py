"""Every example is drawn with its own probability, independently; what is not so is noticed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from privctl.randomness import NoiseSource
from privctl.train.steps import sampling as batches_module
from privctl.train.steps.sampling import WeightedBatches
from tests.forked import Forked

#: How often a check may fail on honest draws; the seeds are fixed, so it does so always or never.
ALPHA = 1e-6
STEPS = 4000
#: Neighbours differ in how often they are drawn.
RATES = np.linspace(0.05, 0.6, 40)[np.random.default_rng(0).permutation(40)]

Drawn = NDArray[np.bool_]


def drawn(rates: NDArray[np.float64], seed: int = 1, steps: int = STEPS) -> Drawn:
    """Who was drawn, by [step, example]."""
    source, found = WeightedBatches(rates, NoiseSource(seed)), np.zeros((steps, len(rates)), dtype=bool)
    for step in range(steps):
        found[step, source.batch(step)] = True
    return found


def frequencies(found: Drawn, rates: NDArray[np.float64]) -> float:
    """Chi-square of how often each example was drawn, by its bound; above 1 it is not the law."""
    expected = len(found) * rates
    statistic = float((((found.sum(0) - expected) ** 2) / (expected * (1 - rates))).sum())
    return statistic / float(chi2.isf(ALPHA, len(rates)))


def _correlations(left: NDArray[np.float64], right: NDArray[np.float64], pairs: tuple[NDArray[np.int64], ...]) -> float:
    """Chi-square of the products of standardised draws over ``pairs`` of examples, by its bound."""
    scores = (left.T @ right)[pairs] / math.sqrt(len(left))
    return float((scores**2).sum()) / float(chi2.isf(ALPHA, len(scores)))


def dependence(found: Drawn, rates: NDArray[np.float64]) -> float:
    """The worst of what pairs of examples in a step, and examples in neighbouring steps, know of each other."""
    standard = (found - rates) / np.sqrt(rates * (1 - rates))
    within = np.triu_indices(len(rates), 1)
    across = tuple(part.ravel() for part in np.indices((len(rates), len(rates))))
    return max(_correlations(standard, standard, within), _correlations(standard[1:], standard[:-1], across))


def shifted(found: Drawn) -> Drawn:
    return np.roll(found, 1, axis=1)


def swapped(found: Drawn) -> Drawn:
    """Two of the examples, whose probabilities differ by a tenth, are taken for each other."""
    first = int(np.argmin(np.abs(RATES - 0.3)))
    second = int(np.argmin(np.abs(RATES - 0.4)))
    order = np.arange(len(RATES))
    order[[first, second]] = second, first
    return found[:, order]


def test_frequencies_follow_the_probabilities() -> None:
    assert frequencies(drawn(RATES), RATES) < 1


@pytest.mark.parametrize("fault", [shifted, swapped])
def test_other_records_probabilities_would_be_noticed(fault: Callable[[Drawn], Drawn]) -> None:
    assert frequencies(fault(drawn(RATES)), RATES) > 1


def test_draws_know_nothing_of_each_other() -> None:
    assert dependence(drawn(RATES), RATES) < 1


def test_one_coin_for_all_and_one_step_for_the_next_would_be_noticed() -> None:
    together = np.random.default_rng(0).random((STEPS, 1)) < RATES
    assert dependence(together, RATES) > 1
    assert dependence(np.repeat(drawn(RATES, steps=STEPS // 2), 2, axis=0), RATES) > 1


def test_never_and_always() -> None:
    rates = np.tile([0.0, 1.0, 0.5], 200)
    found = drawn(rates, steps=50)
    assert not found[:, 0::3].any()
    assert found[:, 1::3].all()
    assert 0.4 < found[:, 2::3].mean() < 0.6
    source = WeightedBatches(rates, NoiseSource(2))
    assert (np.diff(source.batch(0)) > 0).all()
    assert WeightedBatches(np.zeros(3), NoiseSource()).batch(0).tolist() == []
    assert WeightedBatches(np.ones(3), NoiseSource()).batch(0).tolist() == [0, 1, 2]


class Words(NoiseSource):
    """A keystream with given words, so that the first word decides about the first example that can be drawn."""

    def __init__(self, word: int) -> None:
        super().__init__(0)
        self._word = word

    def words(self, stream: int, block: int, count: int) -> NDArray[np.uint64]:
        return np.full(count, self._word, np.uint64)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 1 - 2.0**-53, 2.0**-64, 7 * 2.0**-66, 2.0**-65, 5e-324, 0.5])
def test_a_probability_is_rounded_down_to_whole_words(rate: float) -> None:
    """Of the 2^64 words, floor(rate 2^64) draw the example."""
    threshold = math.floor(Fraction(rate) * 2**64)
    for word in {0, max(threshold - 1, 0), threshold, 2**64 - 1}:
        found = WeightedBatches(np.array([rate]), Words(word)).batch(0)
        assert (len(found) == 1) == (word < threshold)


def test_many_records_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks' edges cut nothing off, and no block repeats another's draws."""
    monkeypatch.setattr(batches_module, "_BLOCK", 7)
    rates = np.concatenate([RATES, [0.0, 1.0]])
    found = drawn(rates)
    assert frequencies(found[:, :40], RATES) < 1
    assert dependence(found[:, :40], RATES) < 1
    assert found[:, 41].all()


def test_two_runs_draw_differently_and_a_key_alike() -> None:
    rates = np.full(2000, 0.2)
    first, second = NoiseSource(), NoiseSource()
    one = WeightedBatches(rates, first)
    assert one.batch(0).tolist() != WeightedBatches(rates, second).batch(0).tolist()
    again = WeightedBatches(rates, NoiseSource(key=first.key))
    assert one.batch(7).tolist() == again.batch(7).tolist()
    assert one.batch(7).tolist() != one.batch(8).tolist()


@pytest.mark.parametrize(
    "rates", [np.empty(0), np.full((2, 2), 0.5), np.array([0.5, 1.1]), np.array([-0.1]), np.array([math.nan])]
)
def test_what_are_no_probabilities(rates: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        WeightedBatches(rates, NoiseSource())


#: What each of two processes runs: prints every batch as it knows it, and its share.
SCRIPT = """
import json, sys, numpy as np, torch
from privctl.parallel import start_workers
from privctl.train.runs.setup import shared_source
from privctl.train.steps.sampling import WeightedBatches
with start_workers(torch.device("cpu")) as workers:
    source = WeightedBatches(np.linspace(0, 1, 200), shared_source(workers))
    found = [source.batch(step) for step in range(5)]
    print(json.dumps([[b.tolist() for b in found], [workers.share(b).tolist() for b in found]]), flush=True)
    workers.barrier()
"""


def test_two_processes_draw_the_same_batches(tmp_path: Path, forked: Forked) -> None:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    found = forked.together(2, [], script=str(script))
    for each in found:
        assert each.code == 0, each.errors[-2000:]
    (first, its), (second, others) = (json.loads(output) for _, output, _ in found)
    assert first == second
    assert first[0] != first[1]
    for whole, one, other in zip(first, its, others, strict=True):
        assert sorted([*one, *other]) == whole
