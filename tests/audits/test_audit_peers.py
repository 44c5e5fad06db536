"""How the comparison of attacks judges scores that other projects' code gave."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from audits.statistics.metrics import tpr_at_fpr
from tests.bench import audit_peers
from tests.bench.audit_targets import SOURCES
from tests.bench.paired_rates import rate_difference

if TYPE_CHECKING:
    from pathlib import Path

SCORED: dict[str, Any] = {
    "party": "other", "commit": "abc", "shared_seconds": 2.0,
    "attacks": {
        "good": {"seconds": 0.5, "scores": [5.0, 4.0, 3.0, 2.5, 1.0, 2.0]},
        "backwards": {"seconds": 0.25, "scores": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]},
    },
}  # fmt: skip


def test_scores_of_others_are_judged_members_first() -> None:
    found = audit_peers.judged(SCORED)
    assert found["attacks"]["good"]["AUC"] == 1.0
    assert found["attacks"]["backwards"]["AUC"] == 0.0
    assert found["attacks"]["good"]["TPR at 1 %"] is None, "three non-members resolve no 1 %"
    assert (found["seconds"], found["commit"]) == (2.75, "abc")


def test_the_best_attack_leaves_out_what_was_not_resolved() -> None:
    found = {"attacks": {"a": {"AUC": 0.6, "TPR at 1 %": None}, "b": {"AUC": 0.5, "TPR at 1 %": 0.1}}}
    assert audit_peers.best(found, "AUC") == (0.6, "a")
    assert audit_peers.best(found, "TPR at 1 %") == (0.1, "b")


def test_figures_read_one_by_one_show_a_leak_more_often_than_the_level_says() -> None:
    scores = np.random.default_rng(3).normal(size=(12, 200))
    chance = audit_peers.shows(scores.tolist())
    alone = audit_peers.shows(scores[:1].tolist())
    assert alone["share"] <= 0.06 < 0.15 <= chance["share"], "one side of an interval at 5 % errs in 2.5 % of cases"
    scores[5, :100] += 1
    assert audit_peers.shows(scores.tolist())["seen"]


def test_the_best_of_two_projects_is_compared_on_the_records_that_both_judge() -> None:
    random = np.random.default_rng(4)
    member = np.arange(400) < 200
    weak, strong = (random.normal(size=400) + shift * member for shift in (0.2, 1.5))
    own = {"weak": np.where(np.arange(400) == 7, np.nan, weak), "strong": strong}
    scored = {"attacks": {"loss": {"scores": weak.tolist()}, "none": {"scores": random.normal(size=400).tolist()}}}
    found = audit_peers.difference(own, scored)
    assert (found["attack"], found["other"]) == ("strong", "loss")
    assert 0 < found["lower"] < found["AUC"] < found["upper"]
    rate = found["TPR at 1 %"]
    assert (rate["attack"], rate["other"]) == ("strong", "loss")
    assert 0 < rate["lower"] < rate["difference"] < rate["upper"]
    assert "TPR at 0.1 %" not in found, "199 non-members resolve no 0.1 %"
    same = audit_peers.difference({"weak": own["weak"]}, scored)
    assert same.pop("TPR at 1 %") == {"attack": "weak", "other": "loss", "difference": 0, "lower": 0, "upper": 0}
    assert same == {"attack": "weak", "other": "loss", "AUC": 0}, "the same order has no interval"


def test_a_thousand_non_members_resolve_a_rate_of_0_1_percent() -> None:
    random = np.random.default_rng(6)
    member = np.arange(2000) < 1000
    own = {"strong": random.normal(size=2000) + 3 * member}
    weak = random.normal(size=2000) + 0.2 * member
    rare = audit_peers.difference(own, {"attacks": {"weak": {"scores": weak.tolist()}}})["TPR at 0.1 %"]
    expected = [tpr_at_fpr(scores[member], scores[~member], 0.001).tpr for scores in (own["strong"], weak)]
    assert rare["difference"] == pytest.approx(expected[0] - expected[1])
    assert 0 < rare["lower"] < rare["upper"]


@pytest.mark.slow
def test_rates_that_differ_by_chance_alone_have_intervals_that_hold_0() -> None:
    """At 95 %, of 200 members and 200 others a side; of 40 sets, one in 2000 such tests would leave out more than 7."""
    random, outside = np.random.default_rng(5), 0
    for _ in range(40):
        common = random.normal(size=400)
        one, other = (common + random.normal(size=400) + 0.5 * (np.arange(400) < 200) for _ in range(2))
        found = rate_difference((one[:200], one[200:]), (other[:200], other[200:]), 0.05)
        assert found["difference"] == pytest.approx(
            tpr_at_fpr(one[:200], one[200:], 0.05).tpr - tpr_at_fpr(other[:200], other[200:], 0.05).tpr
        )
        outside += not found["lower"] <= 0 <= found["upper"]
    assert outside <= 7


def test_only_how_far_apart_parties_are_is_said_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = replace(SOURCES[0], name="here", records=3)
    target = source.target(tmp_path, "plain")
    target.mkdir(parents=True)
    (target.parent / "plain.other.json").write_text(json.dumps(SCORED))
    own = {"loss": np.array([1.0, 2, 3, 0, 2.5, 0.5])}
    monkeypatch.setattr(audit_peers, "audited", lambda *_: {"seconds": 1.0, "attacks": {"loss": {"AUC": 0.5}}})
    monkeypatch.setattr(audit_peers, "standing", lambda *_: own)
    options = argparse.Namespace(folder=tmp_path)
    before = {
        "floor": {"ratio": 1.2},
        "parties": {"privctl": {"seconds": 9.0, "attacks": {"loss": {"AUC": 0.5}}}, "other": {"seconds": 8.0}},
    }
    found = audit_peers.compared(source, "plain", options, before)
    parties = {**before["parties"], "other": {"seconds": 8.0, "difference": audit_peers.difference(own, SCORED)}}
    assert found == {"floor": {"ratio": 1.2}, "parties": parties}
    before["parties"]["privctl"]["attacks"] = {"loss": {"AUC": 0.6}}
    with pytest.raises(ValueError, match="here, plain are others than those stored; measure it anew"):
        audit_peers.compared(source, "plain", options, before)


def test_an_audit_s_ranks_stand_where_its_records_do(tmp_path: Path) -> None:
    from audits.scores.scores_file import staged_scores

    arrays = {
        "member": np.array([True, True, False]), "line": np.array([1, 3, 2]), "truncated": np.zeros(3, bool),
        "skipped_member": np.array([True]), "skipped_line": np.array([2]), "skipped_reason": np.array([2], np.uint8),
        "score.loss": np.array([-1.0, -3.0, -2.0]), "score.blind": np.zeros(3),
    }  # fmt: skip
    with staged_scores(tmp_path / "s.safetensors", arrays, {}) as pending:
        pending.commit()
    found = audit_peers.standing(tmp_path / "s.safetensors", 3)
    assert list(found) == ["loss"]
    np.testing.assert_array_equal(found["loss"], [3, np.nan, 1, np.nan, 2, np.nan])


def test_figures_of_others_stay_where_their_scores_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = replace(SOURCES[0], name="here", records=3)
    target = source.target(tmp_path, "plain")
    target.mkdir(parents=True)
    (target.parent / "plain.report.json").write_text("{}")
    asked: list[tuple[Any, ...]] = []

    def audited(*_: Any, **__: Any) -> dict[str, Any]:
        asked.append(_)
        return {"seconds": 1.0, "attacks": {"loss": {"AUC": 0.5}}}

    monkeypatch.setattr(audit_peers, "audited", audited)
    monkeypatch.setattr(audit_peers, "floor", lambda *_: {"ratio": 1.1})
    own = {"loss": np.array([1.0, 2, 3, 0, 2.5, 0.5])}
    monkeypatch.setattr(audit_peers, "standing", lambda *_: own)
    options = argparse.Namespace(folder=tmp_path, thorough=False, rounds=3)
    parties = {"gone": {"seconds": 9.0, "attacks": {}}, "privctl": {"seconds": 99.0, "attacks": {}}}
    gone = {"floor": {"ratio": 1.2}, "parties": parties}
    assert "task" in source.settings, "one audit is enough here"
    (target.parent / "plain.other.json").write_text(json.dumps(SCORED))
    found = audit_peers.measured(source, "plain", options, gone)
    assert found["floor"] == {"ratio": 1.1}
    parties = found["parties"]
    assert list(parties) == ["privctl", "gone", "other"]
    assert parties["privctl"]["seconds"] == 1.0
    assert parties["gone"]["seconds"] == 9.0
    assert parties["other"] == {**audit_peers.judged(SCORED), "difference": audit_peers.difference(own, SCORED)}
    assert len(asked) == 1
    options.rounds = 0
    assert audit_peers.measured(source, "plain", options, gone)["floor"] == {"ratio": 1.2}
    assert "floor" not in audit_peers.measured(source, "plain", options, {})
    stale = {"parties": {"privctl, thorough": {"seconds": 99.0, "attacks": {}}}}
    assert audit_peers.measured(source, "plain", options, stale)["parties"]["privctl, thorough"]["seconds"] == 99.0
    options.thorough = True
    assert audit_peers.measured(source, "plain", options, stale)["parties"]["privctl, thorough"]["seconds"] == 1.0
