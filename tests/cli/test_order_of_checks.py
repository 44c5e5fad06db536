"""What is wrong with a call is said in one order: its options, then missing inputs, then files in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privctl.cli import run

AUDIT = ["audit", "model", "--members", "data.jsonl", "--nonmembers"]
ACCOUNT = ["account", "--delta", "1e-5", "-o", "out"]
RETRAIN = ["retrain", "dp-sgd", "model", "--task", "causal-lm", "--data", "data.jsonl", "-o", "out"]
PLAN = ["secrets", "plan", "data.jsonl", "--steps", "5", "--batch-size", "1", "-o", "out.safetensors", "--secrets"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and data that nothing may read, and outputs that are in the way."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    for name in ("data.jsonl", "out", "out.jsonl", "out.safetensors", "model.audit.report.json"):
        Path(name).write_text("{}\n")


@pytest.mark.parametrize(
    "call",
    [
        [*AUDIT, "nope"],
        ["audit", "nope", *AUDIT[2:], "data.jsonl", "-o", "out"],
        ["audit", "model", "--canaries", "nope"],
        ["audit", "model", "--train", "nope", "-o", "out"],
        ["audit", "scores", "nope", "-o", "out"],
        ["audit", "scores", "nope", "--models", "-o", "out"],
        ["retrain", "plain", "model", "--task", "causal-lm", "--data", "nope", "-o", "out"],
        ["retrain", "plain", "model", "--task", "causal-lm", "--data", "data.jsonl", "--held-out", "nope", "-o", "out"],
        ["retrain", "ferret", "model", "--replay", "nope", "-o", "out"],
        ["verify", "nope", "-o", "out"],
        ["verify", "data.jsonl", "--data", "nope", "-o", "out"],
        ["secrets", "scan", "nope", "-o", "out.jsonl"],
        [*PLAN, "nope"],
        [*ACCOUNT, "--noise-multiplier", "1", "--data", "nope", "--batch-size", "1", "--epochs", "1"],
        [*ACCOUNT, "--ledger", "nope"],
        ["report", "nope", "-o", "out"],
        ["canary", "plant", "nope", "-o", "out"],
        ["canary", "plant", "data.jsonl", "--prefix-from", "nope", "-o", "out"],
    ],
    ids=" ".join,
)
def test_a_missing_input_is_named_before_a_file_in_the_way(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*call, "-q"]) == 3
    assert "nope" in (stderr := capsys.readouterr().err)
    assert "exists; give --force" not in stderr
    assert len(os.listdir()) == 6


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (["audit", "model", "--members", "nope"], "give both --members and --nonmembers"),
        (["audit", "model", "--canaries", "nope", "--claim", "1"], "--claim 1 is not an epsilon and a delta"),
        (["audit", "scores", "nope", "--claim", "1,1e-5", "-o", "out"], "--claim needs scores of many models"),
        ([*PLAN, "nope", "--cap", "1,2"], "--cap"),
        ([*ACCOUNT, "--noise-multiplier", "1", "--epsilon", "1"], "give one of --epsilon"),
        ([*ACCOUNT, "--ledger", "nope", "--steps", "3"], "--steps does not apply"),
        ([*ACCOUNT, "--noise-multiplier", "1", "--data", "nope", "--batch-size", "1"], "--epochs is missing"),
        (["report", "nope", "-o", "out", "--title", ""], "--title has 0 characters"),
        (RETRAIN, "needs either --epsilon or --noise-multiplier"),
        ([*RETRAIN, "--epsilon", "1", "--resize", "2", "2"], "--resize does not apply"),
    ],
)
def test_an_option_is_refused_before_any_file_is_looked_for(
    call: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*call, "-q"]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    "call",
    [
        [*AUDIT, "data.jsonl"],
        ["secrets", "scan", "data.jsonl", "-o", "out.jsonl"],
        [*ACCOUNT, "--noise-multiplier", "1"],
        [*ACCOUNT, "--noise-multiplier", "1", "--data", "data.jsonl", "--batch-size", "1", "--epochs", "1"],
        ["report", "data.jsonl", "-o", "out"],
        [*RETRAIN, "--epsilon", "1"],
    ],
    ids=" ".join,
)
def test_a_file_in_the_way_is_named_before_any_work(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The model is an empty folder and the data no records: whoever read them would say so."""
    assert run([*call, "-q"]) == 2
    # a folder is made by retrain, and --force puts none where a file is
    message = "exists and is no folder; choose another --output" if call[0] == "retrain" else "exists; give --force"
    assert message in capsys.readouterr().err
