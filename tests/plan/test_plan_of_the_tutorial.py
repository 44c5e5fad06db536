"""The plan that the tutorial makes: verify decides every row of it, also those of formulas with next to no noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.verdict import Outcome
from verify.run import read, verify

PLAN = [
    "account", "--epsilon", "8", "--delta", "1e-5", "--dataset-size", "391", "--batch-size", "64", "--epochs", "20",
    "--no-peers", "-q",
]  # fmt: skip


@pytest.mark.forged("two rows state less than what follows")
def test_the_tutorial_s_plan_is_verified_and_an_edited_one_is_refuted(tmp_path: Path) -> None:
    plan, forged = tmp_path / "plan.json", tmp_path / "forged.json"
    assert run([*PLAN, "-o", str(plan)]) == 0
    assert run(["verify", str(plan), "-q"]) == 0
    report = json.loads(plan.read_text())
    rows = {row["name"]: row for row in report["guarantees"]}
    # Of the formula that is refuted, what follows from it: 79,806.8 by the accountant of privctl.
    rows["poster: advanced"]["follows"] = 7.9e4
    rows["privacy loss distribution"]["epsilon"] = 7.99
    forged.write_text(json.dumps(report))
    answers = {judged.guarantee.name: judged.verdict for judged in verify(forged, read(forged)).guarantees}
    assert "it says that 79000 follows, but epsilon is at least 797" in answers["poster: advanced"].reason
    assert answers["privacy loss distribution"].outcome is Outcome.REFUTED
