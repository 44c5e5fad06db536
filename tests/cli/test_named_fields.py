"""Fields named to a training: its report states them, and later commands use them."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.files import read_report
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.show.gather.next_step import next_step
from tests.models.tasks.small import architecture, words

_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each user's ``body``; every record has a ``text`` too, its letters reversed."""
    folder = tmp_path_factory.mktemp("fields")
    words().tokenizer.save_pretrained(architecture(folder / "start", "gpt2", n_layer=1))
    for name in ("train", "other"):
        drawn = random.Random(name)
        bodies = [" ".join(drawn.choices(_WORDS, k=6)) for _ in range(40)]
        rows = [{"text": body[::-1], "body": body, "who": f"{name}{i % 10}"} for i, body in enumerate(bodies)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ["retrain", "clipped", str(folder / "start"), "--data", str(folder / "train.jsonl"), "--unit", "who"]
    more = ["--text-column", "body", "-o", str(folder / "model"), "--batch-size", "5", "--epochs", "1"]
    assert run([*call, *more, "--from-scratch", "--optimizer", "sgd", "--device", "cpu"]) == 0
    return folder


def audited(trained: Path, name: str, *more: str) -> Path:
    report_path = trained / f"{name}.report.json"
    files = ["--members", str(trained / "train.jsonl"), "--nonmembers", str(trained / "other.jsonl")]
    call = ["audit", "membership", str(trained / "model"), *files, "--attack", "loss", "--device", "cpu"]
    assert run([*call, "-o", str(report_path), *more]) in (0, 3)
    return report_path


def test_verify_counts_by_the_fields_of_the_report(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = parameters_as(TrainingParameters, read_report(trained / "model.report.json"))
    assert (stated.text_column, stated.label_column) == ("body", None)
    (trained / "bodies.jsonl").write_text(
        "".join(
            json.dumps({key: value for key, value in json.loads(line).items() if key != "text"}) + "\n"
            for line in (trained / "train.jsonl").read_text().splitlines()
        )
    )
    capsys.readouterr()
    run(["verify", str(trained / "model"), "--data", str(trained / "bodies.jsonl"), "-v"])
    assert "bodies.jsonl holds 10 examples, as the report says" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", str(trained / "model"), "--data", str(trained / "bodies.jsonl"), "--text-column", "no"]) == 3


def test_an_audit_goes_by_the_fields_of_the_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = audited(trained, "as-trained")
    stderr = " ".join(capsys.readouterr().err.split())
    assert "goes by --text-column body --group-by who, as model.report.json says" in stderr
    assert "--group-by none" in stderr
    stated = parameters_as(AuditParameters, read_report(path))
    assert stated.asked is not None
    assert (stated.asked.text_column, stated.group_by) == ("body", "who")
    words = shlex.split(next_step(read_report(path), path).command)
    assert words[words.index("--group-by") + 1] == "who"
    assert words[words.index("--text-column") + 1] == "body"
    other = audited(trained, "other", "--text-column", "text", "--group-by", "who")
    said_of_it = " ".join(capsys.readouterr().err.split())
    assert "goes by --text-column text, which model.report.json does not name as a field of the training" in said_of_it
    assert "as model.report.json says" not in said_of_it
    words = shlex.split(next_step(read_report(other), other).command)
    assert "text" in words[words.index("--text-column") :]


@pytest.mark.forged("the field that an audit read")
def test_another_field_than_was_audited_is_noticed(trained: Path) -> None:
    path = audited(trained, "edited")
    assert run(["verify", str(path), "-q"]) in (0, 3)
    report = json.loads(path.read_text())
    report["parameters"]["asked"]["text_column"] = "text"
    path.write_text(json.dumps(report))
    assert run(["verify", str(path), "-q"]) == 1


def test_records_of_users_are_judged_alone_where_asked(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = audited(trained, "alone", "--group-by", "none")
    assert "--group-by" not in capsys.readouterr().err
    assert parameters_as(AuditParameters, read_report(path)).group_by is None
    step = next_step(read_report(path), path)
    words = shlex.split(step.command)
    assert words[words.index("--group-by") + 1] == "who"
    assert "as the training protected them" in step.advice


def test_users_whom_a_file_does_not_name_are_judged_by_records(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nameless = [json.loads(line) for line in (trained / "other.jsonl").read_text().splitlines()]
    (trained / "nameless.jsonl").write_text("".join(json.dumps({"body": row["body"]}) + "\n" for row in nameless))
    report_path = trained / "nameless.report.json"
    files = ["--members", str(trained / "train.jsonl"), "--nonmembers", str(trained / "nameless.jsonl")]
    call = ["audit", "membership", str(trained / "model"), *files, "--attack", "loss", "--device", "cpu"]
    assert run([*call, "-o", str(report_path)]) in (0, 3)
    stderr = " ".join(capsys.readouterr().err.split())
    assert "nameless.jsonl line 1 lacks 'who': single records are judged, which says less" in stderr
    assert parameters_as(AuditParameters, read_report(report_path)).group_by is None


def test_an_audit_replaces_no_report_of_a_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--members", str(trained / "train.jsonl"), "--nonmembers", str(trained / "other.jsonl")]
    before = (trained / "model.report.json").read_bytes()
    assert run(["audit", str(trained / "model"), *files, "-o", str(trained / "model.report.json"), "--force"]) == 2
    assert "is the report of another step (retrain)" in " ".join(capsys.readouterr().err.split())
    assert (trained / "model.report.json").read_bytes() == before


def test_a_report_is_no_model_to_audit(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--members", str(trained / "train.jsonl"), "--nonmembers", str(trained / "other.jsonl")]
    assert run(["audit", str(trained / "model.report.json"), *files]) == 2
    assert "model.report.json is a report; give the model that it describes" in capsys.readouterr().err


def test_a_training_says_how_to_audit_it(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["retrain", "clipped", str(trained / "start"), "--data", str(trained / "train.jsonl"), "--epochs", "1"]
    more = ["--from-scratch", "--device", "cpu", "--batch-size", "5", "--optimizer", "sgd", "--text-column", "body"]
    held_out = str(trained / "other.jsonl")
    for name, known, others in (("unevaluated", [], "OTHERS.jsonl"), ("evaluated", ["--held-out", held_out], held_out)):
        capsys.readouterr()
        assert run([*call, *more, *known, "-o", str(trained / name)]) == 0
        stderr = capsys.readouterr().err
        files = f"--members {trained / 'train.jsonl'} --nonmembers {others}"
        assert f"audit it: privctl audit {trained / name} {files}\n" in stderr
        assert ("without --held-out nothing measured how useful the model is" in stderr) is (not known)
