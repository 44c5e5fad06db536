"""Methods that nobody knows but two rows, the trainer's and verify's: options, checks, runs, reports, resuming."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.events import Ledger
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods import METHODS, method_named
from privctl.train.runs.gradient_training import MethodHooks, train_by_gradients
from privctl.train.runs.method import TrainingMethod
from privctl.train.settings.method_settings import MethodSettings, option
from tests.cli.test_examples import records, save_model
from verify import methods as verified
from verify.methods.dp_sgd import NoisyGradients, steps_disagree
from verify.methods.expected import ExpectedMethod, StatedTraining
from verify.run import verify
from verify.texts.accountants import TIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class LoudSettings(MethodSettings):
    """How loud."""

    volume: int = option(3, "How loud it is.")
    names: tuple[str, ...] = option((), "Whom it calls (repeatable).", flag="--call")
    #: Named like a shared setting that may change; this one may not.
    device: str = "loudspeaker"
    pace: int = option(1, "How fast.", may_change=True)


def _check(request):
    if request.settings_as(LoudSettings).volume > 11:
        raise CommandError("--volume goes to 11")


def _run(job, session):
    settings = job.request.settings_as(LoudSettings)

    def amend(report, finished):
        settings_entries = {"volume": settings.volume, "names": list(settings.names)}
        return replace(report, parameters={**report.parameters, **settings_entries})

    return train_by_gradients(job, session, MethodHooks(amend=amend))


#: What the methods share: their settings, and how they run.
_SHARED = {"settings": LoudSettings, "check": _check, "run": _run}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoudTraining(StatedTraining):
    """What verify expects a loud training to say, in its own words."""

    volume: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HushedTraining(NoisyGradients):
    """The same with noise."""

    volume: int
    names: tuple[str, ...]


def _too_loud(mechanism: Any, parameters: Any) -> Iterator[str]:
    if parameters.volume > 11:
        yield f"volume is {parameters.volume}, and goes to 11"
    if isinstance(mechanism, Ledger):
        yield from steps_disagree(mechanism.events, parameters)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[TrainingMethod, ExpectedMethod], None]]:
    """Adds a method's two rows."""

    def add(method: TrainingMethod, expected: ExpectedMethod) -> None:
        for rows, name, value in ((METHODS, "METHOD", method), (verified.METHODS, "EXPECTED", expected)):
            module = types.ModuleType(f"tests_{method.name}_{name.lower()}")
            setattr(module, name, value)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            monkeypatch.setitem(rows, method.name, module.__name__)

    method_named.cache_clear()
    yield add
    method_named.cache_clear()
    verified._loaded.cache_clear()


@pytest.fixture
def loud(install: Callable[[TrainingMethod, ExpectedMethod], None]) -> None:
    """A method without noise or clipping, which promises nothing."""
    method = TrainingMethod(
        name="loud", help="Train MODEL loudly.", takes=("schedule",), clips=False, voided="",
        warning="nothing protects these examples", sampled=lambda _: False, **_SHARED,
    )  # fmt: skip
    install(
        method,
        ExpectedMethod(
            parameters=LoudTraining,
            mechanisms=(NoneType,),
            disagreements=_too_loud,
            warnings={"loud": "nothing protects these examples"},
        ),
    )


@pytest.fixture
def hushed(install: Callable[[TrainingMethod, ExpectedMethod], None]) -> None:
    """A method with a guarantee."""
    method = TrainingMethod(
        name="hushed", help="Train MODEL behind noise.", takes=("clipping", "schedule", "budget"), noised=True,
        private=True, guaranteed=True, warning="turn it down", sampled=lambda _: True, **_SHARED,
    )  # fmt: skip
    expected = ExpectedMethod(
        parameters=HushedTraining, mechanisms=(Ledger,), disagreements=_too_loud, accountants={"hushed": TIGHT},
        noised=True, clipped=True, warnings={"hushed": "turn it down"},
    )  # fmt: skip
    install(method, expected)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_model(Path("model"), 0)
    records(Path("train.jsonl"), 32, 1)
    return tmp_path


CALL = ["retrain", "loud", "model", "--data", "train.jsonl", "--steps", "2", "--batch-size", "8", "--device", "cpu"]


def test_two_rows_are_all_that_a_method_needs(loud: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "loud", "--help-all"]) == 0
    stdout = capsys.readouterr().out
    assert "--volume" in stdout
    assert "--call" in stdout
    assert "--clip-norm" not in stdout  # it takes no clipping
    assert run([*CALL, "--volume", "5", "--call", "anna", "--call", "ben", "-o", "out", "-q"]) == 0
    report = read_report(Path("out.report.json"))
    assert (report.parameters["method"], report.parameters["volume"]) == ("loud", 5)
    assert report.parameters["names"] == ["anna", "ben"]
    assert report.warnings[0] == "nothing protects these examples"
    found = verify(Path("out.report.json"), report)
    assert found.exit_code is ExitCode.OK
    weights = [verdict.outcome for verdict in found.integrity if verdict.subject == "weights"]
    assert weights == [Outcome.CONSISTENT]  # Adam's moves are bounded without clipping, by this method too


#: Change of a report -> how verify must answer.
FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], ExitCode]] = {
    "too loud": (lambda r: r["parameters"].update(volume=12), ExitCode.REFUTED),
    "of another type": (lambda r: r["parameters"].update(volume="5"), ExitCode.REFUTED),
    "left out": (lambda r: r["parameters"].pop("volume"), ExitCode.REFUTED),
    "unknown": (lambda r: r["parameters"].update(pitch=440), ExitCode.BAD_INPUT),
    "another method": (lambda r: r["parameters"].update(method="dp-sgd"), ExitCode.REFUTED),
    "a method of nobody": (lambda r: r["parameters"].update(method="silent"), ExitCode.REFUTED),
    "no method": (lambda r: r["parameters"].pop("method"), ExitCode.REFUTED),
}
#: The same of a method with a guarantee, which is as good as another's, and not known to be that.
BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], ExitCode]] = {
    "another method": (lambda r: r["parameters"].update(method="dp-sgd"), ExitCode.REFUTED),
    "less noise": (lambda r: r["parameters"].update(noise_multiplier=0.5), ExitCode.REFUTED),
    "fewer steps": (lambda r: r["parameters"].update(steps_begun=1), ExitCode.REFUTED),
    "smaller epsilon": (lambda r: r["guarantees"][0].update(epsilon=0.1), ExitCode.REFUTED),
    "another's guarantee": (lambda r: r["guarantees"][0].update(name="dp-sgd"), ExitCode.BAD_INPUT),
    "another accountant": (lambda r: r["guarantees"][0].update(accountant="my own"), ExitCode.BAD_INPUT),
}


def _answers(genuine: Path, forgeries: dict[str, tuple[Callable[[dict[str, Any]], object], ExitCode]]) -> None:
    report_path = genuine.with_name("forged.report.json")
    for name, (change, wanted) in forgeries.items():
        report = json.loads(genuine.read_text())
        change(report)
        report_path.write_text(json.dumps(report))
        assert verify(report_path, read_report(report_path)).exit_code is wanted, name


def test_what_its_report_must_not_say_is_refused(loud: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run([*CALL, "-o", "out", "-q"]) == 0
    _answers(Path("out.report.json"), FORGED)
    monkeypatch.delitem(verified.METHODS, "loud")
    assert verify(Path("out.report.json"), read_report(Path("out.report.json"))).exit_code is ExitCode.REFUTED


def test_a_guarantee_of_such_a_method_is_computed_again(hushed: None, folder: Path) -> None:
    assert run([*CALL[:1], "hushed", *CALL[2:], "--epsilon", "8", "-o", "out", "-q"]) == 0
    report_path = Path("out.report.json")
    found = verify(report_path, read_report(report_path))
    assert found.exit_code is ExitCode.OK
    assert [judged.verdict.outcome for judged in found.guarantees] == [Outcome.PROVED]
    _answers(report_path, FORGED | BROKEN)


def test_its_own_check_speaks_before_anything_is_read(
    loud: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.jsonl").write_text("{")
    assert run([*CALL, "--volume", "12", "--data", "broken.jsonl", "-o", "out"]) == 2
    assert "goes to 11" in capsys.readouterr().err


def test_resuming_with_another_setting_is_refused(loud: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from privctl.parallel import Workers
    from privctl.train.preparation.prepare import prepare
    from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest
    from privctl.train.state.resuming import open_folder

    request = RetrainRequest(
        method=method_named("loud"), settings=LoudSettings(volume=4), model=ModelRequest(path=Path("model")),
        data=DataRequest(train=Path("train.jsonl")), output=Path("out"), steps=2, batch_size=8, device="cpu",
    )  # fmt: skip
    run_folder, _ = open_folder(prepare(request), Workers())
    assert run_folder is not None
    assert json.loads((run_folder.path / "settings.json").read_text())["settings"]["volume"] == 4
    again = replace(request, settings=LoudSettings(volume=4, pace=9), resume=True)
    with run_folder, pytest.raises(CommandError, match="another process goes on with the run in out.run"):
        open_folder(prepare(again), Workers())
    changed = replace(request, settings=LoudSettings(volume=5), resume=True)
    with pytest.raises(CommandError, match="settings"):
        open_folder(prepare(changed), Workers())
    other = replace(request, settings=LoudSettings(volume=4, device="horn"), resume=True)
    with pytest.raises(CommandError, match="settings"):
        open_folder(prepare(other), Workers())
    open_folder(prepare(again), Workers())


def test_settings_of_another_method_are_refused(loud: None) -> None:
    from privctl.train.methods.dp_sgd import DpSgdSettings
    from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest

    files = {"model": ModelRequest(path=Path("m")), "data": DataRequest(train=Path("d")), "output": Path("o")}
    with pytest.raises(ValueError, match="LoudSettings"):
        RetrainRequest(method=method_named("loud"), settings=DpSgdSettings(), **files)
    assert isinstance(RetrainRequest(method=method_named("loud"), **files).settings, LoudSettings), "its own defaults"


def test_a_required_setting_that_is_left_out_is_a_usage_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "dpquant", *CALL[2:], "--epsilon", "8", "-o", "out"]) == 2
    assert "--format" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method", [["plain"], ["dp-sgd", "--epsilon", "8"], ["ferret", "--release", "gaussian", "--epsilon", "8"]]
)
def test_a_device_is_refused_before_anything_is_trained(
    method: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("null").symlink_to("/dev/null")
    assert run(["retrain", method[0], *CALL[2:], *method[1:], "-o", "null", "-f"]) == 2
    assert "null exists and is no folder" in capsys.readouterr().err
    assert not Path("null.run").exists()
