"""``retrain ferret --dropout``, killed and resumed: no step publishes a second time, with other draws of dropout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.train.methods.ferret.publish import Signs
from tests.cli.short_runs import prepared

if TYPE_CHECKING:
    from torch import Tensor

KILLED_IN = 8


@pytest.mark.parametrize("dropout", [True, False])
def test_signs_are_published_again_only_without_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dropout: bool
) -> None:
    start = prepared(tmp_path, 60)
    call = ["retrain", "ferret", str(start / "start"), "--data", str(start / "train.jsonl"), "-o", str(start / "out")]
    call += ["--batch-size", "12", "--epochs", "3", "--fire-probability", "1", "--device", "cpu"]
    call += ["--dropout"] if dropout else []
    published: list[int] = []
    publish = Signs.publish

    def killed(self: Signs, step: int, sums: Tensor) -> Tensor:
        published.append(step)
        if step == KILLED_IN and published.count(step) == 1:
            raise KeyboardInterrupt
        return publish(self, step, sums)

    monkeypatch.setattr(Signs, "publish", killed)
    assert run([*call, "-q"]) == 130
    capsys.readouterr()
    assert run([*call, "--resume"]) == 0
    errors, lost = capsys.readouterr().err, read_report(start / "out.report.json").parameters["lost_steps"]
    again = {step for step in published if published.count(step) > 1}
    if dropout:
        assert not again
        assert lost == [[5, KILLED_IN + 1]]
        assert "4 steps that publish were begun and not saved; they count in the guarantee" in errors
    else:
        assert again == set(range(5, KILLED_IN + 1))
        assert lost == []
    assert run(["verify", str(start / "out"), "-q"]) == 0
