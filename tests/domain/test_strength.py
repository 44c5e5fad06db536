"""Whether a bound rules anything out, against numbers from mpmath."""

from dataclasses import replace

import pytest

from privctl.domain.guarantee import Adjacency, Guarantee, Notion, Risk, RiskMeasure, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, Regime, WeightNoise
from privctl.domain.strength import Severity, is_useful, largest_true_positive_rate, severity, stated_regimes

BOUND = Guarantee(
    name="nonconvex",
    epsilon=8.0,
    delta=1e-5,
    adjacency=Adjacency.REPLACE_ONE,
    accountant="analytic",
    status=Status.CONDITIONAL,
    noise_multiplier=1.0,
)
#: By mpmath: Phi(Phi^-1(0.01) + 1), and the mu at which Phi(Phi^-1(0.01) + mu) is 0.9.
GAUSSIAN_RATE, USELESS_FROM = 0.0923622480736939, 3.60789943958544
FACTS = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=100, batch_size=10)


def test_true_positives_at_one_percent_false_ones() -> None:
    """By the Gaussian's own curve; without it, e^1 / 100 + 1e-5."""
    assert largest_true_positive_rate(BOUND, one_gaussian=True) == pytest.approx(GAUSSIAN_RATE, rel=1e-9)
    line = largest_true_positive_rate(replace(BOUND, epsilon=1.0), one_gaussian=False)
    assert line == pytest.approx(0.027192818284590453, rel=1e-12)
    assert largest_true_positive_rate(BOUND, one_gaussian=False) == 1.0
    assert largest_true_positive_rate(replace(BOUND, epsilon=None), one_gaussian=True) == 1.0
    stated = (Risk(measure=RiskMeasure.TRUE_POSITIVE_RATE, bound=0.25, at=0.01),)
    assert largest_true_positive_rate(replace(BOUND, risks=stated), one_gaussian=True) == 0.25
    assert largest_true_positive_rate(replace(BOUND, notion=Notion.MUTUAL_INFORMATION), one_gaussian=True) is None


@pytest.mark.parametrize(("mu", "useful"), [(USELESS_FROM - 1e-6, True), (USELESS_FROM + 1e-6, False)])
def test_nine_tenths_of_the_records_are_too_many(mu: float, useful: bool) -> None:
    assert is_useful(replace(BOUND, noise_multiplier=1 / mu)) is useful


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.VOID, Status.REFUTED])
def test_a_number_that_does_not_stand_is_of_no_use(status: Status) -> None:
    assert is_useful(BOUND)
    assert not is_useful(replace(BOUND, status=status))


def test_what_is_stated_of_a_loss() -> None:
    assert stated_regimes(FACTS, None) == {Regime.NONCONVEX}
    assert stated_regimes(FACTS, Regime.CONVEX) == {Regime.NONCONVEX, Regime.CONVEX}
    assert stated_regimes(replace(FACTS, smoothness=1.0), None) == {Regime.NONCONVEX, Regime.SMOOTH}
    strongly = {Regime.NONCONVEX, Regime.STRONGLY_CONVEX, Regime.CONVEX}
    assert stated_regimes(replace(FACTS, strong_convexity=0.1), None) == strongly


def test_a_bound_is_worth_what_it_rules_out() -> None:
    """Never green for its status alone: an epsilon of 1e8 is next to nothing, however well it is proved."""
    proved = replace(BOUND, status=Status.PROVED, epsilon=1.0)
    assert severity(proved, None) is Severity.GOOD
    assert severity(replace(proved, status=Status.CONDITIONAL), None) is Severity.FAIR
    assert severity(replace(proved, epsilon=1e8), None) is Severity.BAD
    assert severity(replace(proved, epsilon=None), None) is Severity.BAD
    assert severity(replace(proved, status=Status.CLAIMED), None) is Severity.WEAK
    assert severity(replace(proved, status=Status.VOID), None) is Severity.VOID
    assert severity(replace(proved, status=Status.REFUTED), None) is Severity.BAD
    assert severity(None, None) is Severity.NONE


def test_a_bound_for_a_loss_that_nobody_stated_is_weak() -> None:
    noise = WeightNoise(noise_stddev=1.0, dimension=3, calibration=Calibration.DP_WEIGHTS, training=FACTS)
    assert severity(replace(BOUND, name="convex"), noise) is Severity.WEAK
    assert severity(BOUND, noise) is Severity.FAIR
    assert severity(replace(BOUND, noise_multiplier=0.1), noise) is Severity.BAD
