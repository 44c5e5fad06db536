"""Every number and verdict of genuine audits, doubled, halved, negated, zeroed or removed: what passes is listed.

An audit's files are at hand, and its log is not, which holds the report's digest and so notices every change.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import PrivctlError
from tests.few import few
from tests.verify.kinds import Kinds
from tests.verify.mutants import at
from verify.run import read, verify

Place = tuple[str | int, ...]
Report = dict[str, Any]
#: Numbers that nothing at hand gives, by the end of their names: of scores that are kept as ranks alone, and of what
#: was not measured.
CHANGED = (
    "threshold", "needed",
    "rate on text in .*(confidence)",  # where there is no text in so many documents
    "mu.*delta", ", loss.*delta", ": epsilon.*delta",  # of bounds at 0
    "length baseline: AUC.*(members|nonmembers)",
)  # fmt: skip
#: Entries that a report may leave out: older audits did, or others give them.
REMOVED = (
    *CHANGED, "(matched|longest_run)_.*", "by_characters", "equal_but_for_spaces",  # of 0
    "suffix_not_in_training", "detectable", "chance", "made [0-9]+", "epsilon_if_gaussian",
    "undecided", "in_both",
    "extracted_cued", "extracted_not_in_training", "(training|held_out)_left_out(_extracted)?", "lower", "upper",
    "test", "bound", "interval", "level",
)  # fmt: skip


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*place, key))
    else:
        yield place, value


def changes(place: Place, value: Any) -> Iterator[tuple[str, Any]]:
    if place[-1] == "outcome":
        yield from (
            (f"now {each}", each) for each in ("PROVED", "CONSISTENT", "INCONCLUSIVE", "REFUTED") if each != value
        )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        half = value // 2 if isinstance(value, int) else value / 2
        others = {"doubled": value * 2, "halved": half, "negated": -value, "zeroed": type(value)(0)}
        yield from ((word, other) for word, other in others.items() if other != value)


def mutants(report: Report) -> Iterator[tuple[str, Place, Report]]:
    """Each change, with what was done and where."""
    for place, value in leaves({name: report[name] for name in ("evidence", "verdicts")}):
        for word, other in changes(place, value):
            mutant = copy.deepcopy(report)
            at(mutant, place[:-1])[place[-1]] = other
            yield word, place, mutant
        if place[-1] not in ("reason", "subject") and isinstance(value, int | float):
            mutant = copy.deepcopy(report)
            at(mutant, place[:-1]).pop(place[-1])
            yield "removed", place, mutant


def accused(path: Path) -> set[tuple[str, str]] | None:
    """What verify refutes or leaves open; None if the report cannot be read."""
    try:
        found = verify(path, read(path))
    except PrivctlError:
        return None
    return {(each.subject, each.reason) for each in found.verdicts if each.decisive and str(each.outcome) in _BAD}


_BAD = ("REFUTED", "INCONCLUSIVE")


def is_listed(word: str, place: Place, report: Report) -> bool:
    """Whether the change may pass."""
    if place[0] == "verdicts":
        return False
    item = report["evidence"][place[1]]
    name = f"{item['method']}: {item['quantity']} {place[-1]}"
    return any(re.search(f"{each}$", name) for each in (REMOVED if word == "removed" else CHANGED))


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.run.check_log", lambda path, report: ([], []))


_KINDS = ("audit", "audit of canaries", "audit of cut batches", "extraction of cut batches")


@pytest.mark.parametrize(
    ("kind", "every"),
    # In the quick tests every so many-th mutant of a kind.
    few([("audit", 211), ("audit of canaries", 61), *((kind, 1) for kind in _KINDS)], 0, 1),
)
def test_what_passes_is_listed(kind: str, every: int, kinds: Kinds) -> None:
    genuine_path = kinds[kind].path
    genuine, place = json.loads(genuine_path.read_text()), genuine_path.with_name("mutant.report.json")
    missed, tried = [], 0
    for number, (word, where, mutant) in enumerate(mutants(genuine)):
        if number % every == 0:
            place.write_text(json.dumps(mutant))
            tried += 1
            if accused(place) == set() and not is_listed(word, where, genuine):
                missed.append(f"{'.'.join(map(str, where))} {word}")
    place.unlink()
    assert missed == []
    assert tried > 5
