"""``retrain dp-sgd --search``: trained, verified, forged, killed and resumed, and refused where it does not fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from privctl.api import training
from privctl.cli import run
from privctl.domain.errors import DivergedError, RunInterruptedError
from privctl.domain.events import BestOfRuns, Ledger, SampledGaussian
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.files import now, read_report
from privctl.train.search import folder as search_folder
from privctl.train.steps.loop import Trainer
from tests import remembered
from tests.cli.short_runs import dp_sgd, half_the_noise, prepared, texts, verified_after
from verify.settings import public_records

RECORDS, STEPS = 30, 4
SEARCH = ["--search", "learning-rate=1e-3,1e-6 clip-norm=0.5,1", "--expected-runs", "3"]
OPTIONS = ["--batch-size", "6", "--steps", str(STEPS), "--device", "cpu", "--delta", "1e-3"]


def _draws(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: count)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("search"), RECORDS)
    texts(folder / "public.jsonl", 8, "dog")
    return folder


def call(start: Path, output: Path, *more: str) -> list[str]:
    return dp_sgd(start, output, "--held-out", str(start / "public.jsonl"), *OPTIONS, *more)


@pytest.fixture(scope="module")
def trained(start: Path) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        _draws(patched, 3)
        patched.setattr(search_folder.secrets, "randbelow", _orders([2, 0, 1]))
        assert run(call(start, start / "out", "-q", "--epsilon", "8", *SEARCH)) == 0
    return start / "out.report.json"


def _orders(order: list[int]) -> Callable[[int], int]:
    left = iter(order)
    return lambda below: next(left)


@pytest.mark.slow
def test_the_best_run_is_released_with_the_guarantee_of_the_search(trained: Path) -> None:
    report = read_report(trained)
    (event,) = report.mechanism.events if isinstance(report.mechanism, Ledger) else ()
    assert isinstance(event, BestOfRuns)
    assert (event.mean_runs, event.shape, event.run_steps, event.sample_rate) == (3, 1, STEPS, 0.2)
    assert 7.9 < (report.guarantees[0].epsilon or 0) <= 8
    # Of the three runs one alone had a learning rate at which anything is learned.
    assert (report.parameters["learning_rate"], report.parameters["clip_norm"]) == (1e-3, 0.5)
    assert report.parameters["history"][-1]["held_out_loss"] < report.evidence[0].details["before"]
    assert "selection" in {assumption.name for assumption in report.guarantees[0].assumptions}
    assert not {"runs", "order", "scores"} & set(report.parameters["search"])
    assert sorted(path.name for path in trained.parent.iterdir() if path.name.startswith("out")) == [
        "out", "out.report.json", "out.searches",
    ]  # fmt: skip


@pytest.mark.slow
def test_it_is_verified_and_the_gate_sees_the_guarantee_of_the_search(trained: Path) -> None:
    assert run(["verify", str(trained), "-q"]) == 0
    assert run(["gate", str(trained), "--at-delta", "0.001", "--max-epsilon", "8", "-q"]) == 0
    assert run(["gate", str(trained), "--at-delta", "0.001", "--max-epsilon", "3", "-q"]) == 1


def _single(report: Any) -> None:
    """The guarantee, and the ledger, of one run alone."""
    event = report["mechanism"]["events"][0]
    report["mechanism"]["events"] = [
        {"type": SampledGaussian.tag, "batches": "poisson", "steps": event["run_steps"],
         "noise_multiplier": event["noise_multiplier"], "sample_rate": event["sample_rate"]}
    ]  # fmt: skip


def _epsilon(value: float) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        for guarantee in report["guarantees"]:
            guarantee["epsilon"] = value

    return edit


def _in_search(**changes: object) -> Callable[[Any], None]:
    return lambda report: report["parameters"]["search"].update(changes)


def _in_event(**changes: object) -> Callable[[Any], None]:
    return lambda report: report["mechanism"]["events"][0].update(changes)


FORGERIES: Mapping[str, Callable[[Any], None]] = {
    "one run": _single,
    "fewer runs in the ledger": _in_event(mean_runs=1.5),
    "another law": _in_event(shape=None),
    "fewer steps": _in_event(run_steps=STEPS - 1),
    "fewer runs at most": _in_search(most_runs=5),
    "a setting that was not searched": lambda report: report["parameters"].update(learning_rate=0.5),
    "half of the noise": half_the_noise,
    "no search": lambda report: report["parameters"].pop("search"),
    "no word of the choice": lambda report: [
        guarantee.update(
            assumptions=[assumption for assumption in guarantee["assumptions"] if assumption["name"] != "selection"]
        )
        for guarantee in report["guarantees"]
    ],
}


@pytest.mark.slow
@pytest.mark.forged("each is a lie about the search")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, FORGERIES[name]) == 1
    assert "REFUTED" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.forged("the epsilon of one run, in the report of a search")
def test_the_epsilon_of_one_run_does_not_pass(trained: Path) -> None:
    report = json.loads(trained.read_text())
    _epsilon(2.0)(report)
    forged = trained.with_name("forged.report.json")
    forged.write_text(json.dumps(report))
    assert run(["verify", str(forged), "-q"]) in (1, 3)
    assert run(["gate", str(forged), "--at-delta", "0.001", "--max-epsilon", "8", "-q"]) in (1, 3)


@pytest.mark.slow
@pytest.mark.forged("the numbers of one run, as if nothing else had been drawn")
def test_the_numbers_of_one_run_are_refuted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(trained.read_text())
    most = report["parameters"]["search"]["most_runs"]
    report["parameters"]["released_numbers"] //= most
    report["guarantees"][0]["arithmetic"]["coordinates"] //= most
    forged = trained.with_name("forged.report.json")
    forged.write_text(json.dumps(report))
    assert run(["verify", str(forged)]) == 1
    assert "released_numbers is" in capsys.readouterr().out


@pytest.mark.slow
def test_a_search_killed_in_its_second_run_goes_on_with_what_was_drawn(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = call(start, tmp_path / "out", "--noise-multiplier", "1", *SEARCH)
    child = os.fork()
    if child == 0:
        step, trainers = Trainer._step, []

        def killed(self: Trainer, *arguments: Any) -> Any:
            trainers.append(0)
            if len(trainers) == STEPS + 2:
                os.kill(os.getpid(), 9)
            return step(self, *arguments)

        Trainer._step = killed  # type: ignore[method-assign]
        search_folder.runs_law.draw = lambda *_: 3  # type: ignore[assignment]
        os._exit(run(asked))
    assert os.waitpid(child, 0)[1] == 9
    folder = tmp_path / "out.search"
    before = json.loads((folder / "search.json").read_text())
    assert len(before["order"]) == 3
    assert len(before["scores"]) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run(asked) == 2
    assert "continue it with --resume" in capsys.readouterr().err
    assert run([*asked, "--resume", "--expected-runs", "2"]) == 2
    assert "--expected-runs 3, not 2" in capsys.readouterr().err
    assert json.loads((folder / "search.json").read_text()) == before
    (folder / "run-2").rename(tmp_path / "away")
    assert run([*asked, "--resume"]) == 3
    assert "run 2 of the search was begun, and neither its model nor its state is in" in capsys.readouterr().err
    (folder / "run-2").rmdir()
    (tmp_path / "away").rename(folder / "run-2")
    assert run([*asked, "--resume"]) == 0
    captured = capsys.readouterr()
    assert "run 2 of 3" in captured.err
    assert "run 1 of 3" not in captured.err
    assert not folder.exists()
    report = read_report(tmp_path / "out.report.json")
    assert report.parameters["steps_begun"] in (STEPS, STEPS + 1, STEPS + 2)
    assert run(["verify", str(tmp_path / "out.report.json"), "-q"]) == 0


@pytest.mark.slow
def test_a_search_killed_between_a_runs_model_and_its_report_goes_on(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = call(start, tmp_path / "out", "-q", "--noise-multiplier", "1", *SEARCH)
    child = os.fork()
    if child == 0:
        rename = os.rename

        def killed(old: Any, new: Any, **more: Any) -> None:
            rename(old, new, **more)
            if str(new).endswith(f"run-1{os.sep}out"):
                os.kill(os.getpid(), 9)

        os.rename = killed  # type: ignore[assignment]
        search_folder.runs_law.draw = lambda *_: 1  # type: ignore[assignment]
        os._exit(run(asked))
    assert os.waitpid(child, 0)[1] == 9
    run_1 = tmp_path / "out.search" / "run-1"
    assert (run_1 / "out").is_dir()
    assert not (run_1 / "out.report.json").exists()
    assert run([*asked, "--resume"]) == 0
    assert "run 1 of 1" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.report.json", "out.searches"]


def test_no_run_is_an_outcome_too(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _draws(monkeypatch, 0)
    assert run(call(start, tmp_path / "out", "--noise-multiplier", "1", *SEARCH, "--runs-law", "poisson")) == 3
    assert "drew no run, as its poisson law does with chance 0.05; so there is no model" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out.searches"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--search", "batch-size=6,12"], "names 'batch-size'; all candidates must cost the same"),
        (["--search", "learning-rate=1e-3"], "fewer than two candidates"),
        (["--search", "learning-rate=1e-3,-1"], "--learning-rate is -1; it must be"),
        (["--search", "learning-rate=1e-3,often"], "holds no list of values"),
        (["--search", "clip-norm=1,1e-30"], "--clip-norm is 1e-30; it must be at least 1e-12"),
        (["--search", "beta1=0.8,0.9", "--optimizer", "sgd"], "names beta1, which --optimizer sgd does not use"),
        (
            ["--search", "learning-rate=1,2 beta2=0.9,0.99", "--optimizer", "momentum", "--momentum", "0.9"],
            "names beta2, which --optimizer momentum does not use",
        ),
        ([*SEARCH, "--show-unprotected"], "--search shows nothing of the runs that lose; remove --show-unprotected"),
        ([*SEARCH, "--bands", "2"], "remove --bands"),
        (["--expected-runs", "3"], "--expected-runs needs a search; add --search"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], what: str
) -> None:
    assert run(call(start, tmp_path / "out", "--noise-multiplier", "1", *more)) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "held",
    [
        {"text": "the cat sat on the mat"},
        {"text": "The CAT sat  on the mat\n"},
        {"prompt": "the cat sat", "response": "on the mat"},
        {"text": "the cat sat on the mat", "label": "another"},
    ],
    ids=["a copy", "another case", "another form", "another field beside it"],
)
def test_records_that_are_trained_on_do_not_choose(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], held: dict[str, str]
) -> None:
    """The best of several runs costs what is reported only where their scores follow from public records."""
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(f"{json.dumps(dict.fromkeys(held, 'a dog'))}\n{json.dumps(held)}\n")
    more = [*OPTIONS, "--noise-multiplier", "1", *SEARCH, "--held-out", str(mixed)]
    assert run(dp_sgd(start, tmp_path / "out", *more)) == 2
    assert "record 2 of --held-out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [mixed]


@pytest.mark.parametrize(("held_out", "faults"), [("blake3:1", 1), ("blake3:2", 0)], ids=["a copy", "another file"])
def test_a_report_whose_run_the_training_data_chose_is_refuted(held_out: str, faults: int) -> None:
    inputs = tuple(
        Artifact(role=role, path=f"{role}.jsonl", digest=digest, bytes=1)
        for role, digest in (("data", "blake3:1"), ("held-out", held_out))
    )
    report = PrivacyReport(step="retrain", created=now(), versions={}, inputs=inputs)
    found = list(public_records.disagreements(report, SimpleNamespace(search="learning-rate=1e-3,1e-2")))
    assert len(found) == faults


def test_a_search_in_which_every_run_diverges_comes_to_its_end(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverges(*_: object) -> None:
        raise DivergedError("parameter 'w' holds NaN")

    _draws(monkeypatch, 3)
    monkeypatch.setattr(training, "_one_run", diverges)
    assert run(call(start, tmp_path / "out", "--noise-multiplier", "1", *SEARCH)) == 3
    stderr = capsys.readouterr().err
    assert "run 3 loses: parameter 'w' holds NaN" in stderr
    assert "every run of the search diverged or was lost, so there is no model" in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.searches"]


@pytest.mark.slow
def test_a_run_that_diverges_loses(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _draws(monkeypatch, 2)
    monkeypatch.setattr(search_folder.secrets, "randbelow", _orders([1, 0]))
    search = ["--learning-rate", "1", "--search", "weight-decay=0,1e12"]
    assert run(call(start, tmp_path / "out", "-q", "--noise-multiplier", "1", *search)) == 0
    assert read_report(tmp_path / "out.report.json").parameters["weight_decay"] == 0


def test_other_weights_between_two_runs_are_refused(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights changed by what a run showed would be a choice that nobody has accounted for."""

    def interrupted(*_: object) -> None:
        raise RunInterruptedError("stopped")

    shutil.copytree(start / "start", tmp_path / "start")
    for name in ("train.jsonl", "public.jsonl"):
        shutil.copy(start / name, tmp_path)
    weights = tmp_path / "start" / "model.safetensors"
    save_file({"w": np.zeros(2, np.float32)}, weights)
    monkeypatch.setattr(training, "_one_run", interrupted)
    asked = call(tmp_path, tmp_path / "out", "--noise-multiplier", "1", *SEARCH)
    assert run(asked) == 130
    assert run([*asked, "--resume"]) == 130
    save_file({"w": np.ones(2, np.float32)}, weights)
    assert run([*asked, "--resume"]) == 2
    assert "was begun from other weights than MODEL now holds" in capsys.readouterr().err


def test_a_search_that_was_thrown_away_is_counted(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _draws(monkeypatch, 1)
    asked = [*call(start, tmp_path / "out", "--epsilon", "8", *SEARCH), "-q"]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "run", killed)
        assert run(asked) == 130
    shutil.rmtree(tmp_path / "out.search")
    capsys.readouterr()
    with remembered.bounds(remembered.FEW_DRAWS):  # what was replaced is a draw, and no bound rests on it
        assert run(asked) == 0
    report_path = tmp_path / "out.report.json"
    report = read_report(report_path)
    assert report.parameters["search"]["earlier"] == 1
    assert any("1 earlier search of these data for this output began before" in warning for warning in report.warnings)
    (premise,) = (a for a in report.guarantees[0].assumptions if a.name == "earlier searches")
    assert premise.statement.startswith("what 1 earlier search of these data")
    written = report_path.read_text()
    with remembered.bounds(remembered.FEW_DRAWS):  # none of what is forged changes the ledger
        assert run(["verify", str(report_path), "-q"]) == 0
        for hide in (_no_assumption, _none_before, _enforced_before, _never):
            forged = json.loads(written)
            hide(forged)
            other = tmp_path / "forged.report.json"
            other.write_text(json.dumps(forged))
            assert run(["verify", str(other), "-q"]) == 1, hide


def _no_assumption(report: Any) -> None:
    for guarantee in report["guarantees"]:
        guarantee["assumptions"] = [a for a in guarantee["assumptions"] if a["name"] != "earlier searches"]


def _none_before(report: Any) -> None:
    report["parameters"]["search"]["earlier"] = 0


def _never(report: Any) -> None:
    """Consistent with itself, and not with the log beside it."""
    del report["parameters"]["search"]["earlier"]
    _no_assumption(report)
    report["warnings"] = [text for text in report["warnings"] if "earlier search" not in text]


def _enforced_before(report: Any) -> None:
    for assumption in report["guarantees"][0]["assumptions"]:
        if assumption["name"] == "earlier searches":
            assumption["state"] = "enforced"
