"""An attack that lacks something is refused before the model is asked, and before the audit enters its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.cli import run
from tests.audits.tiny import save_model, sentences, write_jsonl


@pytest.mark.parametrize("attack", ["reference", "lira", "gradient-alignment", "quantile"])
def test_it_is_refused_before_the_log_is_begun(attack: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An audit without a report takes a waiver to pass a gate that requires the log."""
    model = save_model(tmp_path / "model")
    files = [write_jsonl(tmp_path / f"{i}.jsonl", sentences(10, seed=i)) for i in (1, 2)]
    sides = ["--members", str(files[0]), "--nonmembers", str(files[1])]
    assert run(["audit", "membership", str(model), *sides, "--attack", attack]) == 2
    assert f"--attack {attack} cannot be run" in capfd.readouterr().err
    assert not list(tmp_path.glob("*.audits.jsonl"))
