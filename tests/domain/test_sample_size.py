"""Advice on sample sizes: an audit that follows it detects what was wanted, and one that is half as large does not."""

from __future__ import annotations

import math

import pytest

from audits.extraction.reach import detectable
from audits.statistics.metrics import clopper_pearson
from audits.statistics.power import detectable_area_beyond
from privctl.domain.evidence import Evidence
from privctl.domain.sample_size import needed_sample, rounded, times_for_area, times_for_bound, times_for_share


@pytest.mark.parametrize("critical", [1.7, 2.8])
@pytest.mark.parametrize(("members", "others"), [(20, 20), (100, 100), (30, 1000), (1000, 30)])
@pytest.mark.parametrize("wanted", [0.55, 0.6])
def test_an_audit_of_the_advised_size_detects_the_area(
    critical: float, members: int, others: int, wanted: float
) -> None:
    times = times_for_area(detectable_area_beyond(critical, members, others), wanted, members, others)
    enough = rounded(times * members), rounded(times * others)
    assert detectable_area_beyond(critical, *enough) <= wanted
    assert detectable_area_beyond(critical, enough[0] // 2, enough[1] // 2) > wanted
    naive = ((detectable_area_beyond(critical, members, others) - 0.5) / (wanted - 0.5)) ** 2
    if members == others == 20:
        assert detectable_area_beyond(critical, round(naive * members), round(naive * others)) > wanted


@pytest.mark.parametrize("texts", [20, 50, 200, 1000])
def test_texts_of_which_none_came_out(texts: int) -> None:
    seen = detectable(texts, 0, texts, 0.005)
    assert seen is not None
    for wanted in (0.01, 0.05) if seen > 0.05 else (0.01,):
        enough = rounded(texts * times_for_share(seen, wanted, none=True))
        found, of_half = (detectable(count, 0, count, 0.005) for count in (enough, enough // 2))
        assert found is not None
        assert of_half is not None
        assert found <= wanted < of_half


@pytest.mark.parametrize("texts", [20, 100, 300])
@pytest.mark.parametrize("limit", [0.01, 0.02])
def test_an_upper_bound_of_none(texts: int, limit: float) -> None:
    """Clopper and Pearson's for none of n is 1 - (alpha / 2)^(1 / n)."""
    upper = clopper_pearson(0, texts, 0.005)[1]
    times = times_for_bound(0.0, upper, limit)
    assert times is not None
    assert texts * times == pytest.approx(math.log(0.0025) / math.log1p(-limit))
    assert clopper_pearson(0, rounded(texts * times), 0.005)[1] <= limit


def test_bounds_of_some_and_of_too_many() -> None:
    assert times_for_bound(0.02, 0.08, 0.04) == pytest.approx(9)
    assert times_for_bound(0.05, 0.08, 0.04) is None


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0.2, 1), (1.0, 1), (9.2, 10), (31, 31), (100, 100), (100.4, 110), (1049, 1100), (73_000.5, 74_000)],
)
def test_rounded_upwards(count: float, shown: int) -> None:
    assert rounded(count) == shown


def test_words() -> None:
    item = Evidence(method="loss", quantity="AUC", estimate=0.5, samples={"members": 60, "nonmembers": 50})
    assert needed_sample(item, 20) == "about 1,200 members and 1,000 non-members"
