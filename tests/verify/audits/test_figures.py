"""Audits of scores, and of extraction, changed entry by entry: what a reader goes by is noticed without any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from privctl.cli import run
from privctl.domain.errors import ExitCode, PrivctlError
from privctl.reports.codec import decode
from tests.verify.kinds import Kinds
from tests.verify.mutants import Report, mutants
from verify.audits.consistency import faults
from verify.consistency.bookkeeping import unchecked
from verify.run import read, verify

#: What nothing in the report gives: words, and numbers that no conclusion rests on.
_WORDS = ("reason", "subject")
_UNSEEN = {
    "models by a threshold": frozenset[str](),
    "models by ranks": frozenset({"threshold"}),
    "records": frozenset({"threshold", "true_positives", "detectable", "p_value"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Audits of scores of many models, by a threshold and by ranks, and of records."""
    folder, found = tmp_path_factory.mktemp("scores"), {}
    drawn = np.random.default_rng(0)
    kept = {name: (drawn.random(40) < rate).astype(float) for name, rate in (("with", 0.9), ("without", 0.1))}
    save_file(kept, folder / "models.safetensors")
    lines = [f"{i},{i % 2},{drawn.normal() + i % 2:.4f},{drawn.normal():.4f}" for i in range(60)]
    (folder / "records.csv").write_text("\n".join(["id,member,a,b", *lines]) + "\n")
    for name, file, more in (
        ("models by a threshold", "models.safetensors", ("--models", "--claim", "3,1e-5", "--threshold", "0.5")),
        ("models by ranks", "models.safetensors", ("--models",)),
        ("records", "records.csv", ("--score-column", "a", "--score-column", "b")),
    ):
        report = folder / f"{name.replace(' ', '-')}.audit.report.json"
        assert run(["audit", "scores", str(folder / file), "-q", "-o", str(report), *more]) == 0
        found[name] = json.loads(report.read_text())
    return found


def wrong(report: Report) -> list[str]:
    """What is found, from the report alone; what cannot be read is wrong too."""
    try:
        return list(faults(decode(json.dumps(report), "changed")))
    except PrivctlError as error:
        return [str(error)]


@pytest.mark.parametrize("name", _UNSEEN)
def test_every_figure_of_scores_is_held_to_the_others(judged: dict[str, Report], name: str) -> None:
    genuine, missed, tried = judged[name], [], 0
    assert wrong(genuine) == []
    for description, place, mutant in mutants(genuine):
        if place[0] == "evidence" and place[-1] not in (*_WORDS, *_UNSEEN[name]):
            tried += 1
            missed += [] if wrong(mutant) else [description]
    assert missed == []
    assert tried >= 100


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("models by a threshold", {"claimed_epsilon": 2.0}, "the claim in its parameters"),
        ("models by a threshold", {"asked.threshold": 0.4}, "its threshold is not"),
        ("models by a threshold", {"asked.claims": []}, "the claim in its parameters"),
        ("records", {"asked.columns": ["a"]}, "other columns"),
    ],
)
def test_what_was_asked_of_scores(judged: dict[str, Report], name: str, change: dict[str, Any], word: str) -> None:
    report = json.loads(json.dumps(judged[name]))
    for key, value in change.items():
        table = report["parameters"]
        *folders, last = key.split(".")
        for folder in folders:
            table = table[folder]
        table[last] = value
    assert any(word in fault for fault in wrong(report))


def _figure(report: Report, quantity: str) -> Report:
    found: Report = next(item for item in report["evidence"] if item["quantity"] == quantity)
    return found


#: What is written of a comparison where one side has no texts.
_UNCOMPARED = {
    "estimate": None,
    "lower": None,
    "upper": None,
    "bound": "two-sided",
    "interval": "",
    "reason": "a comparison needs texts of both files",
    "details": {"training_texts": 7, "held_out_texts": 0, "held_out_extracted": 0, "training_extracted": 0},
}
#: A figure of extraction, the change to it, and the fault that is found.
_HIDDEN = [
    ("rate on training text", {"details": {}, "estimate": 0.0, "lower": 0.0, "upper": 0.01}, "is missing"),
    ("rate on training text", {"upper": None}, "lacks a bound"),
    ("rate on training text", {"quantity": "rate on training text, all"}, "no audit measures"),
    ("rate on training text", {"interval": "exact"}, "its interval is 'exact'"),
    ("rate on training text", {"samples": {"training": 7, "held_out": 7}}, "looked at 7"),
    ("rate beyond held-out text", {"lower": -0.9}, "its lower limit is -0.9"),
    ("rate beyond held-out text", {"upper": 0.01}, "its upper limit is 0.01"),
    ("share found by sampling beyond held-out text, over n and p", {"details": {}}, "is missing"),
    ("rate beyond held-out text", _UNCOMPARED, "its interval is ''"),
    ("share found by sampling beyond held-out text, over n and p", _UNCOMPARED, "its interval is ''"),
    ("near-verbatim rate on training text, edit distance to 0.1", {"quantity": "another"}, "which its parameters name"),
]


@pytest.mark.parametrize(("quantity", "change", "word"), _HIDDEN)
def test_no_figure_of_extraction_escapes_by_its_form(
    kinds: Kinds, quantity: str, change: dict[str, Any], word: str
) -> None:
    report = json.loads(Path(kinds["audit"].path).read_text())
    assert wrong(report) == []
    _figure(report, quantity).update(change)
    assert any(word in fault for fault in wrong(report))


def test_texts_by_their_copies_add_up(kinds: Kinds) -> None:
    report = json.loads(kinds["audit"].path.read_text())
    for item in report["evidence"]:
        if item["quantity"].startswith("rate on text in ") and item["details"]["texts"]:
            item["details"]["texts"] += 1
            break
    assert any("by copies it counts" in fault for fault in wrong(report))


def test_no_parameter_is_called_unchecked_that_moves_made_again_rest_on(kinds: Kinds) -> None:
    path = kinds["dp-zo"].path
    (line,) = [verdict.reason for verdict in unchecked(read(path)) if verdict.what == "bookkeeping"]
    assert "perturbation (but for its power of two)" in line
    assert "public_seed" not in line
    data = json.loads(path.read_text())
    data["parameters"]["public_seed"] = "0" * 32
    changed = path.with_name("mutant.report.json")
    changed.write_text(json.dumps(data))
    found = verify(changed, read(changed))
    changed.unlink()
    assert found.exit_code is not ExitCode.OK


@pytest.mark.parametrize("role", ["train", "heldout", "members"])
def test_every_file_that_was_read_was_asked_about(kinds: Kinds, role: str) -> None:
    """Otherwise its verdict and figures could be left out where the ranks that were kept are not at hand."""
    report = json.loads(kinds["audit"].path.read_text())
    del report["parameters"]["asked"]["files"][role]
    assert f"it read {role}, and does not say that it was asked about them" in wrong(report)
