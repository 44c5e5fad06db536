"""Which share of Min-K%++ is best is chosen on other records than those that it judges."""

from __future__ import annotations

import numpy as np

from tests.bench.min_k_shares import CHOSEN, HALF, SHARES, TESTS, WAYS, WEIGHTED, by_way, learners

OTHERS = ("loss", "zlib", "min-k")


def _learned_shares(separation: float) -> tuple[np.ndarray, dict[float, np.ndarray], dict[str, np.ndarray]]:
    """One share of ten tells members by ``separation`` standard deviations; nothing else does."""
    random = np.random.default_rng(6)
    member = random.permutation(120) < 60
    shares = {share: random.normal(size=120) + separation * member * (share == 0.3) for share in SHARES}
    return member, shares, {name: random.normal(size=120) for name in OTHERS}


def test_the_share_that_tells_most_is_found_and_nothing_in_nothing() -> None:
    areas, p_values = by_way(*_learned_shares(2.0), 0)
    assert set(areas) == set(WAYS)
    assert set(p_values) == set(TESTS)
    assert min(areas[CHOSEN], areas[HALF]) > 0.85 > 0.7 > areas[WEIGHTED], "0.3 is not among the audit's shares"
    assert max(p_values[CHOSEN], p_values[HALF]) <= 0.01 < p_values[WEIGHTED]
    assert min(by_way(*_learned_shares(0.0), 0)[1].values()) > 0.05


def test_no_record_chooses_the_share_that_judges_it() -> None:
    member, shares, others = _learned_shares(0.3)
    chosen = learners(member, shares, others)[CHOSEN]
    fitted = chosen.fitted(member[None])[0]
    for number in range(10):
        judged = chosen.fold == number
        turned = np.where(judged, ~member, member)
        np.testing.assert_array_equal(chosen.fitted(turned[None])[0][judged], fitted[judged])
    assert (chosen.fitted(~member[None])[0] != fitted).any()
