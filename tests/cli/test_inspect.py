"""``privctl inspect``: tensors, digests and the chain."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import privctl
from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_model_without_a_report(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W, "s": np.array(4, np.int64)})
    assert run(["inspect", str(model)]) == 0
    stdout = capsys.readouterr().out
    assert blake3(W.tobytes()).hexdigest()[:12] in stdout
    assert "2x3" in stdout
    assert "24 B" in stdout
    assert f"blake3:{blake3(model.read_bytes()).hexdigest()}" in stdout
    assert "scalar" in stdout
    assert "no report" in stdout


def test_json_decodes(tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W})
    assert run(["inspect", str(model), "--json"]) == 0
    report = decode(capsys.readouterr().out, "stdout")
    assert report.step == "inspect"
    assert report.inputs[0].digest == "blake3:" + blake3(model.read_bytes()).hexdigest()
    assert report.inputs[0].tensors[0].digest == "blake3:" + blake3(W.tobytes()).hexdigest()


def test_a_report_that_is_named_but_gone(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W}, {"privctl.report": "gone.report.json"})
    assert run(["inspect", str(model)]) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_a_report_named_by_the_user_must_be_one(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W})
    (tmp_path / "other.json").write_text("{}")
    for name in ("none.json", "other.json"):
        assert run(["inspect", str(model), "--report", str(tmp_path / name)]) == 3
        assert name in capsys.readouterr().err


@pytest.fixture
def two(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    """Two models with noise and their reports, m.private and n.private."""
    facts = ["--epochs", "1", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "10", "--batch-size", "5"]
    rng = np.random.default_rng(0)
    for name in "mn":
        weights = {key: rng.standard_normal((40, 5)).astype(np.float32) for key in "ab"}
        model = write_model(tmp_path / f"{name}.safetensors", weights)
        assert run(["noise", str(model), "-q", "--epsilon", "1", *facts]) == 0
    return tmp_path


def test_a_report_of_other_weights_in_place_of_its_own(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = (two / "n.private.report.json").read_text()
    for text, message in (
        (report, "the report describes other weights: none of its outputs is this file"),
        (
            report.replace("n.private.safetensors", "m.private.safetensors"),
            "its digest is not the one recorded, and no tensor's is: the report describes other weights",
        ),
    ):
        (two / "m.private.report.json").write_text(text)
        capsys.readouterr()
        assert run(["inspect", str(two / "m.private.safetensors"), "-q"]) == 1
        assert f"REFUTED: m.private.safetensors: {message}" in " ".join(capsys.readouterr().out.split())


def test_a_report_of_other_weights_beside_the_model(
    two: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = two / "m.private.safetensors"
    message = "describes other weights: it says nothing of this model"
    shutil.copy(model, two / "n.safetensors")
    shutil.copy(two / "n.private.report.json", two / "n.report.json")
    (two / "m.report.json").write_text("{}")  # another program's
    capsys.readouterr()
    # The header leads to the right report; the name to another one.
    assert run(["inspect", str(two / "n.safetensors"), "-q"]) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    assert "REFUTED: n.report.json: by the model's name or header" in stdout
    assert message in stdout
    assert run(["inspect", str(two / "n.safetensors"), "-q", "--json"]) == 1
    found = decode(capsys.readouterr().out, "stdout")
    assert [v.subject for v in found.verdicts if v.outcome is Outcome.REFUTED] == ["n.report.json"]
    # The header names no report; the name leads to one.
    write_model(model, {"a": W})
    assert run(["inspect", str(model), "-q"]) == 1
    assert message in " ".join(capsys.readouterr().out.split())
    # Neither the right report nor one of something else is in the way.
    for name in ("m", "n.private"):
        assert run(["inspect", str(two / f"{name}.safetensors"), "-q"]) == 0
        assert message not in " ".join(capsys.readouterr().out.split())


def test_a_report_beside_the_model_that_fits_is_its_own(
    two: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop of the user's own writes a report, and weights whose header names none."""
    model, report_path = write_model(two / "own.safetensors", {"a": W}), two / "own.report.json"
    privctl.from_opacus([(1.0, 0.1, 10)], model, examples=60, output=report_path)
    capsys.readouterr()
    assert run(["inspect", str(model), "-q"]) == 0
    assert "PROVED: the digests of own.safetensors are those recorded" in " ".join(capsys.readouterr().out.split())
    write_model(model, {"a": W + 1})
    assert run(["inspect", str(model), "-q"]) == 1
    assert "describes other weights" in " ".join(capsys.readouterr().out.split())


def test_a_model_and_its_report_that_were_both_renamed(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a vendor sends them: the header names a report that is not there, and the one beside it fits."""
    (sent := two / "sent").mkdir()
    shutil.move(two / "m.private.safetensors", sent / "vendor.safetensors")
    shutil.move(two / "m.private.report.json", sent / "delivery.report.json")
    capsys.readouterr()
    assert run(["inspect", str(sent / "vendor.safetensors"), "-q"]) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("These files are those that the model's report describes; it states")
    assert "delivery.report.json" in stdout


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda two: None, "These files are those that the model's report describes; it states a privacy guarantee,"),
        (
            lambda two: (two / "m.private.report.json").unlink(),
            "Nothing is known of what this model reveals: its",
        ),
        (
            lambda two: shutil.copy(two / "n.private.safetensors", two / "m.private.safetensors"),
            "Do not rely on the reports: m.private.report.json is not what they describe.",
        ),
        (lambda two: (two / "m.safetensors").unlink(), "These files are those that the model's report describes;"),
    ],
    ids=["as made", "no report", "other weights", "no start"],
)
def test_the_first_sentence_says_what_to_rely_on(
    two: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], sentence: str
) -> None:
    change(two)
    capsys.readouterr()
    run(["inspect", str(two / "m.private.safetensors"), "-q"])
    assert " ".join(capsys.readouterr().out.split()).startswith(sentence)


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\xff" * 7)
    assert run(["inspect", str(tmp_path / "m.safetensors")]) == 3
    assert "truncated" in capsys.readouterr().err


def test_the_chain_stands_before_the_tensors(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(two / "n.private.safetensors"), "-q"]) == 0
    stdout = capsys.readouterr().out
    assert stdout.index("n.private.report.json") < stdout.index("tensor ")
    assert not [line for line in stdout.splitlines() if line != line.rstrip()]


def test_what_may_be_given_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "start").mkdir()
    assert run(["inspect", str(tmp_path / "start")]) == 3
    assert "give a .safetensors file, or a folder that holds one" in capsys.readouterr().err
    (tmp_path / "start" / "config.json").write_text("{}")
    assert run(["inspect", str(tmp_path / "start")]) == 3
    assert "holds a config.json and no weights: an architecture" in capsys.readouterr().err
    (tmp_path / "members.jsonl").write_text('{"text": "a"}\n')
    assert run(["inspect", str(tmp_path / "members.jsonl")]) == 3
    assert "is no log of audits; inspect takes one (NAME.audits.jsonl), a model's folder" in capsys.readouterr().err


def test_the_tensors_of_all_layers_are_on_one_line(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {f"h.{i}.{kind}.weight": W + i for i in range(12) for kind in ("q", "v")}
    model = write_model(tmp_path / "m.safetensors", {**layers, "h.12.q.weight": W.T.copy(), "head": W})
    assert run(["inspect", str(model)]) == 0
    stdout = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1:6] for line in stdout if line[:1] == ["h.*.q.weight"]] == [["12", "F32", "2x3", "288", "B"]]
    assert [line[1] for line in stdout if line[:1] in (["h.*.v.weight"], ["head"])] == ["12", "1"]
    assert [line[3] for line in stdout if line[:1] == ["h.12.q.weight"]] == ["3x2"]
    assert run(["inspect", str(model), "--verbose"]) == 0
    stdout = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(line[:1] == [name] for line in stdout for name in layers) == len(layers)
    assert any(blake3((W + 3).tobytes()).hexdigest()[:12] in " ".join(line) for line in stdout)
