"""Whole audits of models that saw no record, with every attack on: few conclude anything, of whatever kind they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audits.tiny import save_model, sentences, write_jsonl
from tests.bench.audit_null import KINDS, audited, concluded, false_alarms


@pytest.mark.slow
def test_nothing_is_found_in_nothing_by_whole_audits(tmp_path: Path) -> None:
    """Of 24 at most 5 may err where the rate is 5 % (one in 1000 such tests would see more)."""
    found = [false_alarms(kind, 4, tmp_path) for kind in KINDS]
    assert sum(each["refuted"] for each in found) <= sum(each["rejected"] for each in found) <= 5
    attacks = {name for each in found for name in each["attacks"]}
    assert {"fused", "recall", "loss-top", "label-only", "quantile"} <= attacks


@pytest.mark.slow
def test_what_differs_is_counted_though_no_model_leaks_it(tmp_path: Path) -> None:
    """Longer texts: the test rejects, and the baseline keeps the audit from accusing the model."""
    members = write_jsonl(tmp_path / "m.jsonl", sentences(118, 1, longest=8))
    others = write_jsonl(tmp_path / "n.jsonl", sentences(118, 2, longest=20))
    model = save_model(tmp_path / "model", bos=True)
    assert concluded(audited(model, members=members, nonmembers=others, thorough=True)) == (False, True)
