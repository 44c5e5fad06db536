"""How much noise there was at most, if the steps are as stated: honest trainings, faults, and forged figures."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of, counts_of
from audits.canaries.design import register
from audits.canaries.stated_noise import noise_bound, noise_in_words
from audits.canaries.verdict import curves, power_at_half_noise
from audits.claims import CurveClaim, with_half_noise
from audits.mechanism_curve import family_of
from audits.statistics.independent_guesses import p_value
from audits.statistics.several_guesses import GuessCount
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.profile import profile
from privctl.domain.events import Batches, Event, Ledger, SampledGaussian
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome
from privctl.gate.checks.leakage import is_group_bound, is_lower_bound
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.canary_laws import law_of
from tests.train.steps.test_half_noise import KINDS, STEPS, Kind, run_of

DELTA, LEVEL = 1e-5, 0.025
#: At the noise of epsilon 8.
POISSON = Kind(
    event=SampledGaussian(noise_multiplier=0.776, sample_rate=0.1, steps=STEPS), noise=0.776, rate=0.1
)  # fmt: skip
IN_PASSES = Kind(
    event=SampledGaussian(noise_multiplier=0.707, sample_rate=0.1, steps=STEPS, batches=Batches.BALLS_AND_BINS),
    noise=0.707, rate=0.1, more={"batches": Batches.BALLS_AND_BINS},
)  # fmt: skip
_PROFILE = lru_cache(None)(profile)


def claim(event: Event) -> CurveClaim:
    ledger = Ledger(events=(event,))
    family = family_of(ledger, _PROFILE, epsilon_bound)
    return CurveClaim(mechanism=ledger, points=_PROFILE(ledger), source="m.report.json", family=family)


def guessed(kind: Kind, share: float = 1.0, count: int = 5001, seed: int = 5) -> tuple[Evidence, ...]:
    """The bounds of a training of ``kind`` with a ``share`` of its noise."""
    run, canaries = run_of(kind, share, count, seed)
    run.run()
    return bounds_of(
        register([1] * count), canaries.every_step, np.ones(count, np.bool_), canaries.included, DELTA, LEVEL,
    )  # fmt: skip


def bound(kind: Kind, share: float = 1.0, count: int = 5001, stated: Event | None = None, seed: int = 5) -> Evidence:
    (found,) = noise_bound(guessed(kind, share, count, seed), claim(stated or kind.event), DELTA, own_coordinates=True)
    return found


@pytest.mark.parametrize("kind", [POISSON, pytest.param(IN_PASSES, marks=pytest.mark.slow)])
def test_an_honest_training_had_at_most_a_little_more(kind: Kind) -> None:
    found = bound(kind)
    assert 1 < found.details["share"] < 1.25
    assert found.upper == found.details["share"] * kind.noise
    assert 4 < found.details["epsilon"] < 8, "within a factor of 2 of the truth"
    assert found.confidence == 1 - LEVEL
    (sentence,) = noise_in_words([found])
    assert "if all else of the steps is as stated, for which the accountant gives an epsilon of at least" in sentence
    assert not is_lower_bound(found)
    assert not is_group_bound(found), "no policy goes by it"


def test_half_of_the_noise_is_half_of_it() -> None:
    few = guessed(POISSON, 0.5)
    (noise,) = noise_bound(few, claim(POISSON.event), DELTA, own_coordinates=True)
    assert 0.5 < noise.details["share"] < 0.65
    (verdict,) = curves(few, claim(POISSON.event), [noise])
    assert verdict.outcome is Outcome.REFUTED
    assert re.search(r"the noise was at most 0\.[56]", verdict.reason)
    (without,) = curves(few, claim(POISSON.event))
    assert without.outcome is not Outcome.REFUTED, "which the curve alone does not show with so few"


def test_the_power_stated_is_that_of_the_test_which_decides() -> None:
    """501 canaries refute half of the noise by their independence, which the test of the curve alone never does."""
    stated = replace(claim(POISSON.event), half=_PROFILE(with_half_noise(claim(POISSON.event).mechanism)))
    honest = guessed(POISSON, count=501)
    (alone,) = curves(honest, stated)
    assert alone.outcome is Outcome.INCONCLUSIVE
    assert float(alone.reason.rsplit(" ", 1)[1]) < 0.1
    noise = noise_bound(honest, stated, DELTA, own_coordinates=True)
    (together,) = curves(honest, stated, noise, own_coordinates=True)
    assert together.outcome is Outcome.CONSISTENT
    assert together.reason.endswith("a probability of about 1")
    for seed in range(3):
        less = guessed(POISSON, 0.5, 501, seed)
        (verdict,) = curves(less, stated, noise_bound(less, stated, DELTA, own_coordinates=True), own_coordinates=True)
        assert verdict.outcome is Outcome.REFUTED


@pytest.mark.slow
@pytest.mark.parametrize(("count", "noise", "rate"), [(151, 1.0, 0.01), (81, 2.0, 0.1)])
def test_half_of_the_noise_is_refuted_as_often_as_stated(count: int, noise: float, rate: float) -> None:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=STEPS * 3)
    stated = replace(claim(event), half=_PROFILE(with_half_noise(Ledger(events=(event,)))))
    sets = register([1] * count)
    unseen = [GuessCount(canaries=count, guesses=each.guesses, correct=0) for each in sets]
    chance = power_at_half_noise(unseen, stated, LEVEL, independent=True)
    assert 0.2 < chance < 0.95
    source, refuted = np.random.default_rng(4), 0
    recipe = TrainingSettings(
        method="dp-sgd", steps=STEPS * 3, batch_size=20, sample_rate=rate, learning_rate=0.1, noise_multiplier=noise
    )
    for _ in range(150):
        law, included = law_of(recipe, count), source.random(count) < 0.5
        for step in range(STEPS * 3):
            drawn = law.amounts(step, lambda _: source, None) * included
            law.observe(step, drawn + source.normal(scale=noise / 2, size=count))
        found = bounds_of(sets, law.scores(), np.ones(count, np.bool_), included, DELTA, LEVEL)
        counted = list(counts_of(found[0]))
        refuted += any(p_value(*each.counts, stated.points) < LEVEL / len(counted) for each in counted)
    assert refuted / 150 > chance - 0.12


def test_another_rate_is_outside_the_family() -> None:
    """The bound says less noise than there was, and the verdict that the steps were not those stated."""
    often = replace(POISSON, rate=0.2)
    few = guessed(often)
    (noise,) = noise_bound(few, claim(POISSON.event), DELTA, own_coordinates=True)
    assert noise.details["share"] < 0.9
    (verdict,) = curves(few, claim(POISSON.event), [noise])
    assert verdict.outcome is Outcome.REFUTED


def test_where_canaries_are_not_independent_the_curve_alone_is_tested() -> None:
    few, stated = guessed(POISSON), claim(POISSON.event)
    (alone,) = noise_bound(few, stated, DELTA, own_coordinates=True)
    (together,) = noise_bound(few, stated, DELTA, own_coordinates=False)
    assert together.details["share"] > 1.4 * alone.details["share"]
    assert "independent" in noise_in_words([alone])[0]
    assert "independent" not in noise_in_words([together])[0]
    cut = KINDS["batches that are cut"]
    assert bound(cut, count=2001).details["independent"] == 0, "canaries share the size of a batch"


def test_no_bound_says_why() -> None:
    few = guessed(POISSON, count=11)
    (none,) = noise_bound(few, claim(POISSON.event), DELTA, own_coordinates=True)
    assert none.upper is None
    assert "fit any noise up to 64 times" in none.reason
    (none,) = noise_bound(few, claim(POISSON.event), 0.0, own_coordinates=True)
    assert "at delta 0" in none.reason
    (none,) = noise_bound(few, replace(claim(POISSON.event), family=None), DELTA, own_coordinates=True)
    assert "no one kind of Gaussian steps" in none.reason
    assert noise_bound(few, None, DELTA, own_coordinates=True) == ()
    assert noise_in_words([none]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [POISSON, IN_PASSES, KINDS["users"], KINDS["bands"], KINDS["buffers"]])
def test_it_is_seldom_below_the_truth(kind: Kind) -> None:
    wrong = sum((bound(kind, count=501, seed=seed).details.get("share") or 2.0) <= 1 for seed in range(200))
    assert wrong <= 11, "of 200 at a level of 0.025; 12 or more have a chance of 0.005"


def test_more_noise_is_a_higher_curve() -> None:
    """Which the bound does not rest on, but the word "largest" does."""
    for event in (POISSON.event, KINDS["bands"].event, KINDS["users"].event, KINDS["buffers"].event):
        family = claim(event).family
        assert family is not None
        at = np.linspace(0, 1, 41)[1:, None]
        floors = []
        for share in (0.9, 1.0, 1.5):
            epsilons, deltas = np.array(family.points(share)).T
            floors.append(((at - deltas) * np.exp(-epsilons)).max(axis=1))
        assert (np.diff(floors, axis=0) >= -1e-3).all()
