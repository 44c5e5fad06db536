"""An earlier training on one of the records in another file, whatever kind of records they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privctl.data.columns import Columns
from privctl.data.recorded import recorded_files
from privctl.domain.report import Artifact
from privctl.reports.files import digested_artifact, read_report
from privctl.storage.digest import NamedFiles, file_digest
from privctl.train.release.began_with import trained_before
from tests.conftest import WriteModel
from tests.data.kinds_of_records import KINDS, Write
from tests.gate.made import PROVED, making
from verify.consistency.begun_with_records import check_records


def trained_on(data: Path, task: str, columns: Mapping[str, str], report: Path, **more: Any) -> None:
    """Write the report of a training for ``task`` on ``data``."""
    inputs = [digested_artifact("data", each, report) for each in recorded_files(data)]
    named = {f"{name}_column": column for name, column in columns.items()}
    making(report, PROVED, inputs=[*inputs, *more.pop("begun", ())], parameters={"task": task, **named}, **more)


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

    job: Any = SimpleNamespace(
        model=SimpleNamespace(initial_weights="checkpoint"),
        request=SimpleNamespace(
            task=task,
            model=SimpleNamespace(adapter_only=False, path=model, adapter=None),
            data=SimpleNamespace(train=own, columns=Columns(**columns, chat=refused)),
        ),
    )
    found = trained_before(job)
    assert (None if found is None else found.path) == (report if shared else None)

    trained_on(own, task, columns, again, begun=[replace(weights, role="start-m.safetensors")], name="again")
    links = [(report, read_report(report))]
    verdicts = [*check_records(again, read_report(again), links, NamedFiles())]
    assert ["trained on record" in each.reason for each in verdicts] == [True] * shared
