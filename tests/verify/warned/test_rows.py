"""Rows of ``verify/texts`` that few commands of other tests write: each is missed where an honest report loses it.

What commands write is looked at in the same way wherever they are called: ``tests/reports_verified.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.integrations import report as of_loops
from privctl.reports.files import read_report
from privctl.train.methods.plain import UNPROTECTED
from tests.cli.short_runs import dp_sgd, prepared
from tests.integrations.loops import EXAMPLES, Loop
from tests.warned_rows import NOT_CALLED_FOR, Row, faults, rows_of
from verify.run import read, verify
from verify.texts.warnings.table import TEXTS

WriteModel = Callable[..., Path]
Maker = Callable[[Path, WriteModel], Path]

_OUTSIDE, _RETRAIN, _NOISE, _AUDIT = "external-training", "retrain", "noise", "audit"
_FACTS = ["--epochs", "1", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "10", "--batch-size", "5"]


def weights(folder: Path, write_model: WriteModel, name: str = "m") -> Path:
    drawn = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    return write_model(folder / f"{name}.safetensors", {"w": drawn})


def by_opacus(*entry: float, delta: float = 1e-5) -> Maker:
    def make(folder: Path, write_model: WriteModel) -> Path:
        privctl.from_opacus([entry], weights(folder, write_model), examples=60, delta=delta)
        return folder / "m.report.json"

    return make


def by_the_trainer(folder: Path, write_model: WriteModel) -> Path:
    model, report_path = weights(folder, write_model), folder / "m.report.json"
    of_loops.write(model, report_path, program="transformers-trainer", parameters={}, warnings=(UNPROTECTED,))
    return report_path


def from_elsewhere(folder: Path, write_model: WriteModel) -> Path:
    privctl.from_elsewhere(weights(folder, write_model))
    return folder / "m.report.json"


def of_users(folder: Path, write_model: WriteModel) -> Path:
    loop = Loop(users=["Ann", "ann", *(f"user {i}" for i in range(EXAMPLES - 2))])
    loop.train(epochs=1)
    loop.private.report(loop.save(folder / "m.safetensors"))
    return folder / "m.report.json"


def at_large_delta(folder: Path, write_model: WriteModel) -> Path:
    few = ["--steps", "1", "--batch-size", "6", "--noise-multiplier", "1", "--delta", "0.05", "--device", "cpu", "-q"]
    assert run(dp_sgd(prepared(folder, 30), folder / "out", *few)) == 0
    return folder / "out.report.json"


def noised_twice(folder: Path, write_model: WriteModel) -> Path:
    weights(folder, write_model)
    for before, after in (("m", "n"), ("n", "o")):
        call = ["noise", str(folder / f"{before}.safetensors"), "-o", str(folder / f"{after}.safetensors"), "-q"]
        assert run([*call, "--epsilon", "1", *_FACTS]) == 0
    return folder / "o.report.json"


def noised(*options: str) -> Maker:
    def make(folder: Path, write_model: WriteModel) -> Path:
        model = weights(folder, write_model)
        assert run(["noise", str(model), "-o", str(folder / "n.safetensors"), "-q", *options]) == 0
        return folder / "n.report.json"

    return make


def of_models(folder: Path, write_model: WriteModel) -> Path:
    drawn = np.random.default_rng(3).standard_normal((2, 40)).tolist()
    (folder / "s.json").write_text(json.dumps({"with": drawn[0], "without": drawn[1]}))
    report_path = folder / "a.report.json"
    call = ["audit", "scores", str(folder / "s.json"), "--models", "--threshold", "0.5", "--claim", "1,1e-5"]
    assert run([*call, "-q", "-o", str(report_path)]) == 0
    return report_path


MADE: dict[Row, Maker] = {
    (_OUTSIDE, "one run"): by_opacus(1.0, 0.1, 10),
    (_OUTSIDE, "Opacus"): by_opacus(1.0, 0.1, 10),
    (_OUTSIDE, "private report"): by_opacus(1.0, 0.1, 10),
    (_OUTSIDE, "large delta"): by_opacus(1.0, 0.1, 10, delta=0.02),
    (_OUTSIDE, "entry swapped"): by_opacus(0.4, 0.5, 1),
    (_OUTSIDE, "entry of few examples"): by_opacus(1.0, 0.001, 10),
    (_OUTSIDE, "unprotected"): by_the_trainer,
    (_OUTSIDE, "nothing known"): from_elsewhere,
    (_OUTSIDE, "users spelled alike"): of_users,
    (_RETRAIN, "large delta"): at_large_delta,
    (_NOISE, "noise before"): noised_twice,
    (_NOISE, "nothing claimed"): noised("--noise-stddev", "0.1"),
    (_NOISE, "seed"): noised("--epsilon", "1", "--seed", "1", *_FACTS),
    (_AUDIT, "threshold"): of_models,
    (_AUDIT, "independent models"): of_models,
    (_AUDIT, "one record"): of_models,
    (_AUDIT, "procedure"): of_models,
}


@pytest.mark.parametrize("row", list(MADE), ids=": ".join)
def test_a_report_passes_with_the_warning_and_not_without(tmp_path: Path, write_model: WriteModel, row: Row) -> None:
    path = MADE[row](tmp_path, write_model)
    report = read_report(path)
    text = dict(rows_of(report))[row]
    assert verify(path, read(path)).exit_code is ExitCode.OK
    without = replace(report, warnings=tuple(warning for warning in report.warnings if warning != text))
    assert verify(path, without).exit_code is ExitCode.REFUTED
    assert list(faults(path, report, set())) == []


def test_a_report_that_calls_examples_records_passes(tmp_path: Path, write_model: WriteModel) -> None:
    """As reports did before; no other word does."""
    path = MADE[(_OUTSIDE, "large delta")](tmp_path, write_model)
    report = read_report(path)
    text = dict(rows_of(report))[(_OUTSIDE, "large delta")]
    for words, code in ((("records", " record"), ExitCode.OK), (("steps", " step"), ExitCode.REFUTED)):
        older = text.replace("examples", words[0]).replace("publishing each", f"publishing each{words[1]}")
        warnings = tuple(older if warning == text else warning for warning in report.warnings)
        assert verify(path, replace(report, warnings=warnings)).exit_code is code


def test_a_row_that_may_be_lost_is_found(
    tmp_path: Path, write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verify.warned.check.RULES", {})
    path = from_elsewhere(tmp_path, write_model)
    (fault,) = faults(path, read_report(path), set())
    assert "without its warning ('external-training', 'nothing known')" in fault


def test_rows_that_nothing_calls_for_are_rows() -> None:
    assert [row for row in NOT_CALLED_FOR if row[1] not in TEXTS[row[0]] or row in MADE] == []
