"""A gate does not believe what is guaranteed: it computes it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from tests.cli.test_gate import OWN, Capture, edit, here

__all__ = ["here"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["guarantees"][0].update(epsilon=0.5), "does not follow"),
        (lambda data: data["guarantees"][0].update(delta=1e-12), "does not follow"),
        (lambda data: data["mechanism"]["events"][0].update(noise_multiplier=50.0), "does not follow"),
        (lambda data: data["mechanism"]["events"][0].update(steps=1), "does not follow"),
        (lambda data: data.update(mechanism=None), "cannot be decided"),
    ],
)
def test_an_edited_number_does_not_pass(
    here: Path, capsys: Capture, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    assert run(["gate", OWN, "--max-epsilon", "3"]) == 0
    edit(OWN, change)
    capsys.readouterr()
    assert run(["gate", OWN, "--max-epsilon", "3", "--json"]) in (1, 3)
    found = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["rule"] == "recomputed"]
    assert any(says in each["message"] for each in found)
    assert run(["gate", OWN, "--max-epsilon", "3", "--recompute", "false"]) == 0


@pytest.mark.forged("nothing can be recomputed without scipy, which is what is tested")
def test_without_scipy_nothing_is_recomputed_and_that_is_said(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "verify"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert run(["gate", OWN, "--max-epsilon", "3"]) == 3
    assert "set recompute = false" in " ".join(capsys.readouterr().out.split())
