"""How the comparison of attacks judges scores that other projects' code gave."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench import audit_peers
from tests.bench.audit_targets import SOURCES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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


def test_figures_of_others_stay_where_their_scores_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = replace(SOURCES[0], name="here", records=3)
    target = source.target(tmp_path, "plain")
    target.mkdir(parents=True)
    (target.parent / "plain.report.json").write_text("{}")
    asked: list[tuple[Any, ...]] = []

    def audited(*_: Any) -> dict[str, Any]:
        asked.append(_)
        return {"seconds": 1.0, "attacks": {"loss": {"AUC": 0.5}}}

    monkeypatch.setattr(audit_peers, "audited", audited)
    options = argparse.Namespace(folder=tmp_path, thorough=False)
    gone = {"gone": {"seconds": 9.0, "attacks": {}}, "privctl": {"seconds": 99.0, "attacks": {}}}
    assert "task" in source.settings, "one audit is enough here"
    (target.parent / "plain.other.json").write_text(json.dumps(SCORED))
    parties = audit_peers.measured(source, "plain", options, gone)["parties"]
    assert list(parties) == ["privctl", "gone", "other"]
    assert parties["privctl"]["seconds"] == 1.0
    assert parties["gone"]["seconds"] == 9.0
    assert parties["other"] == audit_peers.judged(SCORED)
    assert len(asked) == 1
