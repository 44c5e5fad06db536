"""``privctl retrain dp-zo``: a run end to end, what its report may not say, stopping and going on, search, mistakes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.events import BestOfRuns, Ledger, SampledGaussian
from privctl.domain.guarantee import AssumptionState
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods.dp_zo.trainer import ZerothOrderTrainer
from privctl.train.search import folder as search_folder
from tests.models.tasks.small import same_records
from verify.run import verify

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
SHORT = ("--steps", "3", "--batch-size", "6", "--learning-rate", "1e-3", "--delta", "1e-3")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, drawn = tmp_path / "train.jsonl", random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))} for _ in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def call(start: Path, data: Path, tmp_path: Path) -> Callable[..., int]:
    def retrain(*more: str, output: str = "out") -> int:
        arguments = [
            "retrain",
            "dp-zo",
            str(start),
            "--data",
            str(data),
            "-o",
            str(tmp_path / output),
            "--device",
            "cpu",
        ]
        return run([*arguments, "-q", *SHORT, *more])

    return retrain


def test_a_run_says_what_it_did_and_rests_on(call: Callable[..., int], data: Path, tmp_path: Path) -> None:
    assert call("--epsilon", "3", "--directions", "4", "--held-out", str(same_records(data))) == 0
    report = read_report(tmp_path / "out.report.json")
    (guarantee,) = report.guarantees
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert (event.steps, event.sample_rate) == (3, pytest.approx(0.2))
    assert event.noise_multiplier == report.parameters["noise_multiplier"]
    assert guarantee.epsilon is not None
    assert 2.99 < guarantee.epsilon <= 3
    assert report.parameters["released_numbers"] == 12
    assert (report.parameters["directions"], report.parameters["perturbation"]) == (4, 1e-3)
    assert (report.parameters["optimizer"], report.parameters["clipping"]) == ("sgd", "differences")
    states = {a.name: a.state for a in guarantee.assumptions}
    assert states["public directions"] is states["lone records"] is AssumptionState.ENFORCED
    assert states["contribution"] is AssumptionState.ENFORCED
    assert states["rounding of sums"] is AssumptionState.CHECKED
    assert set(report.parameters["contribution_test"]["differences"].values()) == {0.0}
    assert "held-out perplexity" in {item.quantity for item in report.evidence}
    assert run(["inspect", str(tmp_path / "out"), "-q"]) == 0
    assert not (tmp_path / "out.run").exists()


#: Change of a report -> how verify must answer.
FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], ExitCode]] = {
    "half the noise": (lambda r: r["mechanism"]["events"][0].update(noise_multiplier=0.5), ExitCode.REFUTED),
    "half the noise in both": (
        lambda r: (
            r["mechanism"]["events"][0].update(noise_multiplier=0.5), r["parameters"].update(noise_multiplier=0.5)
        ),
        ExitCode.REFUTED,
    ),
    "fewer steps": (lambda r: r["parameters"].update(steps_begun=2), ExitCode.REFUTED),
    "fewer directions": (lambda r: r["parameters"].update(directions=1), ExitCode.REFUTED),
    "no directions": (lambda r: r["parameters"].pop("directions"), ExitCode.REFUTED),
    "gradients clipped": (lambda r: r["parameters"].update(clipping="flat"), ExitCode.REFUTED),
    "another optimizer": (lambda r: r["parameters"].update(optimizer="adamw"), ExitCode.REFUTED),
    "smaller epsilon": (lambda r: r["guarantees"][0].update(epsilon=0.1), ExitCode.REFUTED),
    "no premise of directions": (
        lambda r: r["guarantees"][0].update(
            assumptions=[a for a in r["guarantees"][0]["assumptions"] if a["name"] != "public directions"]
        ),
        ExitCode.REFUTED,
    ),
}  # fmt: skip


@pytest.mark.forged("changes its report")
def test_what_its_report_must_not_say_is_refused(call: Callable[..., int], tmp_path: Path) -> None:
    assert call("--noise-multiplier", "1", "--directions", "2", "--public-seed", "0a1b") == 0
    genuine = tmp_path / "out.report.json"
    found = verify(genuine, read_report(genuine))
    assert found.exit_code is ExitCode.OK
    assert [guarantee.verdict.outcome for guarantee in found.guarantees] == [Outcome.PROVED]
    states = {a.name: a.state for a in read_report(genuine).guarantees[0].assumptions}
    assert states["public directions"] is AssumptionState.ASSERTED, "whoever gave the seed may have looked at the data"
    for name, (change, wanted) in FORGED.items():
        report = json.loads(genuine.read_text())
        change(report)
        report_path = tmp_path / "forged.report.json"
        report_path.write_text(json.dumps(report))
        assert verify(report_path, read_report(report_path)).exit_code is wanted, name


def test_a_stopped_run_goes_on_and_a_lost_step_counts(
    call: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = ZerothOrderTrainer._step

    def killed(self: ZerothOrderTrainer, begun: int, *more: Any) -> list[int]:
        if begun == 1:
            raise KeyboardInterrupt
        return step(self, begun, *more)

    with monkeypatch.context() as patched:
        patched.setattr(ZerothOrderTrainer, "_step", killed)
        assert call("--noise-multiplier", "1") == 130
    assert call("--noise-multiplier", "2", "--resume") == 2, "another noise multiplier"
    seed = (tmp_path / "out.run" / "public-seed").read_text()
    assert call("--noise-multiplier", "1", "--resume") == 0
    parameters = read_report(tmp_path / "out.report.json").parameters
    assert (parameters["steps_begun"], parameters["public_seed"]) == (3, seed)
    assert parameters["updates"] < 3
    found = verify(tmp_path / "out.report.json", read_report(tmp_path / "out.report.json"))
    assert any("are to the last bit what the first ones become" in verdict.reason for verdict in found.verdicts)


@pytest.mark.slow
def test_a_search_releases_its_best_run(
    call: Callable[..., int], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: 2)
    public = tmp_path / "public.jsonl"
    public.write_text('{"text": "the cat sat on the very old mat and the dog"}\n')
    search = ("--search", "learning-rate=1e-3,1e-4", "--expected-runs", "2", "--held-out", str(public))
    assert call("--epsilon", "8", *search) == 0
    report = read_report(tmp_path / "out.report.json")
    assert isinstance(report.mechanism, Ledger)
    assert isinstance(report.mechanism.events[0], BestOfRuns)


def test_a_plan_writes_nothing(call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    assert call("--epsilon", "3", "--dry-run") == 0
    assert "noise multiplier" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == before


def test_it_is_called_from_python(start: Path, data: Path, tmp_path: Path) -> None:
    report = privctl.retrain(
        "dp-zo", start, data=data, output=tmp_path / "out", steps=1, batch_size=6, epsilon=8, directions=2, delta=1e-3,
        device="cpu",
    )  # fmt: skip
    assert report.parameters["directions"] == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--optimizer", "adam"), "give --optimizer sgd instead of adam"),
        (("--bf16",), "--bf16 leaves mostly rounding"),
        (("--dropout",), "--dropout draws another"),
        (("--checkpointing",), "--checkpointing saves nothing"),
        (("--fsdp",), "needs the whole model in each process; remove --fsdp"),
        (("--directions", "0"), "--directions is 0; it must be at least 1"),
        (("--perturbation", "2"), "--perturbation is 2; it must be"),
        (("--runs-law", "poisson"), "--runs-law needs a search"),
        (("--epsilon", "3"), "--epsilon or --noise-multiplier"),
    ],
)
def test_what_does_not_go_together_is_said_in_a_sentence(
    more: tuple[str, ...], message: str, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--noise-multiplier", "1", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.run").exists()


def test_an_interrupt_saves_the_step(
    call: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ZerothOrderTrainer.run

    def stopped(self: ZerothOrderTrainer, start: Any, stop: Any) -> Any:
        return whole(self, start, lambda: True)

    with monkeypatch.context() as patched:
        patched.setattr(ZerothOrderTrainer, "run", stopped)
        assert call("--noise-multiplier", "1") == 130
    assert "interrupted after step 1 of 3" in capsys.readouterr().err
    assert call("--noise-multiplier", "1", "--resume") == 0
    assert read_report(tmp_path / "out.report.json").parameters["updates"] == 3
