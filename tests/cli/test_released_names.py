"""Names that are released with the weights: what was collected from the data leaves no guarantee, and that is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from privctl.cli import run
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report
from tests.few import few

TEXTS = ("the cat sat on the mat", "a dog", "very old", "the old dog and the cat") * 10
TASK = ("--task", "text-classification")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "labelled.jsonl", TEXTS)


def written(path: Path, texts: tuple[str, ...]) -> Path:
    lines = (json.dumps({"text": text, "label": "ny"[i % 2]}) for i, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n")
    return path


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def call(method: str, model: Path, data: Path, *more: str) -> list[str]:
    few = ("--steps", "3") if method != "clipped" else ("--epochs", "1")
    return [
        "retrain",
        method,
        str(model),
        "--data",
        str(data),
        *TASK,
        "--batch-size",
        "10",
        "--device",
        "cpu",
        "--micro-tokens",
        "160",
        *few,
        *more,
    ]


@pytest.mark.parametrize(
    ("way", "forms"),
    [
        (("dp-sgd",), ("n,y", "n, y", "names.txt")),
        # Its names are collected as dp-sgd's are.
        pytest.param(("dpquant", "--format", "fp8"), ("n,y",), marks=pytest.mark.slow),
        pytest.param(
            ("ferret", "--release", "gaussian", "--fire-probability", "0.5"), ("n,y",), marks=pytest.mark.slow
        ),
    ],
)
def test_class_names_from_the_data_void_the_guarantee(
    way: tuple[str, ...],
    forms: tuple[str, ...],
    data: Path,
    start: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = call(way[0], start, data, *way[1:], "--epsilon", "3")
    assert run([*arguments, "-o", str(tmp_path / "a")]) == 0
    stderr = " ".join(capsys.readouterr().err.split())
    guarantee = report_of(tmp_path / "a").guarantees[0]
    states = {a.name: a.state for a in guarantee.assumptions}
    assert (guarantee.status, states["labels"]) == (Status.VOID, AssumptionState.VIOLATED)
    assert report_of(tmp_path / "a").parameters["collected_from_data"] == ["labels"]
    assert "the names of the classes were collected from the private examples" in stderr
    assert "the guarantee will be void; give --labels a,b,c, or a file with one name a line" in stderr
    assert stderr.index("will be void") < stderr.index("wrote")
    names = tmp_path / "names.txt"
    names.write_text("n\ny\n")
    for form in forms:
        labels = form.replace("names.txt", str(names))
        output = tmp_path / f"b{len(labels)}"
        assert run([*arguments, "-o", str(output), "--labels", labels]) == 0
        assert "void" not in capsys.readouterr().err
        assert report_of(output).guarantees[0].status is Status.CONDITIONAL
        states = {a.name: a.state for a in report_of(output).guarantees[0].assumptions}
        assert states["labels"] is AssumptionState.ASSERTED
        assert AutoModelForSequenceClassification.from_pretrained(output).config.id2label == {0: "n", 1: "y"}
    assert run([*arguments, "-o", str(tmp_path / "c"), "--labels", "nothing-there"]) == 3
    assert "is neither a list such as a,b,c nor a file" in capsys.readouterr().err
    assert run([*arguments, "-o", str(tmp_path / "c"), "--labels", "n,,y"]) == 2
    assert not (tmp_path / "c").exists()


def test_names_that_another_training_collected_from_the_same_data_void_it_too(
    data: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose folder has them, without its weights: by its report they came from these very records."""
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((start / "config.json").read_bytes())
    first = tmp_path / "first"
    assert run([*call("plain", bare, data, "--from-scratch", "--vocabulary", "private"), "-o", str(first)]) == 0
    capsys.readouterr()
    again = call("dp-sgd", first, data, "--from-scratch", "--epsilon", "3")
    assert run([*again, "-o", str(tmp_path / "again")]) == 0
    assert "the names of the classes were collected from the private examples" in " ".join(
        capsys.readouterr().err.split()
    )
    report = report_of(tmp_path / "again")
    assert report.guarantees[0].status is Status.VOID
    assert report.parameters["collected_from_data"] == ["vocabulary", "labels"]
    assert run(["verify", str(tmp_path / "again.report.json"), "-q"]) == 0
    words = tmp_path / "words.txt"
    words.write_text("the\ncat\n")
    assert run([*again, "--labels", "n,y", "--vocabulary", str(words), "-o", str(tmp_path / "given")]) == 0
    assert report_of(tmp_path / "given").guarantees[0].status is Status.CONDITIONAL
    other = written(tmp_path / "other.jsonl", TEXTS[::-1])
    assert run([*call("dp-sgd", first, other, "--from-scratch", "--epsilon", "3"), "-o", str(tmp_path / "other")]) == 0
    assert report_of(tmp_path / "other").guarantees[0].status is Status.CONDITIONAL


def test_numbered_classes_are_the_model_s(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As parquet and CSV of public data sets have them: which numbers occur changes nothing that is released."""
    config = json.loads((start / "config.json").read_text())
    numbers = {str(i): f"LABEL_{i}" for i in range(3)}
    (start / "config.json").write_text(json.dumps({**config, "id2label": numbers}))
    for name, labels, expected in (
        ("a", "0120", Status.CONDITIONAL),
        ("b", "0220", Status.CONDITIONAL),
        ("c", "0123", Status.VOID),
    ):
        lines = [
            json.dumps({"text": text, "label": int(label)}) for text, label in zip(TEXTS, labels * 9, strict=False)
        ]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(lines))
        assert run([*call("dp-sgd", start, path, "--epsilon", "3"), "-o", str(tmp_path / name)]) == 0
        assert report_of(tmp_path / name).guarantees[0].status is expected
        assert ("will be void" in capsys.readouterr().err) == (expected is Status.VOID)
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()


def test_class_names_from_the_data_void_what_noise_makes(
    data: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more, expected in (("a", (), Status.VOID), ("b", ("--labels", "n,y"), Status.CONDITIONAL)):
        assert run([*call("clipped", start, data, "--optimizer", "sgd", *more), "-q", "-o", str(tmp_path / name)]) == 0
        capsys.readouterr()
        noised = tmp_path / f"{name}-noised"
        assert run(["noise", str(tmp_path / name), "--epsilon", "1", "-q", "-o", str(noised)]) == 0
        found = {g.name: g.status for g in report_of(noised).guarantees}
        assert found["nonconvex"] is expected
        assert ("the training collected it" in " ".join(capsys.readouterr().out.split())) == (name == "a")
        again = tmp_path / f"{name}-again"
        assert run(["noise", str(noised), "--epsilon", "1", "-q", "-o", str(again)]) == 0
        assert (Status.VOID in {g.status for g in report_of(again).guarantees}) == (name == "a")


def test_plain_training_says_nothing_of_class_names(
    data: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*call("plain", start, data), "-o", str(tmp_path / "a")]) == 0
    assert "void" not in capsys.readouterr().err


def test_the_written_tokenizer_does_not_depend_on_the_texts(start: Path, tmp_path: Path) -> None:
    """A tokenizer remembers whether the last text was cut."""
    found = []
    more = ("--epsilon", "8", "--labels", "n,y", "--long", "truncate", "--max-length", "8")
    for name, last in (("a", "the cat sat"), ("b", "the cat sat on the mat and on the old mat sat a dog")):
        path = written(tmp_path / f"{name}.jsonl", (*TEXTS, last))
        assert run([*call("dp-sgd", start, path, *more), "-q", "-o", str(tmp_path / name)]) == 0
        found.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir() if p.suffix != ".safetensors"})
    assert found[0] == found[1]


@pytest.mark.parametrize(("more", "fix"), few([((), "public class names: --labels"), (("--labels", "no,yes"), "")], 0))
def test_the_gate_s_fix_for_collected_names_is_not_a_smaller_budget(
    start: Path, tmp_path: Path, more: tuple[str, ...], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "d.jsonl"
    rows = [{"text": f"the cat sat {i}", "label": "yes" if i % 2 else "no"} for i in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ["retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(tmp_path / "o"), *TASK, "--epsilon", "8"]
    assert run([*call, "--steps", "1", "--batch-size", "8", "-q", *more]) == 0
    capsys.readouterr()
    run(["gate", str(tmp_path / "o.report.json"), "--max-epsilon", "4", "--at-delta", "0.02", "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = (finding for finding in findings if finding["rule"] == "max_epsilon")
    assert found["outcome"] == "fail"
    assert fix in found["fix"]
    assert ("smaller budget" in found["fix"]) is not bool(fix)
