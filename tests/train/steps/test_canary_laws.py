"""How canaries take part in runs of each kind, what is seen of them, and what of it outlives an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from audits.statistics.metrics import auc
from privctl.domain.errors import RunInterruptedError
from privctl.domain.events import Batches
from privctl.randomness import NoiseSource
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.canary_laws import law_of, noise_shown, participation_phrase
from privctl.train.steps.sampling import PoissonBatches, TruncatedPoisson
from privctl.train.steps.step_noise import correlated
from tests.few import few
from tests.train.steps.test_half_noise import BAND, BANDS, BUFFERS, KINDS, PASS, STEPS, Less, run_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOISE, COUNT = 2.0, 3000
RECIPE: dict[str, Any] = {
    "method": "dp-sgd", "steps": STEPS, "batch_size": 20.0, "learning_rate": 0.1, "noise_multiplier": NOISE
}  # fmt: skip


def correlation(column: NDArray[Any], lost: set[int]) -> NDArray[Any]:
    """C [steps, steps] with this first column; of ``lost`` steps nothing but the diagonal is left."""
    found = np.zeros((STEPS, STEPS))
    for lag, value in enumerate(column):
        found += value * np.eye(STEPS, k=-lag)
    for step in lost:
        found[step + 1 :, step] = 0
    return found


def column_of(kind: str) -> NDArray[Any]:
    if kind == "bands":
        return np.array(BAND)
    lags = np.arange(STEPS - 1)
    terms = zip(BUFFERS.weights, BUFFERS.decays, strict=True)
    return np.append(BUFFERS.first, sum(weight * decay**lags for weight, decay in terms))


@pytest.mark.parametrize("lost", [set(), {3, 4, 13, 30}, {0, 1, 28}])
@pytest.mark.parametrize("kind", ["bands", "buffers"])
def test_correlated_noise_is_looked_at_in_the_rows_of_c(kind: str, lost: set[int]) -> None:
    """Beside the matrix itself: what is released, times C, less what a canary adds, is noise of one size."""
    coefficients, matrix = (BAND, None) if kind == "bands" else (None, BUFFERS)
    apart, rate = (BANDS, 0.9) if kind == "bands" else (PASS, 1.0)
    recipe = TrainingSettings(sample_rate=0.3 if kind == "bands" else 1 / PASS, coefficients=coefficients,
                              matrix=matrix, **RECIPE)  # fmt: skip
    law, noise = law_of(recipe, COUNT), correlated(Less(1.0), coefficients, matrix)
    coins, added, released = np.random.default_rng(8), np.zeros((STEPS, COUNT)), np.zeros((STEPS, COUNT))
    for step in sorted(set(range(STEPS)) - lost):
        added[step] = law.amounts(step, lambda _: coins, None)
        sums = torch.from_numpy(added[step].copy())
        noise.release([sums], NOISE, step)
        released[step] = sums.numpy()
        law.observe(step, released[step])
    taking_part = added.any(axis=1)
    assert set(np.flatnonzero(taking_part)) == set(range(0, STEPS, apart)) - lost
    assert added[taking_part].mean() == pytest.approx(rate, abs=0.01)

    kept = sorted(set(range(STEPS)) - lost)
    c = correlation(column_of(kind), lost)[kept]
    rows = c @ released
    left = rows - c @ added
    assert left.std() == pytest.approx(NOISE, rel=0.01)
    assert abs(np.corrcoef(left[1:].ravel(), left[:-1].ravel())[0, 1]) < 0.02
    places = np.array([step for step in range(0, STEPS, apart) if step not in lost])
    uses = c[:, places].T
    scores = np.zeros(COUNT)
    for moved in uses if kind == "bands" else [uses.sum(0)]:
        scores += np.log(1 - rate + rate * np.exp((2 * moved @ rows - moved @ moved) / (2 * NOISE**2)))
    assert law.scores() == pytest.approx(scores, abs=1e-9)


def test_a_canary_is_cut_as_the_accountant_says() -> None:
    """Where others fill the batch it comes with probability q B / (M + 1), by two clip norms."""
    size, rate, largest = 20, 0.5, 10
    recipe = TrainingSettings(sample_rate=rate, largest_batch=largest, **RECIPE)
    batches, law = TruncatedPoisson(size, rate, largest, NoiseSource(3)), law_of(recipe, COUNT)
    coins, found = np.random.default_rng(4), []
    for step in range(300):
        others = batches.others(step)
        amounts = law.amounts(step, lambda _: coins, batches)
        chance, shift = (rate * largest / (others + 1), 2) if others >= largest else (rate, 1)
        assert set(np.unique(amounts)) == {0, shift}
        assert (amounts > 0).mean() == pytest.approx(chance, abs=6 * 0.5 / COUNT**0.5)
        assert others <= len(batches.batch(step)) or others >= largest
        found.append(others)
        # The ratio of what was seen to what is seen without it has the mean 1 without it.
        before, noise = law.scores().copy(), coins.normal(scale=NOISE, size=COUNT)
        law.observe(step, noise)
        assert np.exp(law.scores() - before).mean() == pytest.approx(1, abs=6 * np.exp(2 / NOISE**2) / COUNT**0.5)
    full = np.mean(np.array(found) >= largest)
    assert full == pytest.approx(binom.sf(largest - 1, size - 1, rate), abs=0.15)
    # The canary is one of the records that the accountant counts, so the others are one fewer.
    assert np.mean([batches.others(step) for step in range(1500)]) == pytest.approx(rate * (size - 1), abs=0.25)


def test_canaries_do_not_see_which_records_are_kept() -> None:
    """As the report says of them: whoever is kept, they see the same."""

    class KeepsTheFirst(TruncatedPoisson):
        def batch(self, step: int) -> NDArray[np.int64]:
            return PoissonBatches(self.size, self.rate, self.source).batch(step)[: self.largest]

    recipe = TrainingSettings(sample_rate=0.5, largest_batch=10, **RECIPE)
    honest, biased = (kind(20, 0.5, 10, NoiseSource(3)) for kind in (TruncatedPoisson, KeepsTheFirst))
    laws = law_of(recipe, COUNT), law_of(recipe, COUNT)
    for step in range(STEPS):
        amounts = [
            law.amounts(step, np.random.default_rng, each) for law, each in zip(laws, (honest, biased), strict=True)
        ]
        assert np.array_equal(*amounts)
    assert any(honest.batch(step).tolist() != biased.batch(step).tolist() for step in range(STEPS))
    assert "not which records are kept" in participation_phrase(recipe)


def test_a_user_comes_with_as_many_records_as_coins_fall() -> None:
    recipe = TrainingSettings(sample_rate=0.3, group=5, **RECIPE)
    law = law_of(recipe, COUNT)
    amounts = np.concatenate([law.amounts(step, np.random.default_rng, None) for step in range(20)])
    shares = [(amounts == j).mean() for j in range(6)]
    assert shares == pytest.approx(binom.pmf(range(6), 5, 0.3), abs=0.012)
    observed = np.random.default_rng(1).normal(scale=2 * NOISE, size=COUNT)
    law.observe(0, observed)
    ratios = sum(binom.pmf(j, 5, 0.3) * np.exp((2 * j * observed - j * j) / (2 * NOISE**2)) for j in range(6))
    assert law.scores() == pytest.approx(np.log(ratios), abs=1e-9)


def test_a_canary_comes_once_a_pass() -> None:
    """Of a pass the ratio is the mean over its steps, of which one that is not seen has the ratio 1."""
    recipe = TrainingSettings(sample_rate=1 / 4, batches=Batches.BALLS_AND_BINS, **RECIPE)
    law, coins = law_of(recipe, COUNT), np.random.default_rng(2)
    came, expected = np.zeros((3, COUNT)), np.zeros((3, COUNT))
    for step in range(11):
        amounts = law.amounts(step, lambda number: np.random.default_rng([7, number]), None)
        assert amounts.mean() == pytest.approx(0.25, abs=6 * 0.5 / COUNT**0.5)
        came[step // 4] += amounts
        released = amounts + NOISE * coins.normal(size=COUNT)
        if step != 5:  # begun and lost
            law.observe(step, released)
        expected[step // 4] += np.exp((2 * released - 1) / (2 * NOISE**2)) if step != 5 else 1
    assert (came[:2] == 1).all()
    expected[2] += 1  # the last step of the last pass, which is not made
    assert law.scores() == pytest.approx(np.log(expected / 4).sum(0), abs=1e-9)


def interrupted(name: str, path: Path) -> dict[str, Tensor]:
    """The canaries' tensors at the end of a training that is stopped three times."""
    folder = RunFolder.begin(path, {})
    for begun, stop in ((0, 1), (1, 5), (5, 16)):
        _, start = RunFolder.resume(path, {}) if begun else (None, None)
        training, _ = run_of(KINDS[name], count=200)
        steps: list[float] = []
        training.folder, training.advance = folder, steps.append
        with pytest.raises(RunInterruptedError):
            training.run(start, lambda steps=steps, wanted=stop - begun: len(steps) + 1 == wanted)
    _, start = RunFolder.resume(path, {})
    training, canaries = run_of(KINDS[name], count=200)
    training.run(start)
    return canaries.tensors()


@pytest.mark.parametrize("name", few(["batches that are cut", "users", "balls and bins", "bands", "buffers"], 0, 2))
def test_what_was_seen_outlives_an_interruption_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that goes on draws a key of its own, and uses that of the first.
    keys = [os.urandom(32) for _ in range(4)]

    def first_key_again() -> None:
        drawn = iter(keys)
        monkeypatch.setattr("privctl.train.steps.gradient_canaries.os.urandom", lambda _: next(drawn))
        torch.manual_seed(1)  # of the weights

    first_key_again()
    training, canaries = run_of(KINDS[name], count=200)
    training.run()
    first_key_again()
    found = interrupted(name, tmp_path / "run")
    assert found.keys() == canaries.tensors().keys()
    for each, value in canaries.tensors().items():
        assert torch.equal(found[each], value), each


@pytest.mark.parametrize("kind", ["Poisson batches", "balls and bins", "bands"])
def test_half_of_the_noise_shows_in_rare_draws(kind: str) -> None:
    """The ratios are those for the noise that is there, or for what is stated if that is less."""
    more: dict[str, Any] = {
        "Poisson batches": {}, "balls and bins": {"batches": Batches.BALLS_AND_BINS}, "bands": {"coefficients": BAND}
    }[kind]  # fmt: skip
    recipe = TrainingSettings(sample_rate=1 / 60, **{**RECIPE, "steps": 240, "noise_multiplier": 1.0}, **more)
    found = {}
    for share in (0.5, 1.0, 2.0):
        law, source = law_of(recipe, COUNT), np.random.default_rng(6)
        included = source.random(COUNT) < 0.5
        noise = correlated(Less(share), recipe.coefficients, None)
        exact = np.zeros(COUNT)
        for step in range(recipe.steps):
            drawn = law.amounts(step, lambda number: np.random.default_rng([9, number]), None) * included
            sums = torch.from_numpy(drawn.copy())
            noise.release([sums], 1.0, step)
            law.observe(step, sums.numpy())
            exact += np.log1p((np.exp((2 * sums.numpy() - 1) / (2 * min(1.0, share) ** 2)) - 1) / 60)
        found[share] = roc_auc(law.scores(), included)
        if kind == "Poisson batches":
            assert np.corrcoef(law.scores(), exact)[0, 1] > 0.99
    assert found[0.5] > {"Poisson batches": 0.76, "balls and bins": 0.77, "bands": 0.83}[kind]
    assert found[0.5] > found[1.0] > found[2.0]


def test_more_noise_than_there_is_is_never_shown() -> None:
    source = np.random.default_rng(7)
    honest = [noise_shown(source.normal(size=COUNT), 0.0, 1.0) for _ in range(200)]
    assert np.mean(np.array(honest) == 1.0) > 0.98
    assert noise_shown(source.normal(scale=0.5, size=COUNT), 0.0, 1.0) == pytest.approx(0.52, abs=0.02)
    assert noise_shown(source.normal(scale=3.0, size=COUNT), 0.0, 1.0) == 1.0
    assert 0 < noise_shown(np.zeros(2), 0.5, 1.0) < 0.01


def roc_auc(scores: NDArray[Any], included: NDArray[np.bool_]) -> float:
    return auc(scores[included], scores[~included]).value
