"""``verify.laws.common`` beside ``scipy.stats``, and what importing it is spared."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from verify.laws import common as laws


@pytest.mark.parametrize("tail", [1e-12, 1e-6, 0.025, 0.5, 0.9])
def test_quantiles_are_those_of_scipy_stats(tail: float) -> None:
    for found, expected in (
        (laws.normal_quantile(tail), stats.norm.isf(tail)),
        (laws.student_quantile(tail, 7.3), stats.t.isf(tail, 7.3)),
        (laws.chi_square_quantiles(tail, 50), (stats.chi2.ppf(tail, 50), stats.chi2.isf(tail, 50))),
        (laws.beta_quantile(tail, 3, 40), stats.beta.ppf(tail, 3, 40)),
        (laws.beta_upper_quantile(tail, 3, 40), stats.beta.isf(tail, 3, 40)),
    ):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_probabilities_are_those_of_scipy_stats() -> None:
    assert laws.normal_below(np.array([-9.0, 0.0, 2.0])) == pytest.approx(stats.norm.cdf([-9, 0, 2]), rel=1e-12)
    for x in (3.0, 50.0, 200.0):
        expected = stats.chi2.cdf(x, 50), stats.chi2.sf(x, 50)
        assert laws.chi_square_tails(x, 50) == pytest.approx(expected, rel=1e-9)
    for count, trials in ((0, 9), (4, 9), (9, 9), (400_000, 10**6)):
        expected = stats.binom.cdf(count, trials, 0.5)
        assert laws.binomial_below(count, trials, 0.5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [8, 50, 8192])
def test_kolmogorov_s_distance(count: int) -> None:
    """Too large by little where it is small, and never too small."""
    for scaled in (0.5, 1.0, 1.6, 2.5):
        exact = float(stats.kstwo.sf(scaled / count**0.5, count))
        found = laws.kolmogorov_tail(scaled / count**0.5, count)
        assert found >= exact * (1 - 1e-9)
        if exact < 0.02:
            assert found == pytest.approx(exact, rel=1e-6)


def test_neither_verify_nor_gate_imports_what_takes_longest() -> None:
    """``scipy.stats``, ``optimize`` and ``signal`` take as long to import as all the rest."""
    code = (
        "import sys, verify.run, verify.as_report, privctl.gate.judge; "
        "sys.exit(' '.join({'scipy.stats', 'scipy.optimize', 'scipy.signal', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""
