from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audits.canaries.manifest import read_manifest
from privctl.cli import run
from privctl.data.records import read_records
from privctl.reports.codec import decode
from privctl.reports.files import read_report
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from tests.audits.canaries.small import new_model, planted, texts, train
from tests.audits.other import save
from tests.audits.secrets.small import book, protect
from tests.audits.tiny import write_jsonl
from verify.audits.secrets.recounted import recount_secrets

pytestmark = pytest.mark.forged("the plan promises more than it can keep")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Canaries as secrets, a plan that promises too much, and a model that breaks it."""
    folder = tmp_path_factory.mktemp("cli")
    write_jsonl(folder / "data.jsonl", texts(60, 1))
    planted(folder, count=60, prefix_from=folder / "data.jsonl", templates=("pin {digits:5}",), copies=(2,))
    train(new_model(folder / "before"), folder / "data.jsonl", epochs=2)
    shutil.copytree(folder / "before", folder / "model")
    train(folder / "model", folder / "planted.jsonl", epochs=30)
    lines = [record.text for record in read_records(folder / "planted.jsonl")]
    chosen = [canary.secret for canary in read_manifest(folder / "m.json").canaries if canary.included]
    rows = [(value, [i for i, text in enumerate(lines) if value in text]) for value in chosen]
    book(folder / "book.jsonl", rows)
    where = [some for _, some in rows]
    protect(
        folder / "plan.safetensors", folder / "planted.jsonl", where, [0.1] * len(lines), information=1e-7, prior=1e-3
    )
    return folder


def audit(folder: Path, *more: str, model: str = "model") -> int:
    files = ["--secrets", str(folder / "book.jsonl"), "--data", str(folder / "planted.jsonl")]
    common = ["--device", "cpu", "--cache", str(folder / "cache"), "-f", "-q"]
    return run(["audit", str(folder / model), *files, *common, *more])


def plan(folder: Path) -> list[str]:
    return [
        "--plan",
        str(folder / "plan.safetensors"),
        "--canaries",
        str(folder / "m.json"),
        "--candidates",
        "500",
        "--references",
        "63",
    ]


def test_a_broken_plan_is_refuted_without_a_secret_in_sight(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert audit(folder, *plan(folder), "--base", str(folder / "before")) == 1
    out, err = capfd.readouterr()
    # A command to copy is not folded.
    assert max(len(line) for line in out.splitlines() if not line.startswith("  privctl ")) <= 80
    heading = next(line for line in out.splitlines() if line.startswith("secrets"))
    assert {"tried", "skipped", "chance", "greedy", "bound"} <= set(heading.split())
    out = " ".join(out.split())
    assert 'REFUTED: "(prior, posterior)-secret protection, as planned in plan.safetensors"' in out
    text = (folder / "model.audit.report.json").read_text()
    report = decode(text, "report")
    figures = [f"{item.method}: {item.quantity}" for item in report.evidence if item.method.startswith("secret ")]
    assert figures
    assert report.parameters["asked"]["secret_figures"] == figures
    roles = {item.role for item in report.inputs}
    assert {"secrets", "data", "plan", "canaries", "base model", "base config"} <= roles
    for line in (folder / "book.jsonl").read_text().splitlines():
        value = json.loads(line)["value"]
        assert f"{value}" not in out
        assert f"{value}" not in err
        assert f'"{value}"' not in text
        assert f" {value} " not in text
    with SafetensorsFile(folder / "model.audit.scores.safetensors") as file:
        names = {tensor.name for tensor in file.tensors if tensor.name.startswith("secret.")}
        found = read_arrays(file, {"secret.rank": "I64", "secret.rank_before": "I64"}, "an audit's scores")
    assert {"secret.position", "secret.rank_calibrated", "secret.completion", "secret.bound"} <= names
    assert (found["secret.rank"] == 1).mean() > 0.9
    assert (found["secret.rank_before"] == 1).mean() < 0.2


def test_the_bounds_that_were_tested_are_those_of_the_plan(folder: Path) -> None:
    assert audit(folder, *plan(folder), "-o", str(folder / "planned.report.json")) == 1
    path = folder / "planned.report.json"
    report, ranks = read_report(path), folder / "planned.scores.safetensors"
    assert recount_secrets(path, report, NamedFiles()).wrong == ()
    arrays = load_file(ranks)
    with SafetensorsFile(ranks) as file:
        header = dict(file.metadata)
    bounded = np.flatnonzero(~np.isnan(arrays["secret.bound"]))
    assert len(bounded) > 9
    for change in (2.0, 0.5):
        edited = arrays["secret.bound"].copy()
        edited[bounded[3]] *= change
        save_file({**arrays, "secret.bound": edited}, ranks, header)
        outputs = tuple(replace(item, digest=NamedFiles().digest(ranks)) for item in report.outputs)
        found = recount_secrets(path, replace(report, outputs=outputs), NamedFiles()).wrong
        assert any("it tested a bound of" in fault for fault in found)
    save_file(arrays, ranks, header)


@pytest.mark.slow
def test_a_model_that_kept_the_plan(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert audit(folder, *plan(folder), model="before") == 0
    assert 'INCONCLUSIVE: "training made no secret easier to tell"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--base", "model"], 2, "--base {place}/model is the audited model itself; give the one"),
        (["--candidates", "1"], 2, "--candidates is 1; a secret is ranked among 2 to 100000 values"),
        (["--most-secrets", "0"], 2, "--most-secrets is 0"),
        (["--plan", "book.jsonl"], 3, "book.jsonl"),
        (["--secrets", "missing.jsonl"], 3, "missing.jsonl is not a file"),
        (["--data", "data.jsonl", "--plan", "plan.safetensors"], 3, "plans for other data (planted.jsonl) than --data"),
    ],
)
def test_faulty_input_is_refused_with_a_reason(
    more: list[str], code: int, words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(folder / word) if (folder / word).exists() or "." in word else word for word in more]
    capfd.readouterr()
    assert audit(folder, *arguments) == code
    err = capfd.readouterr().err
    assert words.format(place=folder) in err
    assert "Traceback" not in err


def test_options_that_need_others(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run(["audit", str(folder / "model"), "--secrets", str(folder / "book.jsonl"), "-q", "-f"]) == 2
    assert "--secrets needs the records that hold the secrets; give --data too" in capfd.readouterr().err
    for flag in ("--plan", "--base", "--data"):
        assert run(["audit", str(folder / "model"), flag, str(folder / "model"), "-q"]) == 2
        assert f"{flag} needs --secrets" in capfd.readouterr().err
    save(tmp_path / "bert", "bert")
    shutil.copytree(tmp_path / "bert", folder / "bert", dirs_exist_ok=True)
    assert audit(folder, model="bert") == 2
    assert "--secrets asks which words a model fills in" in capfd.readouterr().err
