"""A method that nobody knows but its row: its options, its check, its run and what resuming compares."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.reports.files import read_report
from privctl.train.gradient_training import MethodHooks, train_by_gradients
from privctl.train.method import Method, MethodSettings, option
from privctl.train.methods import METHODS, method_named
from tests.cli.test_examples import records, save_model


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
        said = {"volume": settings.volume, "names": list(settings.names)}
        return replace(report, parameters={**report.parameters, **said})

    return train_by_gradients(job, session, MethodHooks(amend=amend))


@pytest.fixture
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tests_loud_method")
    module.METHOD = Method(  # type: ignore[attr-defined]
        name="loud", help="Train MODEL loudly.", settings=LoudSettings, takes=("schedule",), clips=False, voided="",
        warning="nothing protects these examples", sampled=lambda _: False, check=_check, run=_run,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(METHODS, "loud", module.__name__)
    method_named.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_model(Path("model"), 0)
    records(Path("train.jsonl"), 32, 1)
    return tmp_path


CALL = ["retrain", "loud", "model", "--data", "train.jsonl", "--steps", "2", "--batch-size", "8", "--device", "cpu"]


@pytest.mark.forged("verify knows of no such method")
def test_a_row_is_all_that_a_method_needs(loud: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "loud", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--volume" in said
    assert "--call" in said
    assert "--clip-norm" not in said  # it takes no clipping
    assert run([*CALL, "--volume", "5", "--call", "anna", "--call", "ben", "-o", "out", "-q"]) == 0
    report = read_report(Path("out.report.json"))
    assert (report.parameters["method"], report.parameters["volume"]) == ("loud", 5)
    assert report.parameters["names"] == ["anna", "ben"]
    assert report.warnings[0] == "nothing protects these examples"


def test_its_own_check_speaks_before_anything_is_read(
    loud: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*CALL, "--volume", "12", "--data", "absent.jsonl", "-o", "out"]) == 2
    assert "goes to 11" in capsys.readouterr().err


def test_resuming_with_another_setting_is_refused(loud: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from privctl.parallel import Workers
    from privctl.train.prepare import prepare
    from privctl.train.request import DataRequest, ModelRequest, RetrainRequest
    from privctl.train.session import open_folder

    request = RetrainRequest(
        method="loud", settings=LoudSettings(volume=4), model=ModelRequest(path=Path("model")),
        data=DataRequest(train=Path("train.jsonl")), output=Path("out"), steps=2, batch_size=8, device="cpu",
    )  # fmt: skip
    made, _ = open_folder(prepare(request), Workers())
    assert made is not None
    assert json.loads((made.path / "settings.json").read_text())["settings"]["volume"] == 4
    changed = replace(request, settings=LoudSettings(volume=5), resume=True)
    with pytest.raises(CommandError, match="settings"):
        open_folder(prepare(changed), Workers())
    other = replace(request, settings=LoudSettings(volume=4, device="horn"), resume=True)
    with pytest.raises(CommandError, match="settings"):
        open_folder(prepare(other), Workers())
    open_folder(prepare(replace(request, settings=LoudSettings(volume=4, pace=9), resume=True)), Workers())


def test_settings_of_another_method_are_refused(loud: None) -> None:
    from privctl.train.request import DataRequest, ModelRequest, RetrainRequest

    with pytest.raises(ValueError, match="LoudSettings"):
        RetrainRequest(
            method="loud", model=ModelRequest(path=Path("m")), data=DataRequest(train=Path("d")), output=Path("o")
        )  # fmt: skip


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
