"""Lower bounds of rank tests are computed again, by another formulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audits.statistics.two_arm import ApproximateDp, GaussianDp, RankTest, epsilon_bound, mu_bound, p_value
from privctl.domain.evidence import Bound, Evidence
from verify.audits.ranks import bound as rank_bound

COUNTS = [
    (4, 500, 60, 500),
    (1, 50, 9, 50),
    (0, 30, 28, 40),
    (125, 500, 300, 500),
    (30, 10_000, 9, 12),
    (2, 9, 1, 9),
    (2, 150, 200, 200),
    (1, 20, 900, 1000),
]


def evidence(counts: tuple[int, int, int, int], kind: str) -> Evidence:
    rank, ranked, beyond, counted = counts
    test = RankTest(
        threshold=0.0, rank=rank, ranked=ranked, beyond=beyond, counted=counted, from_without=True, share=0.2
    )
    bound = epsilon_bound((test,), 1e-5) if kind == "epsilon lower bound at delta 1e-05" else mu_bound((test,))
    return Evidence(
        method="rank test",
        quantity=kind,
        estimate=bound.value,
        lower=bound.value,
        bound=Bound.LOWER,
        samples={"with": counted, "without": ranked},
        details={
            "delta": 1e-5, "rank": rank, "ranked": ranked, "beyond": beyond, "counted": counted, "share": 0.2,
        },
    )  # fmt: skip


KINDS = ("epsilon lower bound at delta 1e-05", "lower bound on mu of Gaussian differential privacy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", COUNTS)
def test_what_an_audit_bounds_is_found_again(counts: tuple[int, int, int, int], kind: str) -> None:
    assert rank_bound.fault(evidence(counts, kind)) == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lower": 2.5}, "at its bound of 2.5"),
        ({"lower": 0.0}, "at its bound of 0"),
        ({"beyond": 70}, "the test's p-value"),
        ({"rank": 3}, "the test's p-value"),
        ({"share": 0.5}, "the test's p-value"),
        ({"ranked": 600}, "not of the models"),
        ({"beyond": 501}, "cannot be"),
        ({"rank": None}, "its rank is missing"),
    ],
)
def test_a_bound_that_its_counts_do_not_give(kind: str, change: dict[str, float | None], words: str) -> None:
    item = evidence((4, 500, 60, 500), kind)
    if "lower" in change:
        item = replace(item, **change)
    else:
        item = replace(item, details={k: v for k, v in {**item.details, **change}.items() if v is not None})
    assert words in rank_bound.fault(item)


def test_other_evidence_is_left_alone() -> None:
    assert rank_bound.fault(replace(evidence(COUNTS[0], KINDS[0]), method="clopper-pearson", lower=9.0)) == ""
    assert "nothing that is known" in rank_bound.fault(replace(evidence(COUNTS[0], KINDS[0]), quantity="else"))


@pytest.mark.parametrize(("rank", "expected"), [(5, 0.0129140441874), (250, 0.0458524117818)])
def test_the_p_value_of_models_told_apart(rank: int, expected: float) -> None:
    """As in ``test_known_p_values``, where a curve bends within the step of a coarse rule."""
    found = rank_bound.p_value(rank, 1000, 1000, 1000, rank_bound.approximate(5.4944, 1e-5))
    assert found == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("curve", [ApproximateDp(epsilon=0.7, delta=0.01), GaussianDp(mu=0.6)])
def test_both_formulations_agree_on_a_p_value(curve: ApproximateDp | GaussianDp) -> None:
    test = RankTest(threshold=0.0, rank=3, ranked=80, beyond=9, counted=70, from_without=True)
    same = rank_bound.PowerCurve(most=lambda rate: float(curve.most(np.array(rate))), bends=tuple(curve.corners[:, 0]))
    again = rank_bound.p_value(3, 80, 9, 70, same)
    assert again == pytest.approx(p_value(test, curve), rel=1e-3)


@pytest.mark.parametrize(("least", "total", "chance"), [(0, 5, 0.3), (6, 5, 0.3), (3, 5, 0.3), (700, 1000, 0.69)])
def test_tails_of_the_binomial(least: int, total: int, chance: float) -> None:
    from scipy.stats import binom

    assert rank_bound.at_least(least, total, chance) == pytest.approx(binom.sf(least - 1, total, chance), rel=1e-9)
