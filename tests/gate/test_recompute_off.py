"""A gate that recomputes nothing says so in every format, so that its result is not taken for the other."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from privctl.cli.gate import FORMATS
from tests.gate.made import auc, audit, judged


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_tells_it(tmp_path: Path, form: str) -> None:
    report = audit(tmp_path / "a.report.json", auc(0.52, 0.48, 0.55))
    render = importlib.import_module(FORMATS[form]).render
    off, on = (render(judged(report, max_auc="0.6", recompute=value)) for value in ("false", "true"))
    expected = "nothing recomputed" if form == "github" else "recompute is false"
    assert expected in off
    assert expected not in on
