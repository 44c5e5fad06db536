"""The book: every row comes out as it says, each proved one has a neighbour that is refuted, a wrong row is noticed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from privctl.accounting.buffered import BufferedMatrix, sensitivity
from privctl.domain.errors import CommandError
from privctl.domain.verdict import Outcome
from tests.few import few
from verify.papers import PAPERS, correlated, dp_weights, dp_weights_composition, dp_weights_proof, load_paper, poster
from verify.papers.book import chosen_papers, run, unchecked_statements, unexpected_rows
from verify.papers.claim import JudgedClaim, PublishedClaim, judge
from verify.papers.judging import agrees, judge_event, judge_gaussian
from verify.papers.sampling import judge_sampled
from verify.prove.enclosures import composition, gaussian, information, maxima, sampled
from verify.prove.enclosures.enclosure import ball, enclose
from verify.prove.enclosures.mixture import mixture_divergence
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover
from verify.prove.theorem import SolverFinding

CLAIMS = [(name, claim) for name in PAPERS for claim in load_paper(name).claims]

#: All but those that take longest; ``tests/cli/test_claims.py`` has a quick test of the first.
QUICK = [
    place
    for place, (_, claim) in enumerate(CLAIMS)
    if claim.key not in ("poster-central-limit", "dpq-negligible", "dpq-aggregate")
]

#: Key -> numbers that must stand in the row, from the papers or from code that is not ours.
NUMBERS = {
    "dpw-convex-1": ["0.0728298432464"],
    "dpw-convex-0.01": ["0.0493205935953", "0.24369811", "0.239252357", "0.0020412270"],
    "dpw-nonconvex-1": ["306.229454833", "2499/12500"],
    "dpw-l2": ["11155"],
    "dpw-mean-loss": ["0.286208211"],
    "dpw-classical": ["1.902163"],
    "dpw-classical-8": ["6.5095"],
    "dpw-series": ["-0.649766", "-168.513", "-11696.5"],
    "dpw-script": ["says sat", "for the negation sat"],
    "dpw-1000-formula": ["191.941036488", "1.001e-5"],
    "dpw-1000-releases": ["613.5312", "1910.22286495", "654.058193748", "1000 by adding"],
    "dpw-1000-gaussians": ["44.903738268"],
    "ferret-budget": ["0.072134752"],
    "ferret-table-3": ["6.9314718056"],
    "ferret-dp": ["0.50121107"],
    "ferret-1-nat": ["0.693147181", "0.903622508"],
    "ferret-half-nat": ["0.903622508"],
    "hush-fano": ["0.366593004807"],
    "hush-success": ["0.841345", "0.627031", "0.754197", "0.504772", "0.951811", "0.749594", "0.943943", "0.525969"],
    "hush-tight": ["0.01274"],
    "hush-pairwise": ["2 nats", "0.5 for"],
    "dpq-all-data": ["105.87"],
    "dpq-one-measurement": ["9.997256146"],
    "poster-naive": ["52.9880253"],
    "poster-moments": ["52.988025"],
    "poster-central-limit": ["1.358992"],
    "tree-levels": ["1.64865884"],
    "batch-shuffled": ["10.994"],
    "batch-passes": ["17.856586"],
    "batch-replaced": ["9.997256146"],
    "search-price": ["4.107"],
    "search-for-nothing": ["13.957"],
    "dgauss-as-continuous": ["0.509861660", "0.893285354"],
    "kary-four": ["1.09861"],
    "zcdp-epsilon": ["1.91619"],
    "zcdp-root": ["1.76005714951"],
}


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with Prover() as prover:
        yield prover


@pytest.mark.parametrize(("paper", "claim"), few(CLAIMS, *QUICK), ids=lambda each: getattr(each, "key", each))
def test_a_row_comes_out_as_the_book_says(prover: Prover, paper: str, claim: PublishedClaim) -> None:
    (row,) = judge(paper, [claim], prover)
    found = row.judgement
    assert found.outcome is claim.expected, found.reason
    assert found.reason
    text = row.verdict.reason
    assert [number for number in NUMBERS.get(claim.key, []) if number not in text] == []
    if found.outcome is Outcome.REFUTED:
        assert found.witness, "a refutation comes with something to check"
    assert all(proof.finding is not SolverFinding.VACUOUS for proof in row.proofs)


def test_the_book_is_whole() -> None:
    keys = [claim.key for _, claim in CLAIMS]
    assert len(keys) == len(set(keys)) >= 40
    assert set(NUMBERS) <= set(keys)
    assert {claim.expected for _, claim in CLAIMS} == {Outcome.PROVED, Outcome.REFUTED, Outcome.CONSISTENT}
    assert all(verdict.reason for verdict in unchecked_statements(list(PAPERS)))
    assert chosen_papers(("poster", "dp-weights")) == ("dp-weights", "poster")
    with pytest.raises(CommandError, match="not in the book"):
        chosen_papers(("dp-weight",))


def test_a_paper_is_judged_without_a_surprise(prover: Prover) -> None:
    rows = list(run(["ferret"], prover))
    assert len(rows) == 9
    assert unexpected_rows(rows) == []


def test_a_row_that_comes_out_otherwise_is_a_surprise(prover: Prover) -> None:
    (row,) = judge("it", [replace(CLAIMS[0][1], expected=Outcome.REFUTED)], prover)
    assert unexpected_rows([row]) == [row]


def test_a_solver_without_time_leaves_rows_undecided() -> None:
    claim = next(claim for _, claim in CLAIMS if claim.key == "dpw-script")
    with Prover(timeout=0.001) as hurried:
        (row,) = judge("it", [claim], hurried)
    assert isinstance(row, JudgedClaim)
    assert row.undecided
    assert unexpected_rows([row]) == []


def test_columns_of_buffers_and_nodes_of_trees_are_those_that_are_accounted_for() -> None:
    matrix = BufferedMatrix(first=1.0, weights=(0.5,), decays=(0.9,))
    assert float(correlated.shift_of_passes()) == pytest.approx(sensitivity(matrix, 8, 32) ** 2, rel=1e-9)
    assert [correlated.tree_shift(16, 4, restarts=each) for each in (True, False)] == [20, 44]  # as by hand
    assert correlated.tree_shift(16, 1, restarts=True) == 5


def test_an_accountant_lies_between_what_is_refuted_and_what_is_proved(prover: Prover) -> None:
    """dp_accounting's, of 50 steps of rate 0.08 and noise 1 on Poisson batches."""
    rows = {claim.key: claim.judge(prover) for name, claim in CLAIMS if claim.key in ("mf-plain-rate", "mf-amplified")}
    low, high = (float(rows[key].holds.split()[2]) for key in ("mf-plain-rate", "mf-amplified"))
    assert low < 4.158386739672941 < high


def test_the_price_of_a_search_by_loops_in_floats() -> None:
    """Theorem 2 of Papernot and Steinke 2022 with the divergences of Mironov, Talwar and Zhang 2019."""

    def divergence(a: int) -> float:
        terms = (math.comb(a, k) * 0.99 ** (a - k) * 0.01**k * math.exp(k * (k - 1) / 2) for k in range(a + 1))
        return 1000 * math.log(math.fsum(terms)) / (a - 1)

    orders = range(2, 30)
    chosen = min((1 - 1 / b) * divergence(b) + math.log(3) / b for b in orders)
    expected = min(
        divergence(a) + math.log(3) / (a - 1) + 2 * chosen + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1)
        for a in orders
    )
    found = sampled.best_of_geometric(1, Fraction(1, 100), 1000, 3, Fraction(1, 10**5))
    assert float(found.high) == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(3.35, abs=0.01)  # dp-accounting 0.6: 3.34, at its own orders


def test_an_event_that_tells_nothing_refutes_nothing(prover: Prover) -> None:
    event = maxima.all_below(3, 1, [(0, 10)], [(1, 10)])
    found = judge_event(prover, "it", "it", event, Fraction(1, 10**5), 1)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert not found.witness


# Beyond the boundary.


@pytest.mark.parametrize(
    ("squared", "delta", "holds", "fails"),
    [
        # The convex row's noise, a thousand Gaussians, a measurement, the poster's two formulas.
        ((Fraction(2, 10**4) / Fraction("0.00976052988025269")) ** 2, "1e-6", "0.072830", "0.072829"),
        (1000 * Fraction("0.1960665602139555") ** 2, "1.001e-5", "44.904", "44.903"),
        (Fraction(4), "1e-5", "9.9973", "9.9972"),
        (10 / Fraction("52.9880253") ** 2, "1e-5", "0.19413", "0.19412"),
        (10 / Fraction("169.619545") ** 2, "1e-5", "0.054266", "0.054265"),
    ],
)
def test_epsilon_is_the_boundary(prover: Prover, squared: Fraction, delta: str, holds: str, fails: str) -> None:
    for epsilon, outcome in ((holds, Outcome.PROVED), (fails, Outcome.REFUTED)):
        found = judge_gaussian(prover, "boundary", "it", Fraction(epsilon), Fraction(delta), squared)
        assert found.outcome is outcome
        assert bool(found.witness) is (outcome is Outcome.REFUTED)


@pytest.mark.slow
def test_moments_have_a_gap_and_two_sides(prover: Prover) -> None:
    noise = (Fraction("1.514"), Fraction(1, 100), 1000)
    outcomes = [
        judge_sampled(prover, "moments", "it", noise, Fraction(1, 10**5), Fraction(epsilon)).outcome
        for epsilon in ("1", "0.95", "0.85")
    ]
    assert outcomes == [Outcome.PROVED, Outcome.INCONCLUSIVE, Outcome.REFUTED]


def test_a_little_less_noise_spends_too_much_on_a_secret(prover: Prover) -> None:
    allowed = information.divergence(Fraction(1, 5), Fraction(1, 100))
    outcomes = []
    for noise in ("1.3780", "1.3779"):  # the boundary, by an integral in doubles, is 1.3779436045
        spent = mixture_divergence([Fraction(5, 1000)] * 10, Fraction(noise))
        term = NumericComparison(
            name="secret", statement="it", boxes={"s": spent, "a": allowed}, term="(- (* 500.0 s) a)", bound=Fraction(0)
        )
        outcomes.append(decide(prover, term)[0])
    assert outcomes == [Outcome.PROVED, Outcome.REFUTED]


def test_printed_numbers_are_compared_to_their_last_digit() -> None:
    found = composition.as_printed(dp_weights_composition.RELEASES)
    assert agrees("191.94103648752323", found)
    assert agrees("191.94", found)
    assert not agrees("191.96", found)
    assert not agrees("191.94103648754", found)
    assert not agrees("1.9e3", found)


# What the rows stand on.


@pytest.mark.parametrize(
    ("epochs", "batch", "epsilon", "stddev"),
    [
        (10, 5, "0.01", 0.0140316569058852),
        (10, 5, "1", 0.00976052988025269),
        (10, 5, "100", 0.00681450250261621),
        (1, 100, "1", 0.00976000264940126),
    ],
)
def test_the_published_noise(epochs: int, batch: int, epsilon: str, stddev: float) -> None:
    found = dp_weights.published_stddev(epochs, batch, Fraction(epsilon))
    assert float(found.low) == pytest.approx(stddev, rel=1e-14)


@pytest.mark.parametrize(("epochs", "batch"), [(10, 5), (1, 100), (2, 10)])
def test_the_worst_training_is_as_bad_as_any(epochs: int, batch: int) -> None:
    """Run step by step, it reaches the bound 2 eta C / B + 2 eta C (T - 1); so nothing smaller is one."""
    steps = epochs * 1000 // batch
    rate = Fraction(5, 10**5)
    assert dp_weights.nonconvex_shift(epochs, batch) == 2 * rate / batch + 2 * rate * (steps - 1)


@pytest.mark.parametrize(
    ("epochs", "batch", "epsilon", "true"),
    [(10, 5, "0.01", 168.363222082), (10, 100, "1", 4.96699854337), (1, 5, "1", 11.2703327539)],
)
def test_true_epsilons_of_any_model(epochs: int, batch: int, epsilon: str, true: float) -> None:
    noise = dp_weights.published_stddev(epochs, batch, Fraction(epsilon))
    squared = (dp_weights.nonconvex_shift(epochs, batch) / noise.low) ** 2
    assert float(gaussian.epsilon(Fraction(1, 10**6), squared, 12).high) == pytest.approx(true, rel=1e-10)


def test_the_series_of_the_published_script() -> None:
    assert float(dp_weights_proof.taylor_exp(Fraction(-9, 2))) == pytest.approx(-0.64977, abs=1e-5)
    assert float(dp_weights_proof.taylor_exp(Fraction(1), 30)) == pytest.approx(2.718281828459045)


@pytest.mark.slow
def test_the_poster_s_noise() -> None:
    assert float(poster.naive_multiplier().low) == pytest.approx(52.988025, abs=1e-6)
    assert float(poster.limit_multiplier().low) == pytest.approx(1.358992, abs=1e-6)
    upright, printed = (poster.advanced_multiplier(as_printed=each) for each in (False, True))
    # One times, the other over, the same factor.
    base = enclose(lambda: (2 * ball(2_500_000).log()).sqrt())
    assert float(upright.low * printed.low) == pytest.approx(float(base.low) ** 2)
