"""A delta that is not far below 1 / examples: every command that knows their number says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.accounting.deltas import default_delta, delta_warning
from privctl.cli import run
from verify.texts.warnings.forms import DELTA

FACTS = [
    "--epochs",
    "10",
    "--learning-rate",
    "5e-5",
    "--clip-norm",
    "1",
    "--dataset-size",
    "1000",
    "--batch-size",
    "5",
    "--dry-run",
]
MEETS = "so that publishing each with probability delta would meet it; choose a delta such as"


def test_what_is_near_and_what_is_not() -> None:
    assert delta_warning(1e-4, 1000) is None
    assert delta_warning(1.01e-4, 1000) == f"delta 0.000101 is not far below 1 / 1000 examples, {MEETS} 0.0001"
    assert delta_warning(1e-3, 1000) == f"delta 0.001 is at least 1 / 1000 examples, {MEETS} 0.0001"
    assert delta_warning(0.5, 1) == f"delta 0.5 is not far below 1 / 1 examples, {MEETS} 0.1"
    assert delta_warning(1e-5, 60_000) == f"delta 1e-05 is not far below 1 / 60000 examples, {MEETS} 1e-06"


def test_verify_knows_the_sentence_as_it_is_and_as_it_was() -> None:
    now = delta_warning(1e-3, 1000) or ""
    before = now.replace("examples", "records").replace("publishing each", "publishing each record")
    assert before.startswith("delta 0.001 is at least 1 / 1000 records, so that publishing each record with")
    assert re.fullmatch(DELTA, now)
    assert re.fullmatch(DELTA, before)
    assert not re.fullmatch(DELTA, now.replace("examples", "records"))
    assert not re.fullmatch(DELTA, now.replace("at least", "far below"))


@pytest.mark.parametrize("records", [1, 2, 60, 999, 20_000, 50_000, 10**6, 10**9, 10**12])
def test_the_default_and_what_is_advised_are_far_enough(records: int) -> None:
    assert delta_warning(default_delta(records), records) is None
    near = delta_warning(0.9, records) or ""
    assert delta_warning(float(near.split()[-1]), records) is None


def test_noise_warns(tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": np.ones((4, 4), np.float32)}, {})
    assert run(["noise", str(model), *FACTS, "--dry-run", "--delta", "0.5"]) == 0
    assert capsys.readouterr().err == f"privctl: delta 0.5 is at least 1 / 1000 examples, {MEETS} 0.0001\n"
    for quiet in (["--delta", "0.5", "-q"], ["--delta", "1e-5"], []):
        assert run(["noise", str(model), *FACTS, "--dry-run", *quiet]) == 0
        assert capsys.readouterr().err == ""


def test_account_and_secrets_plan_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account = ["account", "--noise-multiplier", "1", "--dataset-size", "100", "--batch-size", "10", "--epochs", "1"]
    data, secrets = tmp_path / "train.jsonl", tmp_path / "secrets.jsonl"
    data.write_text("".join(f'{{"text": "record {i}"}}\n' for i in range(100)))
    secrets.write_text(json.dumps({"id": "one", "kind": "word", "records": [0]}))
    plan = ["secrets", "plan", str(data), "--secrets", str(secrets), "--steps", "5", "--batch-size", "10"]
    for call in ([*account, "--no-peers"], plan):
        assert run([*call, "--delta", "0.02"]) == 0
        assert f"delta 0.02 is at least 1 / 100 examples, {MEETS} 0.001" in capsys.readouterr().err
        assert run([*call, "--delta", "1e-6"]) == 0
        assert "delta" not in capsys.readouterr().err


def test_retrain_warns(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "the cat sat"}\n' * 200)
    call = ["retrain", "dp-sgd", str(start), "--data", str(data), "--noise-multiplier", "1", "--steps", "1"]
    assert run([*call, "--batch-size", "4", "--device", "cpu", "--delta", "0.004", "-o", str(tmp_path / "out")]) == 0
    assert f"delta 0.004 is not far below 1 / 200 examples, {MEETS} 0.0001" in capsys.readouterr().err
