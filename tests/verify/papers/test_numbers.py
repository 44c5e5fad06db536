"""Epsilons of single sums and releases, enclosed here, against dp_accounting 0.6: just above proved, just below not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from scipy.stats import binom

from privctl.domain.verdict import Outcome
from verify.papers.batches import fixed_batch, redrawn_batch
from verify.papers.claim import Judgement
from verify.papers.judging import judge_drawn, judge_event
from verify.papers.releases import majority, zcdp_epsilon
from verify.prove.enclosures import composition, integers
from verify.prove.prover import Prover

DELTA = Fraction(1, 10**5)


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with Prover() as prover:
        yield prover


def fixed(prover: Prover, epsilon: Fraction) -> Judgement:
    return judge_drawn(prover, "it", "it", fixed_batch(epsilon), DELTA, epsilon)


def redrawn(prover: Prover, epsilon: Fraction) -> Judgement:
    return judge_drawn(prover, "it", "it", redrawn_batch(epsilon), DELTA, epsilon)


def discrete_gaussian(prover: Prover, epsilon: Fraction) -> Judgement:
    event = integers.discrete_gaussian(4, 2, epsilon)
    return judge_event(prover, "it", "it", event, DELTA, epsilon, is_optimal=True)


def discrete_laplace(prover: Prover, epsilon: Fraction) -> Judgement:
    event = integers.discrete_laplace(Fraction(3, 10), 2, epsilon)
    return judge_event(prover, "it", "it", event, Fraction(1, 20), epsilon, is_optimal=True)


@pytest.mark.parametrize(
    ("judge", "known"),
    [
        # from_gaussian_mechanism(0.5, sampling_prob=0.1); from_mixture_gaussian_mechanism of binomial shifts 2 j;
        # from_discrete_gaussian_mechanism(4, 2); from_discrete_laplace_mechanism(0.3, 2), at 0.05.
        (fixed, 6.5755),
        (redrawn, 18.4815),
        (discrete_gaussian, 1.98895),
        (discrete_laplace, 0.50894),
    ],
)
def test_epsilon_is_the_boundary(prover: Prover, judge: Callable[[Prover, Fraction], Judgement], known: float) -> None:
    for change, outcome in ((0.0005, Outcome.PROVED), (-0.0005, Outcome.REFUTED)):
        found = judge(prover, Fraction(round(known + change, 6)).limit_denominator(10**6))
        assert found.outcome is outcome
        assert found.witness


def test_releases_of_pairs_compose_to_what_dp_accounting_says() -> None:
    """from_privacy_parameters(0.1, 1e-8), self_compose(100)."""
    releases = composition.RepeatedRelease(epsilon=Fraction(1, 10), delta=Fraction(1, 10**8), count=100)
    assert float(composition.worst_case_epsilon(releases, DELTA).high) == pytest.approx(4.3296367, abs=1e-6)


def test_concentrated_privacy_lies_between_a_gaussian_and_the_first_conversion() -> None:
    """Bun and Steinke 2016, proposition 1.3, rho + 2 sqrt(rho ln(1/delta)); the Gaussian by its exact formula."""
    found = float(zcdp_epsilon(Fraction(1, 10), DELTA).high)
    assert 1.7600571 < found < 0.1 + 2 * math.sqrt(0.1 * math.log(1e5))
    assert found == pytest.approx(1.91619, abs=1e-5)  # dp_accounting's ZCDpEvent at whole orders


def test_a_majority_is_counted_as_by_the_binomial_law() -> None:
    found = majority(50, Fraction(1, 20), 40)
    chance = 1 / (1 + math.exp(-0.05))
    assert float(found.p.high) == pytest.approx(binom.sf(39, 50, chance), rel=1e-10)
    assert float(found.q.high) == pytest.approx(binom.sf(39, 50, 1 - chance), rel=1e-10)
