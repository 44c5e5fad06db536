"""An earlier training on one of the records in another file, whatever kind of records they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privctl.data.columns import USUAL, Columns
from privctl.data.recorded import recorded_files
from privctl.domain.report import Artifact
from privctl.noise.public_base import shared_record
from privctl.reports.files import FoundReport, digested_artifact, read_report
from privctl.storage.digest import NamedFiles, file_digest
from privctl.train.release.began_with import trained_before
from tests.conftest import WriteModel
from tests.data.kinds_of_records import KINDS, Write, lines
from tests.gate.made import PROVED, making
from verify.consistency.begun_with import faults
from verify.consistency.begun_with_records import check_records


def trained_on(
    data: Path,
    task: str,
    columns: Mapping[str, str],
    report: Path,
    *,
    role: str = "data",
    unit: str | None = None,
    **more: Any,
) -> None:
    """Write the report of a training for ``task`` on ``data``, in this ``role``."""
    inputs = [digested_artifact(role, each, report) for each in recorded_files(data)]
    named = {f"{name}_column": column for name, column in columns.items()}
    making(
        report,
        PROVED,
        inputs=[*inputs, *more.pop("begun", ())],
        parameters={"task": task, "unit": unit, **named},
        **more,
    )


def job_on(data: Path, task: str, start: Path, columns: Columns = USUAL, unit: str | None = None) -> Any:
    """What is looked at of a training on ``data`` that begins with ``start``."""
    return SimpleNamespace(
        model=SimpleNamespace(initial_weights="checkpoint"),
        request=SimpleNamespace(
            task=task,
            model=SimpleNamespace(adapter_only=False, path=start, adapter=None),
            data=SimpleNamespace(train=data, columns=columns, unit=unit),
        ),
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("task", "first", "second", "columns"), KINDS)
def test_a_record_that_was_trained_on_before_is_found(
    task: str,
    first: Write,
    second: Write,
    columns: Mapping[str, str],
    shared: bool,
    tmp_path: Path,
    write_model: WriteModel,
) -> None:
    """By the training and by verify, whatever the template of the model makes of a conversation."""
    earlier, own = first(tmp_path / "earlier", [1, 2, 3, 4]), second(tmp_path / "own", [5, 6, 7, 3 if shared else 8])
    model = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)})
    weights = Artifact(role="model", path=model.name, digest=file_digest(model), bytes=model.stat().st_size)
    report, again = tmp_path / "m.report.json", tmp_path / "again.report.json"
    trained_on(earlier, task, columns, report, outputs=(weights,))

    def refused(*_: object) -> Any:
        raise AssertionError("a template was asked")

    found = trained_before(job_on(own, task, model, Columns(**columns, chat=refused)))
    assert (None if found is None else found.path) == (report if shared else None)

    trained_on(own, task, columns, again, begun=[replace(weights, role="start-m.safetensors")], name="again")
    links = [(report, read_report(report))]
    verdicts = [*check_records(again, read_report(again), links, NamedFiles())]
    assert ["trained on record" in each.reason for each in verdicts] == [True] * shared


@pytest.mark.parametrize("same", [True, False])
def test_records_that_were_public_before_were_trained_on_without_noise(
    same: bool, tmp_path: Path, write_model: WriteModel
) -> None:
    """The same file, or another with one of its records."""
    first, others = lines(tmp_path / "public", [{"text": "a"}, {"text": "b"}]), lines(tmp_path / "o", [{"text": "c"}])
    own = first if same else lines(tmp_path / "own", [{"text": "B"}, {"text": "d"}])
    model = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)})
    weights = Artifact(role="model", path=model.name, digest=file_digest(model), bytes=model.stat().st_size)
    report, again = tmp_path / "m.report.json", tmp_path / "again.report.json"
    private = [digested_artifact("data", each, report) for each in recorded_files(others)]
    trained_on(first, "causal-lm", {}, report, role="public", begun=private, outputs=(weights,))
    found = trained_before(job_on(own, "causal-lm", model))
    assert found is not None
    assert found.on.startswith("the same data" if same else "record 1 of")

    trained_on(own, "causal-lm", {}, again, begun=[replace(weights, role="start-m.safetensors")], name="again")
    links = [(report, read_report(report))]
    verdicts = [*check_records(again, read_report(again), links, NamedFiles())]
    assert [each.subject for each in verdicts] == ["starting weights"]
    assert len(list(faults(read_report(again), {}, [links[0][1]]))) == same
    assert shared_record([FoundReport(*links[0])], FoundReport(again, read_report(again))).startswith("record ")


@pytest.mark.parametrize(
    ("unit", "before", "now", "shared"),
    [
        ("who", ["ann", "bob"], ["bob", "cid"], True),
        ("who", ["ann", "bob"], ["Bob", "cid"], False),
        ("fold(who)", ["ann", "bob"], ["Bob", "cid"], True),
        ("who", ["ann", "bob"], [["cid", "ann"], "dan"], True),
        ("who", ["ann", "bob"], ["cid", "dan"], False),
        (None, ["ann", "bob"], ["bob", "cid"], False),
    ],
)
def test_other_records_of_the_same_user_were_trained_on_before(
    unit: str | None, before: list[Any], now: list[Any], shared: bool, tmp_path: Path, write_model: WriteModel
) -> None:
    """A guarantee for users is none for what weights hold of them already."""
    first = lines(tmp_path / "first", [{"text": f"a {i}", "who": who} for i, who in enumerate(before)])
    own = lines(tmp_path / "own", [{"text": f"b {i}", "who": who} for i, who in enumerate(now)])
    model = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)})
    weights = Artifact(role="model", path=model.name, digest=file_digest(model), bytes=model.stat().st_size)
    report, again = tmp_path / "m.report.json", tmp_path / "again.report.json"
    trained_on(first, "causal-lm", {}, report, outputs=(weights,))
    found = trained_before(job_on(own, "causal-lm", model, unit=unit))
    assert (None if found is None else found.on) == (
        f"other records of a {unit!r} whose records {own} holds," if shared else None
    )
    trained_on(own, "causal-lm", {}, again, unit=unit, begun=[replace(weights, role="start-m.safetensors")], name="x")
    links = [(report, read_report(report))]
    verdicts = [*check_records(again, read_report(again), links, NamedFiles())]
    assert [f"records of a {unit!r} whose records own.jsonl holds" in each.reason for each in verdicts] == [
        True
    ] * shared
    noised = shared_record([FoundReport(*links[0])], FoundReport(again, read_report(again)))
    assert noised == (f"records of a {unit!r} in {first} whose records are also in {own}" if shared else "")
