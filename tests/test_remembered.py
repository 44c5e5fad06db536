"""A test that replaces something gets no answer from memory; one that only changes folder does."""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

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
        *("privctl.accounting.calibrate", "privctl.train.runs.setup"),
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


def tiny(hidden: int = 4) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=hidden, n_layer=1, n_head=1))


def with_a_moved_weight() -> GPT2LMHeadModel:
    network = tiny()
    with torch.no_grad():
        network.transformer.h[0].ln_1.bias[0] += 1e-6
    return network


def with_a_hook() -> GPT2LMHeadModel:
    network = tiny()
    network.transformer.h[0].register_forward_hook(lambda *_: None)
    return network


def with_another_configuration() -> GPT2LMHeadModel:
    network = tiny()
    network.config.layer_norm_epsilon = 1e-4
    return network


def with_another_generation() -> GPT2LMHeadModel:
    network = tiny()
    network.generation_config.max_length = 7
    return network


@pytest.mark.parametrize(
    ("network", "changes", "again"),
    [
        (tiny, {}, False),
        (lambda: tiny(6), {}, True),
        (with_a_moved_weight, {}, True),
        (with_a_hook, {}, True),
        (with_another_configuration, {}, True),
        (with_another_generation, {}, True),
        (tiny, {"companion": "other words"}, True),
        (tiny, {"companion": lambda: None}, True),  # what cannot be told from others
        (tiny, {"task": "text-classification"}, True),
        (tiny, {"adapter_only": True}, True),
        (tiny, {"merge": True}, True),
        (tiny, {"size": 2}, True),
    ],
)
def test_a_release_is_rehearsed_again_where_it_differs(
    network: Callable[[], GPT2LMHeadModel], changes: dict[str, Any], again: bool, tmp_path: Path
) -> None:
    made: list[object] = []

    def rehearse(_job: object, _workers: object, network: object, *, merge: bool) -> None:
        made.append((network, merge))

    def asked(network: object, **changes: Any) -> None:
        usual = {"adapter_only": False, "merge": False, "size": 1, "task": "causal-lm", "companion": "words"}
        options = {**usual, **changes}
        model = SimpleNamespace(
            task=options["task"], text=None, images=None, sounds=None, companion=options["companion"]
        )
        request = SimpleNamespace(
            output=tmp_path / "out", resume=False, model=SimpleNamespace(adapter_only=options["adapter_only"])
        )
        job, workers = SimpleNamespace(model=model, request=request), SimpleNamespace(size=options["size"])
        remembered._rehearsed(rehearse, job, workers, network, merge=options["merge"])

    with mock.patch.object(remembered, "_REHEARSED", set()):
        asked(tiny())
        asked(network(), **changes)
    assert len(made) == 1 + again
    assert not any(tmp_path.iterdir())


def test_few_trees_are_for_commands_that_audit_alone() -> None:
    users = quantile._TREES
    with remembered.trees(["audit", "model"]):
        assert quantile._TREES == remembered.FEW_TREES < users
    for arguments in (["verify", "audit"], [], None):
        with remembered.trees(arguments):
            assert users == quantile._TREES
