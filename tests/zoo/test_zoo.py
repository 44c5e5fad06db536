"""Every architecture of the installed transformers, tiny: audited and trained, or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.zoo.accuracy import judged
from tests.zoo.gradients import difference
from tests.zoo.outcome import CRASHED, RIGHT, outcomes
from tests.zoo.shrink import TASKS, pairs


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_nothing_crashes(task: str) -> None:
    found = [outcome for of, kind in pairs() if of == task for outcome in outcomes(task, kind)]
    crashed = {(verdict.task, verdict.model_type): verdict.reason for verdict in found if verdict.outcome == CRASHED}
    assert crashed == {}
    assert sum(each.outcome == RIGHT for each in found) > 20


def trained() -> list[tuple[str, str]]:
    """The pairs that dp-sgd trains, by the table."""
    table = json.loads((Path(__file__).parent / "outcomes.json").read_text())
    return [(task, kind) for task, kind, command, outcome, _ in table if (command, outcome) == ("dp-sgd", RIGHT)]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "kind"), trained())
def test_the_clipped_sum_is_that_of_records_one_at_a_time(task: str, kind: str, tmp_path: Path) -> None:
    assert difference(task, kind, tmp_path) < 1e-4


#: Families whose answers depend on the length that a batch is padded to; the pipeline pads nothing here.
PADDED = {"fnet", "t5gemma", "t5gemma2", "xlnet"}
#: Families whose logits have another name, so that the pipeline finds none.
UNNAMED = {"pp_lcnet"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["text-classification", "image-classification"])
def test_transformers_own_pipeline_is_as_right_as_the_report_says(task: str, tmp_path: Path) -> None:
    """Every family that trains: what was written, loaded by transformers alone, has the accuracy and loss reported."""
    found = [(kind, judged(task, kind, tmp_path / kind)) for of, kind in pairs() if of == task and kind not in UNNAMED]
    both = {kind: pair for kind, pair in found if pair is not None}
    assert len(both) > 10
    for kind, (report, ours) in both.items():
        assert kind in PADDED or report.accuracy == ours.accuracy, kind
        assert report.loss == pytest.approx(ours.loss, rel=1e-2 if kind in PADDED else 1e-4), kind
