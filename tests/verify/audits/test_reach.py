"""What an audit says that it would have seen is what its counts give; a changed number is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammaincc
from scipy.stats import beta, binom

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.extraction.compare import beyond as search_beyond
from audits.extraction.counts import UncertainCount
from audits.extraction.summary import BEYOND, _difference, _Rates
from audits.extraction.verdict import verdict
from audits.membership.attack import Settings, auc_evidence
from audits.statistics.two_rates import fisher
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from tests.work import calls
from verify.audits import reach
from verify.audits.consistency import faults
from verify.audits.extraction import exact_tests as extraction_tests
from verify.audits.reach import chance_to_decide, detectable_fault
from verify.laws.counts import at_most, gamma_beyond


def report(*items: Evidence) -> PrivacyReport:
    parameters = {"attack": [], "confidence": 0.95}
    return PrivacyReport(
        step="audit", created="2030-01-01T00:00:00Z", versions={}, parameters=parameters, evidence=items
    )


def canaries(count: int, delta: float) -> Evidence:
    source = np.random.default_rng(1)
    coins, scores = source.random(count) < 0.5, source.normal(size=count)
    return bounds_of(register([1] * count), scores, np.ones(count, np.bool_), coins, delta, 0.025)[0]


def beyond(train: tuple[int, int], heldout: tuple[int, int], undecided: int = 0) -> Evidence:
    (found, texts), (spoken, others) = train, heldout
    counts = UncertainCount(extracted=found, least=found, most=found, total=texts)
    of_others = UncertainCount(extracted=spoken, least=spoken, most=spoken + undecided, total=others)
    rates = _Rates(samples={}, confidence=0.99)
    return _difference(rates, "rate beyond held-out text", counts, of_others, {"in_both": 0})


def test_what_few_records_would_show_is_no_certainty() -> None:
    """A share of 12 in 20 is below the 66 % that is detected four times in five, and is certain nevertheless."""
    rate = Evidence(
        method="extraction", quantity="rate on training text", estimate=0.05, details={"extracted": 1, "texts": 20}
    )
    found = verdict([rate, beyond((1, 20), (0, 20))])
    assert "with so few records only a share of 66 % or more would be, four times in five; " in found.reason
    assert verdict([rate, beyond((12, 20), (0, 20))]).outcome is Outcome.REFUTED
    assert "with so few records not even one of 100 % would be; " in verdict([rate, beyond((1, 4), (0, 4))]).reason


@pytest.mark.parametrize(
    "item",
    [
        canaries(30, 1e-5), canaries(500, 1e-5), canaries(1000, 0.0), canaries(1000, 1e-3),
        beyond((0, 300), (0, 300)), beyond((9, 120), (4, 2000)), beyond((0, 5000), (61, 900)),
    ],
)  # fmt: skip
def test_only_the_audit_s_own_number_stands(item: Evidence) -> None:
    stated = item.details["detectable"]
    assert detectable_fault(item, report(item)) == ""
    for other in (stated * 0.99, stated * 1.01, 1e-6):
        forged = replace(item, details={**item.details, "detectable": other})
        assert "is not the least that it would have seen" in detectable_fault(forged, report(forged))
        assert any("is not the least" in fault for fault in faults(report(forged)))


@pytest.mark.parametrize("sizes", [(5, 5), (8, 100), (11, 300), (300, 11), (40, 60), (1000, 1000), (400, 100_000)])
def test_only_the_audit_s_own_area_stands(sizes: tuple[int, int]) -> None:
    """With few records against many as well, for which a gate's ``min_power`` would otherwise take any number."""
    member = np.arange(sum(sizes)) < sizes[0]
    item = auc_evidence("loss", np.random.default_rng(1).normal(size=sum(sizes)), member, Settings(confidence=0.95))
    assert detectable_fault(item, report(item)) == ""
    for other in (item.details["detectable"] - 1e-3, item.details["detectable"] + 1e-3, 0.51, 1.0, 0.5):
        forged = replace(item, details={**item.details, "detectable": other})
        assert any("is not the smallest detectable" in fault for fault in faults(report(forged)))


@pytest.mark.parametrize("shape", [0.3, 2.0, 60.0, 5e3, 9e4, 2e5, 4e8])
def test_gamma_tails_are_scipy_s(shape: float) -> None:
    for deviations in (-3.0, 0.0, 1.0, 3.5, 5.0):
        least = shape + deviations * shape**0.5
        assert gamma_beyond(shape, least) == pytest.approx(gammaincc(shape, max(0.0, least)), rel=1e-4)


def searched(ours: tuple[int, int], theirs: tuple[int, int], level: float) -> Evidence:
    """Fisher's comparison of what comes out after other prompts."""
    one, other = (UncertainCount(extracted=n, least=n, most=n, total=of) for n, of in (ours, theirs))
    return search_beyond("divergence", BEYOND, one, other, 1 - level)


@pytest.mark.parametrize(
    ("found", "texts", "level"), [(0, 300, 0.002), (30, 300, 0.002), (18, 60, 0.05), (40, 200, 0.01)]
)
def test_a_search_would_have_seen_what_it_says(found: int, texts: int, level: float) -> None:
    """As often as stated, also where held-out text comes out; the number for none was seen in 6 % of sets for 30."""
    item = searched((found, texts), (found, texts), level)
    rate, source = found / texts, np.random.default_rng(2)
    ours = source.binomial(texts, rate + item.details["detectable"], 1500)
    theirs = source.binomial(texts, rate, 1500)
    at = {
        pair: fisher(pair[0], texts, pair[1], texts) <= level
        for pair in set(zip(ours.tolist(), theirs.tolist(), strict=False))
    }
    seen = np.mean([at[pair] for pair in zip(ours.tolist(), theirs.tolist(), strict=True)])
    assert seen == pytest.approx(0.8, abs=0.1)
    assert detectable_fault(item, report(item)) == ""
    fewer = replace(
        item, details={**item.details, "detectable": searched((0, texts), (0, texts), level).details["detectable"]}
    )
    assert (detectable_fault(fewer, report(fewer)) == "") is (found == 0)


def test_undecided_held_out_texts_leave_more_than_one() -> None:
    item = beyond((0, 300), (2, 300), undecided=1)
    kin = Evidence(method="extraction", quantity="rate on held-out text", estimate=None, details={"undecided": 1.0})
    assert detectable_fault(item, report(item, kin)) == ""
    assert detectable_fault(item, report(item)) != ""


def test_one_text_among_many() -> None:
    """1 - 0.05^(1/300) = 0.00993: of so many texts one is seen with 95 %."""
    item = Evidence(
        method="extraction", quantity="rate on training text", estimate=0.0, confidence=0.95,
        samples={"training": 300}, details={"detectable": 0.009936},
    )  # fmt: skip
    assert detectable_fault(item, report(item)) == ""
    assert detectable_fault(replace(item, details={"detectable": 0.005}), report(item))


@pytest.mark.parametrize(("most", "total", "chance"), [(0, 10, 0.1), (7, 20, 0.3), (400, 500, 0.9), (3, 3, 0.4)])
def test_binomial_sums(most: int, total: int, chance: float) -> None:
    assert at_most(most, total, chance) == pytest.approx(binom.cdf(most, total, chance), rel=1e-9)


def test_a_tail_too_small_for_a_float_takes_few_steps() -> None:
    assert calls(lambda: at_most(50_000, 100_000, 0.9)) < 20
    assert at_most(50_000, 100_000, 0.9) == 0.0
    assert at_most(99_000, 100_000, 0.9) == 1.0


@pytest.mark.parametrize("item", [beyond((1, 2), (0, 2)), beyond((0, 300), (0, 300)), beyond((9, 120), (150, 2000))])
def test_how_many_records_would_decide_is_theirs(item: Evidence) -> None:
    stated = item.details["needed"]
    assert extraction_tests.fault(item) == ""
    for other in (1.0, stated / 2, stated - 1, stated + 1, 8 * stated, 1e7):
        forged = replace(item, details={**item.details, "needed": other})
        assert extraction_tests.fault(forged) != ""
        assert any("records" in fault for fault in faults(report(forged)))


@pytest.mark.parametrize(("texts", "rate", "other"), [(40, 0.6, 0.2), (300, 0.03, 0.0), (1500, 0.05, 0.02)])
def test_the_chance_to_decide_is_the_sum_over_both_counts(texts: int, rate: float, other: float) -> None:
    ours, theirs = np.arange(texts + 1), np.arange(texts)
    lower = np.where(ours > 0, beta.ppf(0.0125, np.maximum(ours, 1), texts - ours + 1), 0.0)
    above = lower[:, None] > beta.ppf(1 - 0.0125, theirs + 1, texts - theirs)[None]
    weights = np.outer(binom.pmf(ours, texts, rate), binom.pmf(theirs, texts, other))
    assert chance_to_decide(texts, rate, other, 0.0125) == pytest.approx(weights[above].sum(), abs=1e-9)


SILENT = beyond((0, 5000), (0, 5000))


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (SILENT, ""),
        (beyond((0, 300), (0, 300)), "would not have been noticed"),
        (replace(SILENT, details={**SILENT.details, "repeated_extracted": 2}), "that repeat come out"),
        (replace(SILENT, lower=None), "nothing is compared"),
        (None, "nothing is compared"),
    ],
)
def test_extraction_that_might_have_been_missed_is_not_called_none(item: Evidence | None, why: str) -> None:
    rate = Evidence(method="extraction", quantity="rate on training text", estimate=0.0, samples={"training": 5000})
    verdict = Verdict(
        subject="training text cannot be extracted", outcome=Outcome.CONSISTENT, reason="nothing came out"
    )
    claiming = replace(report(rate, *([] if item is None else [item])), verdicts=(verdict,))
    found = [fault for fault in faults(claiming) if "its verdict on" in fault]
    assert bool(found) is bool(why)
    assert all(why in fault for fault in found)


def test_the_limit_of_a_count_is_looked_for_once() -> None:
    reach._fewest_beyond.cache_clear()
    chance_to_decide(60, 0.3, 0.05, 0.0125)
    chance_to_decide(60, 0.3, 0.05, 0.0125)
    assert reach._fewest_beyond.cache_info().misses == 1
