"""A test that replaces something gets no answer from memory; one that only changes folder does."""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audits.membership import quantile
from privctl.accounting import ledger
from privctl.domain.events import Ledger, SampledGaussian
from privctl.storage.reader import open_checkpoint
from tests import remembered, reports_verified
from tests.reports_verified import WATCH


def test_replacing_is_noticed_and_the_environment_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    WATCH.patched = False  # a fixture of the session replaces something in the first test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVCTL_TEST", "1")
    monkeypatch.delenv("PRIVCTL_TEST")
    assert not WATCH.patched
    with monkeypatch.context() as patch:
        patch.setattr(math, "tau", 6.0)
    assert WATCH.patched
    WATCH.patched = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem({}, "a", 1)
    assert WATCH.patched
    WATCH.patched = False
    monkeypatch.setattr("os.fsync", os.fsync)
    assert WATCH.patched


def test_replacing_forgets_what_the_program_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger(events=(SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=20),))
    (right,) = ledger.composed(book, 1e-5, order=0)
    assert ledger.composed(book, 1e-5, order=0)[0] is right
    assert ledger.composed(book, 1e-6, order=0)[0] is not right
    wrong = ledger.composed(Ledger(events=(SampledGaussian(noise_multiplier=2.0, sample_rate=0.1),)), 1e-5)[0]
    monkeypatch.setattr(ledger, "compose", lambda *_, **__: wrong)
    assert ledger.composed(book, 1e-5, order=0)[0] is wrong


def test_reports_are_noted_whichever_way_they_are_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("depth", "placed"):
        monkeypatch.setattr(WATCH, name, {"depth": 1, "placed": []}[name])
    movers = {"a": os.rename, "b": os.replace, "c": os.link, "d": Path.rename, "e": Path.replace}
    for name, put in movers.items():
        for place in (tmp_path / f"{name}.report.json", tmp_path / f"{name}.json"):
            (draft := tmp_path / f"{place.name}.draft").write_text("{}")
            put(draft, place)
    assert WATCH.placed == [tmp_path / f"{name}.report.json" for name in movers]


def test_what_is_remembered_does_not_use_the_modules_that_may_be_replaced(root: Path) -> None:
    waiting = [
        *("privctl.train.contribution.examine", "privctl.train.contribution.views", "verify.recompute.ledger"),
        "privctl.accounting.calibrate",
    ]
    modules: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = root / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in modules or not file.is_file():
            continue
        modules.add(name)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    assert "privctl.train.clipping.engine" in modules
    assert not modules & set(reports_verified._USERS)


def test_a_configuration_is_read_again_once_it_or_the_model_changes(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    model = write_model(tmp_path / "model.safetensors", {"a": np.zeros((2, 3), np.float32)})
    place = tmp_path / "config.json"
    place.write_text('{"layers": 1}')
    asked: list[str] = []

    def build(folder: Path, path: Path, task: str, released: object) -> int:
        asked.append(task)
        return len(asked)

    def built(task: str = "causal-lm") -> int:
        with open_checkpoint(model) as released:
            found: int = remembered._built(build, tmp_path, place, task, released)
        return found

    assert (built(), built()) == (1, 1)
    place.write_text('{"layers": 2}')
    assert (built(), built()) == (2, 2)
    write_model(model, {"a": np.zeros((3, 2), np.float32)})
    assert (built(), built(), built("masked-lm")) == (3, 3, 4)


def test_few_trees_are_for_commands_that_audit_alone() -> None:
    users = quantile._TREES
    with remembered.trees(["audit", "model"]):
        assert quantile._TREES == remembered.FEW_TREES < users
    for arguments in (["verify", "audit"], [], None):
        with remembered.trees(arguments):
            assert users == quantile._TREES
