"""Each attack beyond the basic ones finds a leak that these miss, and is the best at it."""

from __future__ import annotations

import pytest

from audits import ATTACKS, THOROUGH
from tests.bench.planted_leaks import BASIC, Planted, measured, planted

LEAKS = {each.attack: each for each in planted()}
#: It reads the score of ``loss``, and is there to be compared with a paper.
NEVER_THE_BEST = "midpoint"


def test_every_attack_has_a_leak() -> None:
    assert set(ATTACKS) | set(THOROUGH) == (set(LEAKS) | set(BASIC)) - {"fused", "--group-by", "loss-top"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted", [leak for leak in LEAKS.values() if leak.attack != NEVER_THE_BEST], ids=lambda each: each.attack
)
def test_who_is_the_best_at_a_leak(planted: Planted) -> None:
    found = measured(planted.scored, 12)
    assert found["own"] > max(found["basic"].values()) + 0.02
    assert found["own"] > max(found["others"].values(), default=0.0)
    assert found["after"] > found["before"]


@pytest.mark.slow
def test_a_threshold_halfway_adds_nothing_to_the_loss() -> None:
    found = measured(LEAKS[NEVER_THE_BEST].scored, 40)
    assert found["after"] <= found["before"] + 1
