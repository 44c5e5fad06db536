"""Files that change while a command reads them end it with an error: none is named that was not the one read."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.reports.files import read_report
from privctl.storage.digest import bytes_digest
from tests.cli.short_runs import prepared, texts
from tests.few import few


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A command, the file that it reads, and a function that it calls once that was read."""

    command: tuple[str, ...]
    file: str
    called: str


SCAN = ("secrets", "scan", "data.jsonl", "-o", "out.jsonl")
PLAN = (
    *("secrets", "plan", "data.jsonl", "--secrets", "book.jsonl", "--steps", "10", "--batch-size", "4"),
    *("-o", "out.safetensors"),
)
READINGS = {
    "scores": Reading(
        command=("audit", "scores", "s.csv"), file="s.csv", called="audits.record_scores.audit:read_record_scores"
    ),
    "scores of models": Reading(
        command=("audit", "scores", "m.csv", "--models"),
        file="m.csv",
        called="audits.model_scores.threshold:audit_scores",
    ),
    "plan": Reading(command=PLAN, file="data.jsonl", called="privctl.secrets.plan.sweep:identified_texts"),
    "book": Reading(command=PLAN, file="book.jsonl", called="privctl.secrets.plan.sweep:read_secrets"),
    "split": Reading(
        command=("audit", "split", "data.jsonl", "-o", "out"),
        file="data.jsonl",
        called="audits.split.draw:commitment_of",
    ),
    "canaries": Reading(
        command=("canary", "plant", "data.jsonl", "-o", "out.jsonl"),
        file="data.jsonl",
        called="audits.canaries.plant:commitment_of",
    ),
    "scan": Reading(command=SCAN, file="data.jsonl", called="privctl.secrets.scan.run:find"),
    "literals": Reading(
        command=(*SCAN, "--literals", "listed.txt"), file="listed.txt", called="privctl.secrets.scan.run:find"
    ),
    "shard": Reading(
        command=(*SCAN, "--shard", "1/2"), file="data.jsonl", called="privctl.secrets.scan.shard:find_in_shard"
    ),
    "facts": Reading(
        command=("noise", "own.safetensors", "--facts", "facts.json", "--epsilon", "8", "-o", "out.safetensors"),
        file="facts.json",
        called="privctl.noise.privatize:check_grain",
    ),
}


#: Of a ledger.
EVENTS = [{"type": "laplace", "scale": 9, "steps": 3}]


def changing(file: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        found = function(*args, **more)
        file.write_bytes(b"\n" + file.read_bytes())
        return found

    return call


#: Each with a change, then each without.
CASES = [(name, change) for change in (True, False) for name in READINGS]


@pytest.mark.parametrize(("name", "change"), few(CASES, *range(len(READINGS) + 1)))
def test_a_file_that_changes_while_it_is_read_is_not_named(
    name: str, change: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"text": f"mail a{i}@example.org"}) for i in range(40)]
    Path("data.jsonl").write_text("\n".join(rows) + "\n")
    Path("listed.txt").write_text("mail\n")
    Path("s.csv").write_text("id,member,score\na,1,1\nb,0,2\nc,1,3\nd,0,4\n")
    Path("m.csv").write_text("member,score\n1,1\n1,2\n0,1\n0,3\n")
    Path("book.jsonl").write_text(json.dumps({"id": "s", "kind": "email", "records": [0, 3]}) + "\n")
    facts = {"epochs": 1, "learning_rate": 0.01, "clip_norm": 1.0, "dataset_size": 1000, "batch_size": 10}
    Path("facts.json").write_text(json.dumps(facts))
    save_file({"weight": np.full((30, 20), 0.5, np.float32)}, "own.safetensors")
    reading = READINGS[name]
    module, function = reading.called.split(":")
    if change:
        found = importlib.import_module(module)
        monkeypatch.setattr(found, function, changing(Path(reading.file), getattr(found, function)))
    assert run([*reading.command, "-q"]) == (ExitCode.BAD_INPUT if change else ExitCode.OK)
    assert (f"{reading.file} was changed while it was read" in capfd.readouterr().err) is change
    assert bool([*Path().glob("out*"), *Path().glob("*.report.json")]) is not change or name == "split"
    assert Path("out/manifest.json").exists() is (not change and name == "split")


@pytest.mark.forged("the ledger is another one by now")
@pytest.mark.parametrize("piped", [False, True])
def test_a_plan_names_the_ledger_that_it_was_made_from(
    piped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once, so that a pipe is named by what came through it."""
    content, ledger, plan = json.dumps(EVENTS).encode(), tmp_path / "events.json", tmp_path / "plan.report.json"
    ledger.write_bytes(content)
    ledger_path = ledger
    if piped:
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        ledger_path = Path(f"/dev/fd/{reader}")
    codec = importlib.import_module("privctl.reports.codec")
    monkeypatch.setattr(codec, "decode_events", changing(ledger, codec.decode_events))
    assert run(["account", "--ledger", str(ledger_path), "--delta", "1e-5", "--json", "-q", "-o", str(plan)]) == 0
    if piped:
        os.close(reader)
    (source,) = read_report(plan).inputs
    assert (source.digest, source.bytes) == (bytes_digest(content), len(content))


@pytest.mark.forged("the held-out records are others by now")
def test_a_training_names_the_held_out_records_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = prepared(tmp_path, 8)
    held = tmp_path / "held.jsonl"
    texts(held, 4, who="dog")
    call = ["retrain", "plain", str(folder / "start"), "--data", str(folder / "train.jsonl"), "--held-out", str(held)]
    call += ["--epochs", "1", "--batch-size", "8", "-q", "-o"]
    module = importlib.import_module("privctl.train.preparation.prepare")
    with monkeypatch.context() as while_read:
        while_read.setattr(module, "other_task", changing(held, module.other_task))
        assert run([*call, str(tmp_path / "no")]) == ExitCode.BAD_INPUT
    assert "held.jsonl was changed while it was read" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "no").exists()
    content = held.read_bytes()
    runs = importlib.import_module("privctl.train.runs.gradient_training")
    monkeypatch.setattr(runs, "measure_held_out", changing(held, runs.measure_held_out))
    assert run([*call, str(tmp_path / "out")]) == ExitCode.OK
    (named,) = [item for item in read_report(tmp_path / "out.report.json").inputs if item.role == "held-out"]
    assert (named.digest, named.bytes) == (bytes_digest(content), len(content))
