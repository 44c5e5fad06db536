from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from audits.secrets import trace
from audits.secrets.trace import _mcnemar_test, _permutation_test


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
