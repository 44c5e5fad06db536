"""The figures of an extraction audit are computed again from what it kept of each text, and no text is kept."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.extraction.grid import PROBABILITIES, QUERIES, points_found
from privctl.cli import run
from privctl.domain.evidence import Bound, Evidence
from privctl.storage.arrays import read_arrays, write_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from tests.audits.extraction.test_untargeted import TOLD, folder
from tests.few import few
from tests.verify.audits.test_mutants_of_audits import Place, accused, mutants
from tests.verify.mutants import at
from verify.audits.extraction.alike_texts import ALIKE
from verify.audits.extraction.kept import _KINDS, KeptExtraction, count_of
from verify.audits.extraction.recounted_texts import points_found as read_again
from verify.audits.extraction.recounted_texts import sampling_fault
from verify.run import read, verify

__all__ = ["folder"]  # a fixture
Report = dict[str, Any]
_MANY = ["--divergence", "--adversarial", "8", "--adversarial-tokens", "3", "--adversarial-budget", "60"]
_NAMES = {"BOOL": "?", "U8": "u1", "I64": "<i8", "F32": "<f4", "F64": "<f8"}


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log holds the report's digest, and so notices every change."""
    monkeypatch.setattr("verify.run.check_log", lambda path, report: ([], []))


def audited(folder: Path, name: str, *more: str) -> Path:
    report = folder / f"{name}.audit.report.json"
    files = ["--train", str(folder / "train.jsonl"), "--held-out", str(folder / "held.jsonl")]
    asked = ["--prompts", str(folder / "prompts.txt"), "--sampling-seed", "5", *TOLD, "-f", "-o", str(report)]
    assert run(["audit", "extraction", str(folder / "model"), *files, *asked, *more]) == 0
    return report


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return audited(folder, "plain")


def scores_of(report: Path) -> Path:
    return report.with_name(report.name.replace(".report.json", ".scores.safetensors"))


def test_every_figure_is_computed_again_and_no_text_is_kept(plain: Path) -> None:
    found = verify(plain, read(plain))
    reasons = [verdict.reason for verdict in found.verdicts if verdict.subject == "evidence"]
    assert len(reasons) == 1
    assert reasons[0].startswith(f"{len(read(plain).evidence)} figures are what the ranks kept give")
    assert not [omission for omission in found.omissions if omission.what == "evidence not recomputed"]
    assert stat.S_IMODE(scores_of(plain).stat().st_mode) == 0o600
    with SafetensorsFile(scores_of(plain)) as file:
        assert all(len(tensor.shape) == 1 for tensor in file.tensors), "no row of tokens"
        assert {tensor.name.rpartition(".")[2] for tensor in file.tensors} <= {*_KINDS, "near_line", "skipped_line"}


@pytest.mark.forged("a comparison is left out")
def test_a_comparison_among_texts_alike_that_was_kept_is_stated(plain: Path) -> None:
    report = json.loads(plain.read_text())
    alike = [item for item in report["evidence"] if item["quantity"].endswith(ALIKE)]
    assert alike
    other = plain.with_name("without-alike.report.json")
    for item in alike:
        other.write_text(json.dumps(report | {"evidence": [each for each in report["evidence"] if each != item]}))
        says = f"{item['method']}: it states no {item['quantity']!r}, which it measured"
        assert ("evidence", says) in (accused(other) or ())


def may_pass(word: str, place: Place, report: Report) -> bool:
    """A count of 0 that is left out, what could have been detected, and intervals where there is no text."""
    if place[0] != "evidence":
        return False
    value, item = at(report, place), report["evidence"][place[1]]
    if word == "removed":
        return value == 0 or place[-1] in ("detectable", "needed", "chance", "detected", "confidence")
    return place[-1] == "needed" or (place[-1] == "confidence" and item["estimate"] is None) or abs(value) < 1e-9


@pytest.mark.parametrize(
    ("more", "every"),
    few([((), 37), ((), 1), (_MANY, 1), ([*_MANY, "--reference", "OTHER"], 1), (["--exact-only"], 1)], 0),
)
def test_an_edited_figure_is_refuted(folder: Path, more: Sequence[str], every: int) -> None:
    named = [str(folder / "other") if each == "OTHER" else each for each in more]
    report_path = audited(folder, "edited", *named)
    genuine, place = json.loads(report_path.read_text()), report_path.with_name("mutant.report.json")
    missed, tried = [], 0
    for number, (word, where, mutant) in enumerate(mutants(genuine)):
        if number % every or may_pass(word, where, genuine):
            continue
        place.write_text(json.dumps(mutant))
        tried += 1
        if accused(place) == set():
            missed.append(f"{'.'.join(map(str, where))} {word}")
    place.unlink()
    assert missed == []
    assert tried >= 15


def _flip(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = ~arrays[name]

    return change


def _shift(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name] + 1

    return change


def _short(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name][:-1]

    return change


@pytest.mark.forged("what the audit kept is edited")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_flip("extraction.greedy"), "holds texts that cannot be"),
        (_short("extraction.copies"), "holds texts that cannot be"),
        (_flip("extraction.shared"), "holds texts that cannot be"),
        (_shift("extraction.copies"), "rate on text in 1 document"),
        (_shift("extraction.points"), "share found by sampling"),
        (_flip("extraction.discoverable"), "text found in 100 queries"),
        (_flip("extraction.compared"), "beyond held-out text: its"),
        (_shift("extraction.longest_run"), "its longest_run_p50"),
        (_flip("extraction.prompts_from_a_file.giving"), "queries for one training text: its"),
        (_flip("extraction.prompts_from_a_file.out"), "prompts from a file, rate on training text: its"),
        (_shift("extraction.prompts_from_a_file.verbatim_tokens"), "its longest_tokens"),
        (
            _shift("extraction.alike.prompts_from_a_file.rate_beyond_held-out_text.place"),
            "among texts alike: ",
        ),
    ],
)
def test_what_was_kept_and_edited_does_not_fit_the_report(
    plain: Path, change: Callable[[dict[str, Any]], None], word: str
) -> None:
    with SafetensorsFile(scores_of(plain)) as file:
        kinds = {tensor.name: tensor.dtype for tensor in file.tensors}
        arrays, metadata = dict(read_arrays(file, kinds, "an audit's texts")), dict(file.metadata)
    change(arrays)
    forged = plain.with_name("forged.scores.safetensors")
    typed = {name: np.asarray(array, _NAMES[kinds[name]]) for name, array in arrays.items()}
    write_arrays(forged, typed, metadata)
    report_path = naming(plain, forged)
    assert any(word in reason for _, reason in accused(report_path) or ())


def naming(original: Path, kept: Path) -> Path:
    """A copy of the report ``original`` that names ``kept`` as the file of its texts."""
    report = json.loads(original.read_text())
    (scores,) = [artifact for artifact in report["outputs"] if artifact["role"] == "scores"]
    scores |= {"path": kept.name, "digest": NamedFiles().digest(kept), "bytes": kept.stat().st_size}
    report_path = original.with_name(f"{kept.name.partition('.')[0]}.report.json")
    report_path.write_text(json.dumps(report))
    return report_path


def test_an_older_audit_is_left_open(plain: Path) -> None:
    with SafetensorsFile(scores_of(plain)) as file:
        kinds = {tensor.name: tensor.dtype for tensor in file.tensors if not tensor.name.endswith(".shared")}
        arrays, metadata = read_arrays(file, kinds, "an audit's texts"), dict(file.metadata)
    older = plain.with_name("older.scores.safetensors")
    write_arrays(older, arrays, metadata)
    report_path = naming(plain, older)
    report = json.loads(report_path.read_text())
    found = verify(report_path, read(report_path))
    (line,) = [omission.reason for omission in found.omissions if omission.what == "evidence not recomputed"]
    assert line.startswith(f"{len(report['evidence'])} of {len(report['evidence'])} measured figures")
    assert not [verdict for verdict in found.verdicts if verdict.subject == "evidence"]


def _points() -> Iterator[tuple[float, int]]:
    return ((p, n) for p in PROBABILITIES for n in QUERIES)


def test_the_number_of_points_says_which_points() -> None:
    """Against the probability of each text at each point."""
    logp = np.array([-1e-9, -0.01, -0.5, -1.0, -3.0, -7.0, -9.0, -11.0, -20.0, -np.inf])
    kept = KeptExtraction(arrays={"points": points_found(logp)})
    found = {(p, n): flags.tolist() for p, n, flags in read_again(kept)}
    for p, n in _points():
        with np.errstate(divide="ignore"):
            success = -np.expm1(n * np.log1p(-np.exp(logp)))
        assert found[p, n] == (success >= p).tolist()


def test_groups_are_counted_by_their_largest() -> None:
    units = np.array([7, 3, 7, 3, 9])
    assert count_of(np.array([True, False, False, False, True]), units).tolist() == [False, True, True]
    assert count_of(np.array([1, 2, 5, 0, 4]), units).tolist() == [2, 5, 4]
    assert count_of(np.array([1, 2]), None).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("chance", "fewest", "less", "more"), [(0.9, 1, 0, 2), (0.01, 69, 67, 72), (0.0001, 6932, 6686, 7187)]
)
def test_the_fewest_queries_are_those_of_the_likeliest_text(chance: float, fewest: int, less: int, more: int) -> None:
    """For a text of probability 0.01, 69 queries find it half of the time: 1 - 0.99^69 = 0.500163.

    Log-probabilities are kept to 8 bits, so that numbers between ``less`` and ``more`` are possible too.
    """
    logp = np.array([math.log(chance), -20.0])
    kept = KeptExtraction(arrays={"train": np.ones(2, np.bool_), "logp": logp})
    share = float(np.mean(1 - (1 - np.exp(logp)) ** 100))
    details = {"queries": 100, "probability": 0.5, "expected_share": share}
    for stated in (0, less, fewest, more):
        item = Evidence(
            method="extraction", quantity="training text found in 100 queries with probability 0.5",
            estimate=0.5, bound=Bound.NONE, details={**details, "fewest_queries": stated},
        )  # fmt: skip
        assert bool(sampling_fault(item, kept)) is (stated != fewest), stated
