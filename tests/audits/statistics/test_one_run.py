import math
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import bdtrc, expit

from audits.statistics.f_dp import line, rejects
from audits.statistics.one_run import divide, epsilon_bound, guess, p_value
from tests.few import few
from tests.work import calls, memory


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "at_zero", "at_one", "bound"),
    [
        (100, 100, 80, 0, None, 0.07155625, 0.958392),
        (100, 100, 80, 1e-5, 5.045e-5, 0.07170153, 0.958086),
        (1000, 1000, 750, 1e-5, 6.953e-5, 0.0939862, 0.976367),
        (1000, 100, 95, 1e-5, 3.6064e-4, 6.6391e-4, 2.165176),
        (1000, 50, 50, 1e-5, None, None, 2.756219),
        (1000, 50, 50, 0, None, None, 2.784727),
        (5000, 1500, 1429, 0, None, None, 2.799196),
        (10000, 10000, 9000, 1e-6, None, None, 2.142044),
    ],
)
def test_known_numbers(
    m: int, r: int, v: int, delta: float, at_zero: float | None, at_one: float | None, bound: float
) -> None:
    if at_zero is not None:
        assert p_value(m, r, v, 0, delta) == pytest.approx(at_zero, rel=2e-4)
    if at_one is not None:
        assert p_value(m, r, v, 1, delta) == pytest.approx(at_one, rel=1e-5)
    assert epsilon_bound(m, r, v, delta) == pytest.approx(bound, abs=1e-6)


def theorem(m: int, r: int, v: int, q: Fraction, delta: Fraction) -> Fraction:
    """Theorem 5.2 in exact arithmetic, with no shortcut for the maximum."""
    tail = tails(r, q)
    steepest = max((Fraction(tail[v - i] - tail[v], i) for i in range(1, v + 1)), default=Fraction(0))
    return (tail[v] + 2 * m * delta * steepest) / q.denominator**r


@lru_cache
def tails(r: int, q: Fraction) -> list[int]:
    """P[at least k of r] for every k, in units of one over the denominator of ``q`` to the power r."""
    yes, no = q.numerator, q.denominator - q.numerator
    return list(accumulate(math.comb(r, k) * yes**k * no ** (r - k) for k in range(r, -1, -1)))[::-1]


@pytest.mark.parametrize("r", [1, 2, 7, 40])
@pytest.mark.parametrize("odds", [1, 2, 19])
def test_p_value_is_the_theorem_rounded_up(r: int, odds: int) -> None:
    q, delta = Fraction(odds, odds + 1), 0.001
    for v in range(r + 1):
        exact, alone = float(theorem(50, r, v, q, Fraction(delta))), Fraction(tails(r, q)[v], q.denominator**r)
        if alone > Fraction(1, 2):
            assert p_value(50, r, v, math.log(odds), delta) == 1
        else:
            assert min(1.0, exact) <= p_value(50, r, v, math.log(odds), delta) <= exact * (1 + 3e-9)


def worst(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The largest probability of ``v`` right guesses of ``r`` under (epsilon, delta)-DP, by a linear program.

    Averaging over coins and canaries changes neither side, so only the probabilities p of 0 to r right guesses matter:
    flipping one coin makes a right guess wrong, or a wrong one right.
    """
    grow, of_gain, of_loss = math.exp(epsilon), r + 1, 2 * r + 1
    limits = np.zeros((2 * r + 1, 3 * r + 1))
    for k in range(1, r + 1):  # k right guesses, against k - 1 with the other coin
        limits[k - 1, [k, k - 1, of_gain + k - 1]] = k, -grow * (r - k + 1), -1
    for k in range(r):
        limits[r + k, [k, k + 1, of_loss + k]] = r - k, -grow * (k + 1), -1
    limits[-1, r + 1 :] = 1
    one = np.append(np.ones(r + 1), np.zeros(2 * r))[None]
    aim = np.zeros(3 * r + 1)
    aim[v : r + 1] = -1
    found = linprog(aim, A_ub=limits, b_ub=np.append(np.zeros(2 * r), delta * m), A_eq=one, b_eq=[1], method="highs")
    return -float(found.fun)


@pytest.mark.parametrize(("m", "r", "epsilon"), [(10, 10, 0.0), (40, 12, 1.0), (30, 30, 0.5)])
@pytest.mark.parametrize("delta", [1e-4, 0.01])
def test_no_mechanism_is_right_more_often_than_a_test_allows(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(1, r + 1):
        most = worst(m, r, v, epsilon, delta)
        assert p_value(m, r, v, epsilon, delta) >= most * (1 - 1e-7)
        for alpha in (0.01, 0.05, 0.3):
            assert most <= alpha + 1e-7 or not rejects(m, r, v, line(epsilon, delta), alpha)


@pytest.mark.parametrize(("m", "r", "v"), [(60, 60, 45), (60, 20, 20), (90, 50, 40)])
@pytest.mark.parametrize("delta", few([0.0, 1e-4], 1))
def test_the_bound_is_rejected_in_exact_arithmetic(m: int, r: int, v: int, delta: float) -> None:
    found = epsilon_bound(m, r, v, delta)
    # The exact rational of a success probability just above: a larger one is harder to reject.
    q = Fraction(float(expit(found))) + Fraction(1, 10**16)
    assert found > 0
    assert theorem(m, r, v, q, Fraction(delta)) < Fraction(1, 20)
    above = Fraction(float(expit(found + 1e-6)))
    assert theorem(m, r, v, above, Fraction(delta)) > Fraction(1, 20)


@pytest.mark.parametrize("m", [50, 1000, 100_000])
def test_ceiling_without_delta_is_a_formula(m: int) -> None:
    root = 0.05 ** (1 / m)
    assert epsilon_bound(m, m, m, 0) == pytest.approx(math.log(root / (1 - root)), abs=1e-6)


@pytest.mark.parametrize(("m", "bound"), [(20_000, 0.450083), (100_000, 0.427055)])
def test_chances_too_small_for_a_float_are_not_the_largest(m: int, bound: float) -> None:
    """Of so many right guesses, chances a little below are rounded to 0, and delta alone allows about 2 percent."""
    assert p_value(m, m, m, 0.1, 0.01) == pytest.approx(2 * 0.01 * (1 + math.exp(0.1)), rel=0.03)
    assert epsilon_bound(m, m, m, 0.01) == pytest.approx(bound, abs=1e-6)


def test_delta_lowers_the_ceiling() -> None:
    assert epsilon_bound(1000, 1000, 1000, 1e-5) == pytest.approx(5.782, abs=5e-4)
    assert epsilon_bound(10_000, 10_000, 10_000, 1e-5) == pytest.approx(7.834, abs=5e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
def test_bounds_are_monotone(delta: float) -> None:
    by_correct = [epsilon_bound(300, 100, v, delta) for v in range(101)]
    assert by_correct == sorted(by_correct)
    assert epsilon_bound(300, 100, 90, delta, 0.01) <= epsilon_bound(300, 100, 90, delta, 0.05)
    assert epsilon_bound(600, 100, 90, delta) <= epsilon_bound(300, 100, 90, delta)


def test_many_canaries_take_few_steps() -> None:
    assert epsilon_bound(100_000, 100_000, 75_000, 1e-6) == pytest.approx(1.08655, abs=1e-5)
    assert calls(lambda: epsilon_bound(100_000, 100_000, 75_000, 1e-6)) < 10_000
    assert memory(lambda: epsilon_bound(100_000, 100_000, 75_000, 1e-6)) < 10_000_000


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((10, 11, 5, 0.0), "11 guesses on 10"),
        ((10, 5, 6, 0.0), "6 right of 5"),
        ((10, 5, 5, 1.0), "delta is 1"),
        ((10, 5, 5, 0.0, 0.6), "alpha is 0.6"),
    ],
)
def test_impossible_counts(arguments: tuple[float, ...], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        epsilon_bound(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epsilon is nan"):
        p_value(10, 5, 5, math.nan, 0)


def exceeding(r: int, epsilon: float, delta: float, used_alpha: float, m: int | None = None) -> float:
    """The exact chance that guessing by randomized response gives a bound above its own epsilon."""
    least = next((v for v in range(r + 1) if epsilon_bound(m or r, r, v, delta, used_alpha) > epsilon), None)
    return 0.0 if least is None else float(bdtrc(least - 1, r, expit(epsilon)))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_randomized_response_is_exceeded_at_most_alpha_of_the_time(epsilon: float) -> None:
    right = exceeding(120, epsilon, 0, 0.05)
    assert 0.02 < right <= 0.05
    assert exceeding(120, epsilon, 0, 0.1) > 0.05  # twice the alpha shows


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_randomized_response_is_nearly_reached(epsilon: float) -> None:
    expected = round(20_000 * float(expit(epsilon)))
    assert 0.93 * epsilon < epsilon_bound(20_000, 20_000, expected, 0) < epsilon


@pytest.mark.parametrize(("counted", "caught"), [(0.1, False), (0.0, True)])
def test_a_mechanism_that_shows_all_with_probability_delta(counted: float, caught: bool) -> None:
    # (0, 0.1)-DP: with chance 0.1 every coin is published. Leaving delta out rejects it too often.
    wrongly_rejected = 0.1 * (p_value(30, 30, 30, 0, counted) < 0.05)
    assert (wrongly_rejected > 0.05) == caught


def test_guesses_are_the_extremes() -> None:
    scores = np.array([0.3, -1.0, 5.0, 2.0, 0.0])
    assert guess(scores, 2, 1).tolist() == [0, -1, 1, 1, 0]
    assert guess(scores, 5, 0).tolist() == [1] * 5
    assert guess(scores, 0, 5).tolist() == [-1] * 5
    assert guess(scores, 2, 3).tolist() == [-1, -1, 1, 1, -1]
    with pytest.raises(ValueError, match="3 and 3 guesses do not fit 5"):
        guess(scores, 3, 3)
    with pytest.raises(ValueError, match="NaN"):
        guess(np.array([0.0, math.nan]), 1, 0)


def test_ties_across_a_cut_are_not_guessed() -> None:
    assert guess(np.array([1.0, 1.0, 1.0, 0.0]), 2, 1).tolist() == [0, 0, 0, -1]
    assert guess(np.array([2.0, 1.0, 1.0, 0.0]), 2, 2).tolist() == [1, 0, 0, -1]


def by_position(scores: np.ndarray, k_plus: int, k_minus: int) -> np.ndarray:
    """Wrong: an unstated rule, the order of the array, decides between ties."""
    order = np.argsort(-scores, kind="stable")
    guesses = np.zeros(len(scores), np.int8)
    guesses[order[:k_plus]] = 1
    guesses[order[len(scores) - k_minus :]] = -1
    return guesses


@pytest.mark.parametrize(("rule", "caught"), [(guess, False), (by_position, True)])
def test_constant_scores_of_canaries_listed_members_first(rule, caught: bool) -> None:  # type: ignore[no-untyped-def]
    coins = np.repeat([1, -1], 100)
    correct = int((rule(np.zeros(200), 100, 100) == coins).sum())
    assert (epsilon_bound(200, 200, correct, 0) > 0) == caught


def test_dividing_finds_any_number_of_included_ones() -> None:
    source = np.random.default_rng(4)
    for _ in range(50):
        coins = np.where(source.random(101) < 0.5, 1, -1)
        assert (divide(coins + source.normal(size=101) / 50) == coins).all()
    assert divide(np.zeros(9)).tolist() == [0] * 9
    assert divide(np.array([0.0, 0, 0, 0, 1, 2])).tolist() == [-1, -1, -1, -1, 1, 1]
    assert divide(np.zeros(1)).tolist() == [0]
    outlier = np.concatenate([source.normal(size=400), source.normal(size=400) + 1, [1e9]])
    assert abs(int((divide(outlier) == 1).sum()) - 400) <= 60, "one far score does not move the cut"
    with pytest.raises(ValueError, match="NaN"):
        divide(np.array([0.0, math.nan]))
