"""A private training on records that chose, without noise, the layers or the run of the weights that it begins with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.guarantee import Status
from privctl.storage.digest import file_digest
from privctl.train.steps.loop import Trainer
from tests.cli.dpquant_runs import WORDS, call, records, report_of
from tests.verify.consistency.test_begun_with import edited

_SEARCH = ("--search", "learning-rate=1e-3,1e-4", "--expected-runs", "1.5")


def written(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def chosen(start: Path, by: str, folder: Path, public: Path) -> Path:
    """A model whose layers, or whose run of a search, were chosen by ``public``."""
    output, data = folder / "first", records(folder / "train.jsonl")
    if by == "layers":
        assert run(call(start, data, output, "--epsilon", "3", "--measure-on", str(public))) == 0
        return output
    return private(start, data, output, "--held-out", str(public), *_SEARCH)


def private(start: Path, data: Path, output: Path, *more: str) -> Path:
    asked = ("--batch-size", "12", "--epochs", "1", "--epsilon", "3", "--micro-tokens", "160", "--device", "cpu")
    assert run(["retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(output), "-q", *asked, *more]) == 0
    return output


@pytest.mark.parametrize("by", ["layers", "run"])
def test_a_training_on_what_chose_its_start_is_void(
    start_of_two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    public = written(tmp_path / "public.jsonl", *(f"the old {word} sat on a mat" for word in WORDS * 2))
    start = chosen(start_of_two_layers, by, tmp_path, public)
    others = [f"a very old {word} and a dog" for word in WORDS * 2]
    cases = {
        "file": (public, Status.VOID),
        "record": (written(tmp_path / "more.jsonl", *others, "the old dog sat on a mat"), Status.VOID),
        "other": (written(tmp_path / "other.jsonl", *others), Status.CONDITIONAL),
    }
    for name, (data, status) in cases.items():
        output = private(start, data, tmp_path / name)
        assert report_of(output).guarantees[0].status is status, name
        report_path = output.with_name(f"{name}.report.json")
        assert run(["verify", str(report_path)]) == 0, capsys.readouterr().out
        assert run(["verify", str(edited(report_path, parents=True))]) == (status is Status.VOID)


def test_a_report_names_what_layers_were_measured_on(
    start_of_two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = written(tmp_path / "public.jsonl", *(f"the old {word} sat on a mat" for word in WORDS * 2))
    output = chosen(start_of_two_layers, "layers", tmp_path, public)
    named = [artifact.path for artifact in report_of(output).inputs if artifact.role == "measured"]
    assert named == ["public.jsonl"]
    report_path = output.with_name("first.report.json")
    honest = json.loads(report_path.read_text())
    assert run(["verify", str(report_path)]) == 0, capsys.readouterr().out
    other = dict(honest, parameters={**honest["parameters"], "measured_public_digest": "blake3:" + "0" * 64})
    report_path.write_text(json.dumps(other))
    assert run(["verify", str(report_path)]) == 1
    assert "measured_public_digest is not the digest of the file" in " ".join(capsys.readouterr().out.split())
    earlier = dict(honest, inputs=[each for each in honest["inputs"] if each["role"] != "measured"])
    report_path.write_text(json.dumps(earlier))
    assert run(["verify", str(report_path)]) == 0, "reports of earlier versions have the digest alone"
    again = private(output, public, tmp_path / "again")
    assert report_of(again).guarantees[0].status is Status.VOID


def test_a_run_goes_on_with_the_records_that_it_measured_layers_on(
    start_of_two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report would name others than those that chose the first layers."""
    public = written(tmp_path / "public.jsonl", *(f"the old {word} sat on a mat" for word in WORDS))
    asked = call(start_of_two_layers, records(tmp_path / "train.jsonl"), tmp_path / "out", "--epsilon", "3")
    asked += ["--measure-on", str(public)]

    save = Trainer._save

    def interrupted(*arguments: Any) -> None:
        save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", interrupted)
        assert run(asked) == 130
    first = public.read_text()
    written(public, *(f"the old {word} sat on a dog" for word in WORDS))
    capsys.readouterr()
    assert run([*asked, "--resume"]) == 2
    assert "was begun with another file as --measure-on" in " ".join(capsys.readouterr().err.split())
    public.write_text(first)
    assert run([*asked, "--resume"]) == 0


@pytest.mark.parametrize("by", ["layers", "run"])
def test_verify_finds_a_private_record_among_those_that_chose(
    start_of_two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """A report that names another file in place of the one that was refused, or of a run by another program."""
    public = written(tmp_path / "public.jsonl", *(f"the old {word} sat on a mat" for word in WORDS * 2))
    report_path = chosen(start_of_two_layers, by, tmp_path, public).with_name("first.report.json")
    own = [json.loads(line)["text"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    other = written(tmp_path / "other.jsonl", "a very old dog and a very old cat and a dog", own[5].upper())
    report = json.loads(report_path.read_text())
    for artifact in report["inputs"]:
        if artifact["role"] in ("measured", "held-out"):
            artifact |= {"path": other.name, "digest": file_digest(other), "bytes": other.stat().st_size}
    if by == "layers":
        report["parameters"]["measured_public_digest"] = file_digest(other)
    report_path.write_text(json.dumps(report))
    assert run(["verify", str(report_path)]) == 1
    assert "record 2 of other.jsonl is a private one" in " ".join(capsys.readouterr().out.split())
