from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from audits import ATTACKS, load_attack
from audits.membership import loss, midpoint
from audits.membership.attack import Candidates, Settings, Shadows
from audits.membership.midpoint import split_midpoint
from audits.scores.table import ScoreTable
from privctl.data.records import Record

Halved = Callable[[np.ndarray, np.ndarray, int], float]


def table(members: np.ndarray, nonmembers: np.ndarray) -> Candidates:
    """Records of two tokens whose mean log-probabilities are given."""
    means = np.concatenate([members, nonmembers])
    lp = np.stack([means - 0.5, means + 0.5], axis=1).reshape(-1).astype(np.float32)
    records = len(means)
    nothing = np.zeros(0, dtype=np.int64)
    scores = ScoreTable(
        lp=lp,
        **dict.fromkeys(("mu", "var", "rank", "margin", "lse"), np.zeros_like(lp)),
        offsets=2 * np.arange(records + 1, dtype=np.int64),
        member=np.arange(records) < len(members),
        line=np.arange(records, dtype=np.int64),
        truncated=np.zeros(records, dtype=np.bool_),
        skipped_member=nothing.astype(np.bool_),
        skipped_line=nothing,
        skipped_reason=nothing.astype(np.uint8),
    )
    reference = np.full(records, -5.0)
    included = np.arange(8)[:, None] % 2 == np.arange(records) % 2
    shadows = Shadows(lp=np.random.default_rng(records).normal(2.0 * included - 5, 0.5), included=included)
    texts = [Record(i, f"text {i}") for i in range(records)]
    return Candidates(table=scores, records=texts, reference=reference, shadows=shadows)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_keeps_the_contract(name: str) -> None:
    source = np.random.default_rng(0)
    for shift, above in ((2.0, True), (0.0, False)):
        scores = table(source.normal(shift, size=400) - 5, source.normal(size=300) - 5)
        evidence = load_attack(name).run(scores, Settings(confidence=0.99)).evidence
        first = evidence[0]
        assert first.lower is not None
        assert (first.lower > first.details["chance"]) is above
        assert {item.method for item in evidence} == {name}
        assert {item.confidence for item in evidence} == {0.99}
        assert all(set(item.samples) == {"members", "nonmembers"} for item in evidence)
        assert all((item.estimate is None) == bool(item.reason) for item in evidence)


def test_loss_example() -> None:
    pos, neg = np.array([0.9, 0.8, 0.7, 0.6, 0.55]), np.array([0.65, 0.5, 0.4, 0.3, 0.2])
    area, one, tenth = loss.ATTACK.run(table(pos, neg), Settings()).evidence
    assert area.estimate == pytest.approx(0.92)
    assert (area.lower, area.upper) == pytest.approx((0.503, 1.0), abs=5e-4)
    assert one.estimate is None
    assert one.reason == "a false positive rate of 0.01 needs at least 100 non-members; here are 5"
    assert tenth.quantity == "TPR at 0.1 % FPR"
    assert tenth.lower is None


def test_loss_resolves_rates_with_enough_records() -> None:
    source = np.random.default_rng(1)
    _, one, tenth = loss.ATTACK.run(table(source.normal(3, size=200), source.normal(size=1000)), Settings()).evidence
    assert one.details["false_positives"] == 10
    assert tenth.details["false_positives"] == 1
    assert one.estimate == one.details["true_positives"] / 200
    assert one.estimate > 0.5


def held_out(members: np.ndarray, nonmembers: np.ndarray, seed: int) -> float:
    found = split_midpoint(members, nonmembers, seed)
    return found.correct / (found.members + found.nonmembers)


def in_sample(members: np.ndarray, nonmembers: np.ndarray, seed: int) -> float:
    """Threshold and direction are judged on the records that set them."""
    low, high = sorted((members, nonmembers), key=np.mean)
    threshold = (members.mean() + nonmembers.mean()) / 2
    return float((low < threshold).sum() + (high >= threshold).sum()) / (len(members) + len(nonmembers))


def sign_flipped(members: np.ndarray, nonmembers: np.ndarray, seed: int) -> float:
    return 1 - held_out(members, nonmembers, seed)


def null_accuracy(attack: Halved) -> float:
    """Mean accuracy on losses without any difference, 10 a side."""
    source = np.random.default_rng(5)
    return float(np.mean([attack(source.normal(size=10), source.normal(size=10), i) for i in range(4000)]))


def test_the_threshold_is_not_judged_on_its_own_records() -> None:
    assert null_accuracy(held_out) == pytest.approx(0.5, abs=0.01)
    assert null_accuracy(in_sample) == pytest.approx(0.574, abs=0.01)


def test_members_have_the_lower_loss() -> None:
    source = np.random.default_rng(6)
    members, nonmembers = source.normal(-1, size=400), source.normal(1, size=400)
    assert held_out(members, nonmembers, 0) > 0.8
    assert sign_flipped(members, nonmembers, 0) < 0.2
    area, *_ = loss.ATTACK.run(table(members, nonmembers), Settings()).evidence
    assert area.estimate is not None
    assert area.estimate < 0.1, "log-probabilities the wrong way round are reported, not turned"


def test_midpoint_numbers_add_up() -> None:
    members, nonmembers = np.array([1.0, 1.0, 1.0, 9.0]), np.array([5.0, 5.0, 5.0, 5.0, 5.0])
    scores = table(-members, -nonmembers)
    accuracy, precision, recall, f1 = midpoint.ATTACK.run(scores, Settings(seed=3)).evidence
    details = accuracy.details
    assert accuracy.samples == {"members": 2, "nonmembers": 3}
    assert (details["calibration_members"], details["calibration_nonmembers"], details["seed"]) == (2, 2, 3)
    assert details["threshold"] in (3.0, 5.0)
    tp, fp = details["true_positives"], details["false_positives"]
    assert accuracy.estimate == (tp + 3 - fp) / 5
    assert recall.estimate == tp / 2
    assert precision.estimate == (tp / (tp + fp) if tp + fp else None)
    assert f1.estimate == 2 * tp / (2 * tp + fp + 2 - tp)
    assert accuracy.details["chance"] == 0.6
    assert (f1.lower, f1.upper) == (None, None)


def test_the_split_depends_on_the_seed_only() -> None:
    source = np.random.default_rng(8)
    members, nonmembers = source.normal(size=50), source.normal(size=50)
    assert split_midpoint(members, nonmembers, 1) == split_midpoint(members, nonmembers, 1)
    assert split_midpoint(members, nonmembers, 1) != split_midpoint(members, nonmembers, 2)


def test_too_few_records_to_split() -> None:
    found = midpoint.ATTACK.run(table(np.array([1.0]), np.array([0.0, 2.0])), Settings()).evidence
    assert len(found) == midpoint.ATTACK.quantities
    assert all(item.estimate is None and "needs 2 members" in item.reason for item in found)


def test_nothing_called_a_member_has_no_precision() -> None:
    # where the low losses are drawn for calibration, the high ones lie above the threshold
    scores = table(-np.array([1.0, 9.0]), -np.array([1.0, 9.0]))
    for seed in range(30):
        accuracy, precision, _, f1 = midpoint.ATTACK.run(scores, Settings(seed=seed)).evidence
        if accuracy.details["true_positives"] + accuracy.details["false_positives"] == 0:
            assert (precision.estimate, precision.reason) == (None, "no record was called a member")
            assert f1.estimate == 0
            return
    pytest.fail("no seed calls nothing a member")
