from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.special import bdtr, expit
from scipy.stats import fisher_exact, nhypergeom

from audits.statistics.f_dp import epsilon_of_mu
from audits.statistics.two_arm import (
    CERTAIN,
    ApproximateDp,
    GaussianDp,
    RankTest,
    TradeOffCurve,
    claim_p_value,
    epsilon_bound,
    mu_bound,
    p_value,
    rank_tests,
    ranks,
)
from tests.few import few
from tests.work import calls, memory

ALPHA, MODELS, AUDITS = 0.05, 300, 800
#: So many audits err more often than this with probability below 0.1 % where each errs with alpha.
ALLOWED = 60


def rank_test(rank: int, ranked: int, beyond: int, counted: int) -> RankTest:
    return RankTest(threshold=0.0, rank=rank, ranked=ranked, beyond=beyond, counted=counted, from_without=True)


@pytest.mark.parametrize(
    ("test", "curve", "expected"),
    [
        # mpmath with 30 digits: the beta density times the regularized beta function, integrated over F.
        (rank_test(4, 500, 60, 500), ApproximateDp(epsilon=1.0, delta=1e-5), 1.937308943e-5),
        (rank_test(125, 500, 300, 500), ApproximateDp(epsilon=0.5, delta=1e-5), 2.493513617e-6),
        (rank_test(1, 50, 9, 50), ApproximateDp(epsilon=0.3, delta=0.0), 0.02697078891),
        (rank_test(4, 500, 60, 500), GaussianDp(mu=0.8), 0.01498756238),
        (rank_test(0, 30, 28, 30), ApproximateDp(epsilon=3.0, delta=0.01), 0.2207577044),
        # Told apart: beside the bend of the curve the tail changes within a thousandth of F.
        (rank_test(5, 1000, 1000, 1000), ApproximateDp(epsilon=5.4944, delta=1e-5), 0.0129140441874),
        (rank_test(250, 1000, 1000, 1000), ApproximateDp(epsilon=5.4944, delta=1e-5), 0.0458524117818),
    ],
)
def test_known_p_values(test: RankTest, curve: TradeOffCurve, expected: float) -> None:
    assert p_value(test, curve) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("delta", [0.0, 1e-12, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 4.0, 50.0])
def test_with_one_ranked_model_the_integral_is_known(epsilon: float, delta: float) -> None:
    """All of m beyond the one threshold, and one beyond the least of m: T has three lines, and mirrors itself."""
    bend, slope = (1 - delta) / (1 + math.exp(epsilon)), math.exp(epsilon)
    curve = ApproximateDp(epsilon=epsilon, delta=delta)
    for m in (1, 2, 47, 20_000):
        n = m + 1
        rising = ((1 - bend) ** n - delta**n) / (n * slope)
        above = rising - math.expm1(n * math.log1p(-bend)) * slope / n + delta  # of T ** m, from 0 to 1
        assert p_value(rank_test(0, 1, m, m), curve) == pytest.approx(above, rel=1e-6)
        missed = ((1 - delta) ** n - bend**n) / (n * slope) + bend**n * slope / n  # of (1 - T) ** m
        assert p_value(rank_test(m - 1, m, 1, 1), curve) == pytest.approx(1 - missed, rel=1e-6)


@pytest.mark.parametrize("counts", [(3, 20, 9, 15), (0, 5, 5, 5), (10, 40, 200, 500), (499, 1000, 40, 50)])
def test_without_privacy_loss_it_is_fisher_s_exact_test(counts: tuple[int, int, int, int]) -> None:
    """The threshold is one of the ranked models, so the table holds the other ranked ones and itself as not beyond."""
    k, n, tp, m = counts
    exact = fisher_exact([[tp, m - tp], [k, n - k]], "greater").pvalue
    assert p_value(rank_test(k, n, tp, m), ApproximateDp(epsilon=0.0, delta=0.0)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("curve", [ApproximateDp(epsilon=1.3, delta=0.02), GaussianDp(mu=0.9)])
def test_a_curve_and_its_inverse(curve: TradeOffCurve) -> None:
    fpr = np.linspace(0.001, 0.97, 50)
    assert curve.least(curve.most(fpr)) == pytest.approx(fpr)
    assert (np.diff(curve.most(fpr)) > 0).all()


Scores = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
#: Mechanisms at the very edge of a claim: (a score of each model, the claim that they reach but do not break).
EDGES: dict[str, tuple[Scores, TradeOffCurve]] = {
    "randomized response": (
        lambda r: ((r.random(MODELS) < expit(1.0)) * 1.0, (r.random(MODELS) >= expit(1.0)) * 1.0),
        ApproximateDp(epsilon=1.0, delta=0.0),
    ),
    "randomized response, ties broken": (
        lambda r: (
            (r.random(MODELS) < expit(1.0)) + r.random(MODELS) / 2,
            (r.random(MODELS) >= expit(1.0)) + r.random(MODELS) / 2,
        ),
        ApproximateDp(epsilon=1.0, delta=0.0),
    ),
    "Laplace": (
        lambda r: (r.laplace(scale=0.5, size=MODELS) + 1, r.laplace(scale=0.5, size=MODELS)),
        ApproximateDp(epsilon=2.0, delta=0.0),
    ),
    "Gaussian, by mu": (lambda r: (r.normal(1, size=MODELS), r.normal(size=MODELS)), GaussianDp(mu=1.0)),
    "Gaussian, by epsilon": (
        lambda r: (r.normal(1, size=MODELS), r.normal(size=MODELS)),
        ApproximateDp(epsilon=epsilon_of_mu(1.0, 0.01), delta=0.01),
    ),
    "nothing, with ties": (
        lambda r: (np.round(r.normal(size=MODELS)), np.round(r.normal(size=MODELS))),
        ApproximateDp(epsilon=0.0, delta=0.0),
    ),
}


def fewest(test: RankTest, curve: TradeOffCurve, level: float) -> int:
    """How many models beyond the threshold reject the curve, so that audits need no quadrature of their own."""
    return bisect_left(range(test.counted + 1), True, key=lambda seen: p_value(test, curve, seen) <= level)


@pytest.mark.parametrize("name", few(EDGES, *range(0, len(EDGES), 2)))
def test_a_mechanism_at_the_edge_of_a_claim_is_refuted_at_most_alpha_of_the_time(name: str) -> None:
    draw, curve = EDGES[name]
    source = np.random.default_rng(3)
    bars = [fewest(test, curve, ALPHA * test.share) for test in rank_tests(*draw(source))]
    refuted = 0
    for _ in range(AUDITS):
        refuted += any(test.beyond >= bar for test, bar in zip(rank_tests(*draw(source)), bars, strict=True))
    assert bdtr(ALLOWED, AUDITS, ALPHA) > 0.999
    assert refuted <= ALLOWED
    # The line of (epsilon, delta) touches a Gaussian's curve at one point only; ties are judged by nearly all orders.
    least = 0 if name == "Gaussian, by epsilon" else 1 if name in ("randomized response", "nothing, with ties") else 5
    assert refuted >= least, "a test that never errs would have no power either"


def test_a_rank_chosen_after_looking_is_noticed() -> None:
    draw, curve = EDGES["Laplace"]
    source = np.random.default_rng(4)
    tried = range(0, MODELS // 2, 5)
    bars = [fewest(rank_test(k, MODELS, 0, MODELS), curve, ALPHA) for k in tried]
    refuted = 0
    for _ in range(AUDITS):
        inner, outer = (np.sort(scores) for scores in draw(source))
        beyond = MODELS - np.searchsorted(inner, outer[[MODELS - 1 - k for k in tried]], "right")
        refuted += bool((beyond >= bars).any())
    assert refuted > 1.5 * ALLOWED


@pytest.mark.parametrize(("models", "least", "before"), few([(50, 0.3, 0.22), (500, 1.3, 1.1), (5000, 2.1, 1.8)], 1))
def test_more_is_certified_than_by_two_binomial_limits(models: int, least: float, before: float) -> None:
    """Scores shifted by one standard deviation, at delta 1e-5; two limits at alpha / 2 gave ``before`` on average."""
    source = np.random.default_rng(1)
    found = [
        epsilon_bound(rank_tests(source.normal(1, size=models), source.normal(size=models)), 1e-5).value
        for _ in range(6)
    ]
    assert before < least < np.mean(found) < 4.377  # the true epsilon


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_binary_score_is_judged_as_any_other(epsilon: float) -> None:
    source = np.random.default_rng(9)
    rate = float(expit(epsilon))
    found = []
    for _ in range(4):
        inner, outer = source.random(5000) < rate, source.random(5000) >= rate
        found.append(epsilon_bound(rank_tests(inner.astype(float), outer.astype(float)), 0.0).value)
    assert 0.88 * epsilon < np.mean(found) < epsilon


def test_neither_order_nor_a_seed_changes_anything() -> None:
    source = np.random.default_rng(2)
    inner, outer = np.round(source.normal(0.4, size=200)), np.round(source.normal(size=170))
    there = rank_tests(inner, outer)
    assert rank_tests(source.permutation(inner), source.permutation(outer)) == there
    assert rank_tests(np.where(inner == 0, -0.0, inner), outer) == there


def test_scores_that_are_all_equal_show_nothing() -> None:
    """Coins drawn from a digest of these scores gave bounds up to 0.46, the same every time."""
    for models in (2, 3, 36, 47, 65, 70, 75):
        for score in (0.0, 1.0):
            tests = rank_tests(np.full(models, score), np.full(models, score))
            assert claim_p_value(tests, ApproximateDp(epsilon=0.0, delta=0.0)) > ALPHA


def test_ties_cannot_be_steered_by_other_units_of_the_scores() -> None:
    source = np.random.default_rng(0)
    inner, outer = (1.0 * (source.random(50) < 0.5) for _ in range(2))
    counts = {tuple(test.beyond for test in rank_tests(inner * unit, outer * unit)) for unit in range(1, 50)}
    assert len(counts) == 1


@pytest.mark.parametrize("seed", range(40))
def test_so_many_lie_beyond_in_nearly_all_orders_of_equal_scores(seed: int) -> None:
    source = np.random.default_rng(seed)
    inner, outer = (source.integers(0, 3, source.integers(2, 40)) * 1.0 for _ in range(2))
    for test in rank_tests(inner, outer):
        ranked, counted = (outer, inner) if test.from_without else (-inner, -outer)
        cut = test.threshold if test.from_without else -test.threshold
        same, others = int((ranked == cut).sum()), int((counted == cut).sum())
        before = test.rank - int((ranked > cut).sum())
        surely = int((counted > cut).sum())
        found = [0] if others == 0 else np.arange(others + 1)
        law = nhypergeom(same + others, others, before + 1)
        assert test.beyond == surely + max(k for k in found if k == 0 or law.sf(k - 1) >= CERTAIN - 1e-9)


def test_both_directions_mirror_each_other() -> None:
    source = np.random.default_rng(5)
    inner, outer = source.normal(0.8, size=250), source.normal(size=250)
    assert epsilon_bound(rank_tests(inner, outer), 1e-5).value == pytest.approx(
        epsilon_bound(rank_tests(-outer, -inner), 1e-5).value
    )
    assert {test.from_without for test in rank_tests(inner, outer)} == {True, False}


@pytest.mark.parametrize("models", [2, 3, 7, 20, 50, 500, 100_000])
def test_ranks_depend_on_the_number_of_models_alone(models: int) -> None:
    chosen = ranks(models)
    assert sum(share for _, share in chosen) == pytest.approx(0.5)
    assert all(0 <= rank < models for rank, _ in chosen)


@pytest.mark.parametrize("seed", range(3))
def test_p_value_and_bound_agree(seed: int) -> None:
    source = np.random.default_rng(seed)
    tests = rank_tests(source.normal(1, size=200), source.normal(size=200))
    bound = epsilon_bound(tests, 1e-5).value
    assert bound > 0
    for shift, above in ((-0.01, False), (0.0, None), (0.01, True)):
        found = claim_p_value(tests, ApproximateDp(epsilon=bound + shift, delta=1e-5))
        assert found == pytest.approx(ALPHA, rel=1e-4) if above is None else (found > ALPHA) is above
    mu = mu_bound(tests).value
    assert claim_p_value(tests, GaussianDp(mu=mu)) == pytest.approx(ALPHA, rel=1e-4)


def test_two_models_a_side_are_enough_to_say_nothing() -> None:
    assert epsilon_bound(rank_tests(np.array([1.0, 2.0]), np.array([0.0, -1.0])), 0.0).value == 0
    with pytest.raises(ValueError, match="1 scores with"):
        rank_tests(np.array([1.0]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="without the record hold NaN"):
        rank_tests(np.array([1.0, 2.0]), np.array([0.0, math.nan]))
    with pytest.raises(ValueError, match="delta is 1"):
        epsilon_bound(rank_tests(np.ones(2), np.zeros(2)), 1.0)


def test_delta_can_swallow_everything() -> None:
    tests = rank_tests(np.ones(100), np.zeros(100))
    assert epsilon_bound(tests, 0.0).value > 3
    assert epsilon_bound(tests, 0.999).value == 0


def test_shares_of_alpha_must_not_exceed_it() -> None:
    with pytest.raises(ValueError, match="shares"):
        epsilon_bound((rank_test(5, 100, 90, 100), rank_test(5, 100, 90, 100)), 0.0)


def test_a_hundred_thousand_models_are_no_more_steps_than_a_thousand() -> None:
    def bound(models: int) -> float:
        source = np.random.default_rng(0)
        scores = source.laplace(scale=0.5, size=(2, models))
        return epsilon_bound(rank_tests(scores[0] + 1, scores[1]), 1e-5).value

    assert 1.6 < bound(100_000) < 2
    assert calls(partial(bound, 100_000)) < 1.5 * calls(partial(bound, 1_000))
    assert memory(partial(bound, 100_000)) < 100_000 * 200
