"""Many secrets at once: against reference numbers, 50-digit integrals and the accounting of one secret at a time."""

import math
from collections.abc import Sequence
from itertools import pairwise as neighbours

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from privctl.accounting.mixtures import kl, replace_kl
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.accounting.secrets import (
    batched as many_secrets,
)
from privctl.accounting.secrets import (
    count_laws as many_laws,
)
from privctl.accounting.secrets import (
    divergences as many_divergences,
)
from privctl.accounting.secrets.batched import informations, least_noise
from privctl.accounting.secrets.count_laws import law_blocks
from privctl.accounting.secrets.fano import binary_kl, noise_multiplier_for
from tests.accounting.integrals import gaussian_integral
from tests.few import few

Book = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]

# (probabilities, sigma, KL(MoG || N), replace KL), as in test_mixtures: mpmath, 12 digits.
TABLE = [
    ([0.01], 1, 8.38122076508e-05, 0.00022841130623),
    ([0.1] * 3, 1, 0.0623886341498, 0.15328601168),
    ([0.005] * 8, 0.5, 0.0150818087223, 0.0248252935698),
    ([0.02, 0.05, 0.1, 0.2], 0.8, 0.158499178449, 0.331068229719),
    ([0.001] * 50, 1, 0.00206370743118, 0.00540759600482),
    ([0.001] * 75, 0.3, 0.2330207931, 0.286787688266),
    ([0.3] * 10, 5, 0.181674018239, 0.665810516342),
    ([0.005 * (i % 7 + 1) for i in range(60)], 2, 0.188989642879, 0.55315584987),
    ([1], 1, 0.5, 2),
    ([1, 1], 2, 0.5, 2),
    ([0.01] * 100, 4, 0.0321855320367, 0.118042378801),
    ([1e-3], 1, 8.56846240975e-07, 2.34300610657e-06),
    ([1e-4], 0.7, 3.34134725726e-08, 7.54551992171e-08),
]
# (probabilities, steps, prior, posterior, noise multiplier)
CALIBRATED = [
    ([0.01], 1000, 0.001, 0.1, 0.6643833650),
    ([0.001] * 50, 2000, 0.001, 0.1, 2.7027260282),
    ([0.001] * 75, 2000, 0.001, 0.5, 1.5783170245),
    ([0.005] * 10, 500, 0.01, 0.2, 1.3779436045),
]


def book(secrets: Sequence[Sequence[float]]) -> Book:
    """A book whose secrets share no record."""
    starts = np.cumsum([0, *map(len, secrets)])
    return starts, np.arange(starts[-1]), np.array([p for secret in secrets for p in secret], np.float64)


def drawn_book(secrets: int, records: int, seed: int) -> tuple[Book, NDArray[np.float64]]:
    """Secrets in 50 to 100 records of lognormal probabilities, with budgets."""
    random = np.random.default_rng(seed)
    sizes = random.integers(50, 101, secrets)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    inside = np.concatenate([random.choice(records, size, replace=False) for size in sizes])
    probabilities = np.minimum(random.lognormal(-7, 1, records), 1) * (random.random(records) < 0.8)
    budgets = np.array([binary_kl(p, 1e-3) for p in random.uniform(0.01, 0.5, secrets)])
    return (starts, inside, probabilities), budgets


def of_secret(case: Book, place: int) -> NDArray[np.float64]:
    starts, records, probabilities = case
    return probabilities[records[starts[place] : starts[place + 1]]]


def exact(probabilities: Sequence[float], sigma: float, *, pairwise: bool) -> mpmath.mpf:
    """The divergence by a 50-digit integral."""
    law = [mpmath.mpf(1)]
    for p in map(mpmath.mpf, probabilities):
        law = [(1 - p) * a + p * b for a, b in zip([*law, 0], [0, *law], strict=True)]
    s, top = mpmath.mpf(sigma), len(law) - 1

    def density(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.fsum(w * mpmath.npdf(x, k, s) for k, w in enumerate(law))

    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        other = density(-x) if pairwise else mpmath.npdf(x, 0, s)
        return density(x) * mpmath.log(density(x) / other)

    return gaussian_integral(integrand, top, sigma)


@pytest.mark.parametrize("pairwise", [False, True])
def test_reference_table_all_at_once(pairwise: bool) -> None:
    case = book([probabilities for probabilities, *_ in TABLE])
    for sigma in {row[1] for row in TABLE}:
        found = informations(*case, sigma, 1, pairwise=pairwise)
        for index, (_, of_row, forward, replace) in enumerate(TABLE):
            if of_row == sigma:
                assert found[index] == pytest.approx(replace if pairwise else forward, rel=1.2e-11)


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize(
    "sigma", [0.8, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.06, 0.1, 0.25, 3.0, 40.0))]
)
def test_never_below_and_hardly_above_50_digits(sigma: float, pairwise: bool) -> None:
    secrets = [[0.1, 0.02], [1e-12], [0.9, 0.3]]
    found = informations(*book(secrets), sigma, 1, pairwise=pairwise)
    with mpmath.workdps(50):
        for value, probabilities in zip(found, secrets, strict=True):
            assert 0 <= mpmath.mpf(value) / exact(probabilities, sigma, pairwise=pairwise) - 1 < 1e-11


def test_a_grid_too_wide_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = book([[0.001] * 75])
    plain = many_divergences._widest_spacing
    for factor, holds in ((1, True), (4, False)):
        monkeypatch.setattr(many_divergences, "_widest_spacing", lambda end, sigma, by=factor: by * plain(end, sigma))
        errors = [
            informations(*case, sigma, 1)[0] / kl(poisson_binomial(case[2]), sigma) - 1 for sigma in (0.3, 1.0, 2.0)
        ]
        assert all(0 <= error < 1e-11 for error in errors) == holds


@pytest.mark.parametrize("pairwise", few([False, True], 1))
@pytest.mark.parametrize(
    "sigma",
    [1e-120, *(pytest.param(sigma, marks=pytest.mark.slow) for sigma in (0.003, 0.06, 0.1, 1.0, 10.0)), 0.3, 1e4],
)
def test_as_one_at_a_time(sigma: float, pairwise: bool) -> None:
    random = np.random.default_rng(5)
    secrets = [random.uniform(0, 10 ** random.uniform(-6, -1), random.integers(1, 200)).tolist() for _ in range(40)]
    secrets += [[1.0, 1.0, 0.3], [0.0, 1e-9], [1e-30] * 3, [1e-140] * 2, [0.5] * 40, [1.0] * 60]
    divergence = replace_kl if pairwise else kl
    found = informations(*book(secrets), sigma, 7, pairwise=pairwise)
    for value, probabilities in zip(found, secrets, strict=True):
        expected = 7 * divergence(poisson_binomial(probabilities), sigma)
        # That one has margins of its own, which grow with k / sigma.
        assert value == pytest.approx(expected, rel=6e-12 + 1e-15 * min(len(probabilities) / sigma, 1e6), abs=1e-298)


def test_secrets_that_are_never_drawn_and_none_at_all() -> None:
    starts = np.array([0, 2, 2, 3])
    steps_advanced: list[float] = []
    found = informations(starts, np.array([0, 1, 2]), np.array([0.0, 0.0, 0.5]), 1.0, 3, advance=steps_advanced.append)
    assert sum(steps_advanced) == 3
    assert found[:2].tolist() == [0, 0]
    assert found[2] > 0
    assert informations(np.array([0]), np.array([], np.int64), np.array([0.5]), 1.0, 3).tolist() == []


def test_order_and_company_do_not_matter() -> None:
    (starts, records, probabilities), _ = drawn_book(300, 2000, 1)
    found = informations(starts, records, probabilities, 0.8, 100)
    for place in (0, 17, 299):
        alone = informations(np.array([0, starts[place + 1] - starts[place]]),
                             records[starts[place] : starts[place + 1]], probabilities, 0.8, 100)  # fmt: skip
        assert alone[0] == pytest.approx(found[place], rel=1e-11)
    steps_advanced: list[float] = []
    informations(starts, records, probabilities, 0.8, 100, advance=steps_advanced.append)
    assert sum(steps_advanced) == 300


def test_slabs_only_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case, budgets = drawn_book(200, 2000, 2)
    whole, plan = informations(*case, 0.8, 100), least_noise(*case, budgets, 100)
    monkeypatch.setattr(many_laws, "_SLAB_SIZE", 1000)
    monkeypatch.setattr(many_laws, "_TREE", 500)
    assert informations(*case, 0.8, 100) == pytest.approx(whole, rel=1e-11)
    assert least_noise(*case, budgets, 100).noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-11)


@pytest.mark.parametrize("pairwise", [False, True])
def test_less_noise_never_leaks_less_and_the_mean_bounds_from_below(pairwise: bool) -> None:
    case, _ = drawn_book(60, 500, 3)
    means = many_laws.means_of(*case)
    sigmas = [0.02, 0.049, 0.051, 0.0699, 0.0701, 0.1, 0.3, 1, 3, 30, 300]
    found = [informations(*case, sigma, 1, pairwise=pairwise) for sigma in sigmas]
    assert all((later <= earlier * (1 + 1e-11)).all() for earlier, later in neighbours(found))
    for sigma, values in zip(sigmas, found, strict=True):
        assert (values >= (means / sigma) ** 2 / 2).all()


def test_a_tail_that_is_cut_is_made_good() -> None:
    values = np.full((60, 1), 0.03)
    full = kl(poisson_binomial([0.03] * 60), 2.0)

    def cut(*, forgotten: bool) -> float:
        weights = many_laws._products(values, 4)
        ratios = np.zeros(1) if forgotten else weights[-1] / weights[-2]
        block = many_laws.LawBlock(
            places=np.zeros(1, np.int64),
            weights=weights / weights.sum(),
            means=values.sum(axis=0),
            most=np.array([60]),
            tail_ratios=ratios,
        )
        return float(many_divergences.divergences(block, 2.0)[0])

    assert cut(forgotten=False) >= full
    assert cut(forgotten=True) < full


def test_blocks_have_the_laws_of_one_at_a_time() -> None:
    case, _ = drawn_book(100, 800, 4)
    blocks = []
    for block in law_blocks(*case):
        for column, place in enumerate(block.places):
            law, expected = block.law(column), poisson_binomial(of_secret(case, place))
            many = min(len(law.weights), len(expected.weights))
            assert law.weights[:many] == pytest.approx(expected.weights[:many], rel=1e-12)
            assert law.most == np.count_nonzero(of_secret(case, place))
            assert block.tail_squares[column] < 1e-13 * block.means[column] ** 2
            blocks.append(place)
    assert sorted(blocks) == list(range(100))


def test_averaging_like_probabilities_never_lowers_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    for sigma in (0.3, 1, 5):
        assert kl(poisson_binomial([0.2, 0.2]), sigma) > kl(poisson_binomial([0.1, 0.3]), sigma)
        assert kl(poisson_binomial([0.2, 0.2, 0.6]), sigma) > kl(poisson_binomial([0.05, 0.35, 0.6]), sigma)
    probabilities = np.random.default_rng(6).lognormal(-9, 1, 20_000)
    case = (np.array([0, 20_000]), np.arange(20_000), probabilities)
    plain = informations(*case, 0.7, 1)[0]
    monkeypatch.setattr(many_laws, "_LONG", 0)
    averaged = informations(*case, 0.7, 1)[0]
    assert plain * (1 - 1e-11) <= averaged <= plain * (1 + 1e-9)
    monkeypatch.setattr(many_laws, "_LEVELS", 1)
    assert informations(*case, 0.7, 1)[0] > plain * (1 + 1e-6)  # coarser levels cost more, on the safe side


@pytest.mark.parametrize("pairwise", few([False, True], 0))
def test_secrets_in_every_record(pairwise: bool) -> None:
    starts, records = np.array([0, 200_000, 200_010, 210_010]), np.arange(200_000)
    records = np.concatenate([records, np.arange(10), np.arange(10_000)])
    probabilities = np.full(200_000, 256 / 200_000)
    found = informations(starts, records, probabilities, 1000, 10, pairwise=pairwise)
    # Almost all of it is the mean's.
    assert found[0] == pytest.approx((4 if pairwise else 1) * 10 * 256**2 / 2e6, rel=1e-3)
    plan = least_noise(starts, records, probabilities, np.full(3, 0.1), 10, pairwise=pairwise)
    assert plan.binding == 0
    assert 0.9999999999 < plan.worst_ratio <= 1


@pytest.mark.parametrize(("probabilities", "steps", "prior", "target", "sigma"), CALIBRATED)
def test_the_least_noise_meets_the_budget_and_less_does_not(
    probabilities: list[float], steps: int, prior: float, target: float, sigma: float
) -> None:
    budget = np.array([binary_kl(target, prior)])
    found = least_noise(*book([probabilities]), budget, steps)
    assert found.noise_multiplier == pytest.approx(sigma, abs=1e-10)
    for factor, kept in ((1.0, True), (1 - 1e-10, False), (0.5, False)):
        spent = informations(*book([probabilities]), found.noise_multiplier * factor, steps)
        assert (spent <= budget).all() == kept


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("steps", few([1, 50, 10_000], 0, 2))
def test_least_noise_keeps_every_secret_and_no_more(steps: int, pairwise: bool) -> None:
    case, budgets = drawn_book(400, 3000, 7)
    found = least_noise(*case, budgets, steps, pairwise=pairwise)
    assert (found.informations <= budgets).all()
    assert found.informations[found.binding] == pytest.approx(found.worst_ratio * budgets[found.binding], rel=1e-14)
    # One at a time, every secret is kept by it, and the one that binds by nothing less.
    divergence = replace_kl if pairwise else kl
    for place in range(0, 400, 7):
        law = poisson_binomial(of_secret(case, place))
        assert steps * divergence(law, found.noise_multiplier) <= budgets[place]
    law = poisson_binomial(of_secret(case, found.binding))
    assert steps * divergence(law, found.noise_multiplier * (1 - 1e-10)) > budgets[found.binding]
    # Half the noise keeps not even that.
    assert (informations(*case, found.noise_multiplier / 2, steps, pairwise=pairwise) > budgets).any()


def test_least_noise_is_the_largest_of_one_at_a_time() -> None:
    random = np.random.default_rng(8)
    secrets = [random.uniform(0, 0.05, random.integers(1, 30)).tolist() for _ in range(20)]
    targets = random.uniform(0.01, 0.5, 20)
    budgets = np.array([binary_kl(p, 1e-3) for p in targets])
    alone = [noise_multiplier_for(s, 300, 1e-3, p) for s, p in zip(secrets, targets, strict=True)]
    found = least_noise(*book(secrets), budgets, 300)
    assert found.noise_multiplier == pytest.approx(max(alone), rel=1e-10)
    assert found.binding == int(np.argmax(alone))


def test_a_screen_that_misses_the_binding_secret_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    case, budgets = drawn_book(200, 2000, 9)
    right = least_noise(*case, budgets, 100)
    plain, rounds = many_secrets._highest, []

    def misleading(scores: NDArray[np.float64], eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
        rounds.append(int(eligible.sum()))
        return plain(-scores if len(rounds) == 1 else scores, eligible)  # at first the lowest instead of the highest

    monkeypatch.setattr(many_secrets, "_SCREENED", 10)

    monkeypatch.setattr(many_secrets, "_highest", misleading)
    found = least_noise(*case, budgets, 100)
    assert len(rounds) > 1
    assert found.noise_multiplier == pytest.approx(right.noise_multiplier, rel=1e-10)
    assert found.binding == right.binding
    assert (found.informations <= budgets).all()


def test_noise_for_all_but_the_heaviest_secret_breaks_its_budget() -> None:
    case, budgets = drawn_book(200, 2000, 9)
    right = least_noise(*case, budgets, 100)
    others = budgets.copy()
    others[right.binding] = 1e9
    found = least_noise(*case, others, 100)
    assert found.noise_multiplier < right.noise_multiplier
    assert np.flatnonzero(informations(*case, found.noise_multiplier, 100) > budgets)[0] == right.binding


def test_bounds_that_jump_still_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the check is coarser than the search, the search stays further below its budgets."""
    case, budgets = drawn_book(100, 1000, 10)
    right = least_noise(*case, budgets, 100)
    plain = many_divergences.divergences

    def jumping(block: many_laws.LawBlock, sigma: float, *, pairwise: bool) -> NDArray[np.float64]:
        return plain(block, sigma, pairwise=pairwise) * (1 + 1e-6 * (len(block.places) > 20))

    monkeypatch.setattr(many_secrets, "_SCREENED", 5)
    monkeypatch.setattr(many_secrets, "divergences", jumping)
    found = least_noise(*case, budgets, 100)
    assert (found.informations <= budgets).all()
    assert right.noise_multiplier < found.noise_multiplier < right.noise_multiplier * (1 + 2e-6)


@pytest.mark.parametrize(
    ("probabilities", "budgets", "steps", "named"),
    [
        ([0.1, 1.5], [1.0, 1.0], 1, "probability 1 is 1.5"),
        ([-0.1, 0.5], [1.0, 1.0], 1, "probability 0"),
        ([math.nan, 0.5], [1.0, 1.0], 1, "probability 0"),
        ([0.1, 0.5], [1.0, 0.0], 1, "budget 1 is 0.0"),
        ([0.1, 0.5], [-1.0, 1.0], 1, "budget 0"),
        ([0.1, 0.5], [1.0, math.nan], 1, "budget 1"),
        ([0.1, 0.5], [1.0, math.inf], 1, "budget 1"),
        ([0.1, 0.5], [1.0], 1, "budgets has 1 entries for 2 secrets"),
        ([0.0, 0.0], [1.0, 1.0], 1, "all 0"),
        ([0.1, 0.5], [1.0, 1.0], 0, "steps"),
        ([1.0, 0.5], [1e-10, 1.0], 10**305, "no noise multiplier"),
    ],
)
def test_out_of_range(probabilities: list[float], budgets: list[float], steps: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        least_noise(np.array([0, 1, 2]), np.array([0, 1]), np.array(probabilities), np.array(budgets), steps)


@pytest.mark.parametrize(
    ("starts", "records", "named"),
    [([0, 2], [0, 5], "records"), ([0, 2], [-1, 0], "records"), ([0, 1], [0, 1], "starts"), ([], [], "starts"),
     ([0, 2, 1, 2], [0, 1], "starts")],
)  # fmt: skip
def test_books_that_contradict_themselves(starts: list[int], records: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        informations(np.array(starts, np.int64), np.array(records, np.int64), np.array([0.1, 0.2]), 1.0, 1)


@pytest.mark.slow
def test_a_hundred_thousand_secrets_in_bounded_memory() -> None:
    import tracemalloc

    random = np.random.default_rng(11)
    sizes = random.integers(50, 101, 100_000)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    records = random.integers(0, 1_000_000, starts[-1])
    probabilities = np.minimum(random.lognormal(-8, 1, 1_000_000), 1)
    tracemalloc.start()
    found = least_noise(starts, records, probabilities, random.uniform(0.05, 2, 100_000), 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.9999999999 < found.worst_ratio <= 1
    assert peak < 200 << 20
