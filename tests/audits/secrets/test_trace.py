from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import gammaincc
from scipy.stats import binomtest

from audits.canaries.exposure import fisher
from audits.canaries.formats import SecretAlphabet, format_of
from audits.secrets import trace
from audits.secrets.attack import Ranks, SecretAttackResult
from audits.secrets.beam import BeamHits
from audits.secrets.candidates import Sources
from audits.secrets.fresh_values import WordFrequencies
from audits.secrets.trace import _mcnemar_test, _permutation_test, trace_tests


def p_value(bits: np.ndarray, control: np.ndarray, kinds: np.ndarray) -> float:
    found = _permutation_test(bits, control, kinds, seed=1)
    assert found is not None
    return found[2]


@pytest.mark.parametrize(("gain", "caught"), [(0.0, False), (2.0, True)])
def test_permutations_within_kinds(gain: float, caught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds differ by far in how guessable they are, and in how many of them are left out; that is no trace.

    Outcomes of one run move together, which is none either. Planted: a gain of the trained ones.
    """
    monkeypatch.setattr(trace, "_DRAWS", 199)
    random = np.random.default_rng(0)
    kinds = np.array(["easy"] * 40 + ["hard"] * 40)
    control = np.array([True] * 5 + [False] * 35 + [True] * 35 + [False] * 5)
    called = 0
    for _ in range(200):
        bits = np.where(kinds == "easy", 5.0, 0.0) + random.exponential(1.44, 80) + random.normal()
        called += p_value(bits + gain * ~control, control, kinds) <= 0.05
    assert (called > 0.05 * 200 + 4 * math.sqrt(0.05 * 200)) is caught


def test_kinds_on_one_side_only_tell_nothing() -> None:
    bits = np.arange(20.0)
    assert _permutation_test(bits, np.arange(20) < 10, np.array(["a"] * 10 + ["b"] * 10), seed=0) is None
    assert _permutation_test(bits, np.arange(20) < 4, np.array(["a"] * 20), seed=0) is None


def test_the_paired_test_is_binomial() -> None:
    after = np.array([True] * 9 + [False] * 2 + [True] * 5)
    before = np.array([False] * 9 + [True] * 2 + [True] * 5)
    test = _mcnemar_test(after, before)
    assert test.p_value == pytest.approx(binomtest(9, 11, alternative="greater").pvalue)
    assert test.excess == pytest.approx(7 / 16)
    assert _mcnemar_test(before, after).p_value > 0.9
    assert _mcnemar_test(after, after).p_value == 1


@pytest.mark.parametrize("at_once", [1, 100, 1 << 16])
def test_sums_shuffled_together_are_those_shuffled_one_by_one(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_DRAWS", 50)
    monkeypatch.setattr(trace, "_AT_ONCE", at_once)
    values, random = np.random.default_rng(0).normal(size=12), np.random.default_rng(1)
    alone = [random.permutation(values)[:5].sum() for _ in range(50)]
    assert np.allclose(trace._shuffled_sums(np.random.default_rng(1), values, 5), alone, rtol=1e-12)


def drawn_ranks(source: np.random.Generator) -> np.ndarray:
    """Of 1000 values, 500 were planted, 250 of them included; each is ranked among the 500 others, by chance."""
    losses = source.random(1000)
    return 1 + np.searchsorted(np.sort(losses[500:]), losses[:250], side="right")


def test_candidates_of_few_values_are_shared() -> None:
    rank = drawn_ranks(np.random.default_rng(5))
    target = SimpleNamespace(kind="pin", control=False, held_out=False, compared=False, format="pin", records=1)
    after = SimpleNamespace(ranks=Ranks(rank=rank, count=np.full(250, 501)))
    problems = (SimpleNamespace(target=target, pool=500),) * 250
    result = SecretAttackResult(problems=problems, after=after, before=None, calibrated=None, lost=())  # type: ignore[arg-type]
    (test,) = trace_tests(result, 0)
    assert test.effective == pytest.approx(250 / (1 + 249 / 500))
    total = math.log(2) * float(after.ranks.bits.sum())
    spread = 1 + 249 / 500
    assert test.p_value == pytest.approx(gammaincc(250 / spread, total / spread))


def test_ranks_among_few_values_reject_no_more_often_than_the_level() -> None:
    """Where nothing leaked, 50 of 4000 tests at 0.0125 may reject, and more than 71 with a probability of 0.002."""
    source, shared, alone = np.random.default_rng(5), 0, 0
    for _ in range(4000):
        bits = np.log2(501) - np.log2(drawn_ranks(source))
        shared += fisher([(bits, 500)]) <= 0.0125
        alone += fisher([(bits, None)]) <= 0.0125
    assert shared <= 71 < alone


@pytest.mark.parametrize(("pool", "tested"), [(500, False), (1000, False), (2000, True), (10**6, True)])
def test_hits_of_a_beam_are_tested_where_they_are_independent(pool: int, tested: bool) -> None:
    """Of 250 canaries among 500 others, a beam of 100 values was said to know some in 38 of 1000 audits, for 12.5."""
    target = SimpleNamespace(kind="pin", control=False, held_out=False, compared=False, format="pin", records=1)
    ranks = Ranks(rank=np.full(250, 50), count=np.full(250, 100))
    result = SecretAttackResult(
        problems=(SimpleNamespace(target=target, pool=pool),) * 250,  # type: ignore[arg-type]
        after=SimpleNamespace(ranks=ranks),  # type: ignore[arg-type]
        before=None,
        calibrated=None,
        lost=(),
        beam=BeamHits(width=100, found=np.arange(250) < 25, chance=np.full(250, 0.1)),
    )
    assert any(test.of_shares for test in trace_tests(result, 0)) is tested


def test_values_that_are_left_are_counted() -> None:
    form = format_of(SecretAlphabet.DIGITS, tuple("0123456789"), 3)
    words = format_of(SecretAlphabet.TOKENS, ("red", "reddish", "blue"), 2)
    excluded = ["123", "007", "12", "1234", "12a", "red blue", "reddish red", "red  blue", "green red"]
    sources = Sources(values={}, words=WordFrequencies({}), excluded=excluded)
    assert sources.pool(form) == 998
    assert sources.pool(words) == 7
    assert sources.pool(format_of(SecretAlphabet.DIGITS, tuple("0123456789"), 1000)) == 10**9
