"""An audit of very few records finds nothing, and its report is in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from tests.audits.tiny import save_model, sentences, write_jsonl


@pytest.mark.parametrize(("members", "others"), [(1, 12), (12, 1)])
@pytest.mark.parametrize("attacks", [(), ("--attack", "midpoint")])
def test_one_record_on_a_side(members: int, others: int, attacks: tuple[str, ...], tmp_path: Path) -> None:
    model, place = save_model(tmp_path / "model"), tmp_path / "a.report.json"
    sides = [
        "--members", str(write_jsonl(tmp_path / "m.jsonl", sentences(members, seed=1))),
        "--nonmembers", str(write_jsonl(tmp_path / "n.jsonl", sentences(others, seed=2))),
    ]  # fmt: skip
    assert run(["audit", "membership", str(model), *sides, *attacks, "-o", str(place), "-q"]) == 0
    assert run(["verify", str(place), "-q"]) == 0
    unmeasured = {item.quantity for item in read_report(place).evidence if item.method == "midpoint"}
    assert unmeasured == {"accuracy", "precision", "recall"}
