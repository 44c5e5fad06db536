"""``retrain dp-sgd --gradient-canaries`` with every kind of steps: trained, verified, audited, stopped and resumed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.torch import load_file

from audits.canaries.gradients import read_gradient_evidence
from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.progress import unseen
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods import method_named
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session
from tests.cli.short_runs import dp_sgd, prepared, some_quick

RECORDS, STEPS, COUNT = 30, 8, 301
OPTIONS = ["--noise-multiplier", "1", "--batch-size", "6", "--steps", str(STEPS), "--device", "cpu"]
USER = ["--unit", "who"]
#: Options and what the report then says of a canary.
KINDS: dict[str, tuple[list[str], str]] = {
    "bands": (["--bands", "3"], "is of the first part of the data, and is drawn by a coin in each of its turns"),
    "buffers": (["--buffers", "2"], "is used in the first step of each pass"),
    "bins": (["--batches", "balls-and-bins"], "is in one random step of each pass"),
    "cut": (["--largest-batch", "9"], "is drawn and cut like a record, and takes the place of one"),
    "users": ([*USER, "--max-records-per-user", "3"], "is a user of 3 records, each drawn into a step by a coin"),
    "shared": (
        [*USER, "--max-records-per-user", "3", "--shared-records", "greedy"], "is a user of 3 records, each drawn"
    ),
    "drawn users": (
        [*USER, "--records-per-draw", "2", "--batch-size", "3"], "is drawn into a step by a coin, like a record or a"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("canaries"), RECORDS)
    lines = (folder / "train.jsonl").read_text().splitlines()
    (folder / "train.jsonl").write_text(
        "\n".join(json.dumps({**json.loads(line), "who": f"u{i % 10}"}) for i, line in enumerate(lines))
    )
    return folder


def call(start: Path, output: Path, *more: str, count: int = COUNT) -> list[str]:
    return dp_sgd(start, output, *OPTIONS, "--gradient-canaries", str(count), *more)


@pytest.mark.parametrize("name", some_quick(list(KINDS), ("cut",)))
def test_a_run_is_verified_and_its_audit_refutes_nothing(
    name: str, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more, part = KINDS[name]
    output = tmp_path / "out"
    assert run(call(start, output, *more)) == 0
    stderr = capsys.readouterr().err
    evidence = tmp_path / "out.gradient-canaries.json"
    assert f"audit it: privctl audit canaries {output} --canaries {evidence}" in stderr
    assert f"{COUNT} canary gradients certify an epsilon of 4.074 at most at delta 1e-05" in stderr
    report = read_report(tmp_path / "out.report.json")
    assert report.parameters["gradient_canaries"] == COUNT
    (warning,) = [line for line in report.warnings if "not for release" in line]
    assert f"; each canary {part}" in warning
    assert run(["verify", str(output), "-q"]) == 0

    capsys.readouterr()
    assert run(["audit", str(output), "--device", "cpu"]) == 2
    use = f"judge it with privctl audit canaries {output} --canaries {evidence}"
    assert use in capsys.readouterr().err
    assert run(["audit", "canaries", str(output), "--canaries", str(evidence), "--device", "cpu"]) == 0
    assert use not in capsys.readouterr().err
    audit = read_report(tmp_path / "out.audit.report.json")
    (verdict,) = [verdict for verdict in audit.verdicts if "the mechanism stated in" in verdict.subject]
    assert verdict.outcome is not Outcome.REFUTED
    assert not any("plant more" in verdict.reason for verdict in audit.verdicts), "none were planted"
    assert audit.parameters["canary_mechanism"]["events"] == json.loads(
        (tmp_path / "out.report.json").read_text()
    )["mechanism"]["events"]  # fmt: skip
    assert any("not which records are kept" in line for line in audit.warnings) is (name == "cut")
    assert run(["verify", str(tmp_path / "out.audit.report.json"), "-q"]) == 0
    sides = ["--members", str(start / "train.jsonl"), "--nonmembers", str(start / "nonmembers.jsonl")]
    (start / "nonmembers.jsonl").write_text("".join(f'{{"text": "the mat {i}"}}\n' for i in range(5)))
    capsys.readouterr()
    assert run(["audit", str(output), *sides, "--attack", "loss", "--device", "cpu", "--force"]) == 0
    assert use in capsys.readouterr().err
    stated = json.loads((tmp_path / "out.report.json").read_text())
    forged = tmp_path / "forged.report.json"
    for digest in ("another", "blake3:" + "0" * 64):
        forged.write_text(
            json.dumps({**stated, "parameters": {**stated["parameters"], "gradient_canaries_file": digest}})
        )
        assert run(["verify", str(forged), "-q"]) == 1
    forged.unlink()
    evidence.write_text(evidence.read_text() + " ")
    assert run(["verify", str(output), "-q"]) == 1
    assert run(["audit", str(output), "--device", "cpu", "--force"]) == 2
    assert "there is nothing to audit" in capsys.readouterr().err, "another file is not this training's"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bands", "buffers"])
def test_what_was_seen_before_an_interruption_is_in_the_file(name: str, start: Path, tmp_path: Path) -> None:
    settings = {"bands": DpSgdSettings(bands=3, gradient_canaries=COUNT),
                "buffers": DpSgdSettings(buffers=2, gradient_canaries=COUNT)}  # fmt: skip
    request = RetrainRequest(
        method=method_named("dp-sgd"), settings=settings[name], model=ModelRequest(path=start / "start"),
        data=DataRequest(train=start / "train.jsonl"), budget=BudgetRequest(noise_multiplier=1.0),
        output=tmp_path / "out", batch_size=6, steps=STEPS, device="cpu",
    )  # fmt: skip
    with pytest.raises(RunInterruptedError):
        run_training(prepare(request), Session(progress=unseen, interrupts=nullcontext(lambda: True)))
    folder = tmp_path / "out.run"
    (state,) = folder.glob("state-*.safetensors")
    before = {key: value.clone() for key, value in load_file(state).items() if key.startswith("canaries.")}
    assert {"canaries.key", "canaries.rows", "canaries.product", "canaries.every_step"} <= before.keys()
    assert run(call(start, tmp_path / "out", "-q", "--resume", *KINDS[name][0])) == 0
    found = read_gradient_evidence(tmp_path / "out.gradient-canaries.json")
    assert list(found.included) == before["canaries.included"].tolist(), "coins are not drawn again"
    assert run(["verify", str(tmp_path / "out"), "-q"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["users", "buffers"])
def test_verify_knows_that_canaries_move_weights(
    name: str, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many canaries as weights, with little noise, move the weights farther than the records could."""
    output = tmp_path / "out"
    more = [*KINDS[name][0], "--optimizer", "sgd", "--noise-multiplier", "0.2", "-q"]
    assert run(call(start, output, *more, count=5000)) == 0
    assert run(["verify", str(output), "-q"]) == 0
    capsys.readouterr()
    report = json.loads((tmp_path / "out.report.json").read_text())
    del report["parameters"]["gradient_canaries"], report["parameters"]["gradient_canaries_file"]
    forged = tmp_path / "forged.report.json"
    forged.write_text(json.dumps(report))
    refuted = run(["verify", str(forged), "-q"]) == 1
    assert refuted is (name == "users"), "without them the moves are too long"


def test_a_plan_says_what_canaries_can_show(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*call(start, tmp_path / "out", "--bands", "3", "-q", count=5000), "--dry-run"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "5000 canary gradients certify an epsilon of" in stdout
    assert "they would detect half of its noise with a probability of" in stdout


def test_secrets_and_searches_have_no_canaries(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(call(start, tmp_path / "out", "-q", "--search", "clip-norm=0.5,1")) == 2
    assert "remove --gradient-canaries" in capsys.readouterr().err
