"""Records that an audit left out or cut, held against the ranks that it kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from audits.scores.table import Skip
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.storage.digest import NamedFiles, file_digest
from tests.gate.made import DATA, weights
from verify.audits import unscored

LEFT_OUT = (
    Omission(what="2 members", reason=Skip.IN_BOTH.reason),
    Omission(what="1 nonmember", reason=Skip.IN_BOTH.reason),
)
PARAMETERS = {"max_length": 8, "cut": {"members": 2, "nonmembers": 1}, "asked": {"max_length": 8}}


@pytest.fixture
def kept(tmp_path: Path) -> Artifact:
    """The ranks of three members and two others; two members and one other were left out, and three records cut."""
    path = tmp_path / "a.scores.safetensors"
    arrays: dict[str, Any] = {
        "member": np.array([True, True, True, False, False]),
        "truncated": np.array([True, True, False, True, False]),
        "skipped_member": np.array([True, True, False]),
        "skipped_reason": np.array([Skip.IN_BOTH] * 3, dtype=np.uint8),
    }
    save_file(arrays, path)
    return Artifact(role="scores", path=path.name, digest=file_digest(path), bytes=path.stat().st_size)


def report_of(kept: Artifact, **more: Any) -> PrivacyReport:
    honest = PrivacyReport(
        step="audit",
        created="2030-01-09T00:00:00Z",
        versions={"privctl": "0.1.0"},
        inputs=(weights("m"), replace(DATA, role="members")),
        outputs=(kept,),
        omissions=LEFT_OUT,
        parameters=PARAMETERS,
    )
    return replace(honest, **more)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, []),
        ({"omissions": LEFT_OUT[1:]}, ["lack 2 members (occurring among members"]),
        ({"omissions": ()}, ["lack 1 nonmember", "lack 2 members"]),
        ({"omissions": (replace(LEFT_OUT[0], reason=Skip.DUPLICATE.reason), LEFT_OUT[1])}, ["lack 2 members"]),
        (
            {"parameters": {**PARAMETERS, "cut": {"members": 1, "nonmembers": 1}}},
            ["2 members were cut, and it says 1"],
        ),
        ({"parameters": {"max_length": 8, "asked": {"max_length": 8}}}, ["2 members were cut", "1 nonmember was cut"]),
        ({"parameters": {"max_length": 8}}, []),  # as older audits say it
        ({"step": "verify"}, []),
    ],
)
def test_what_was_left_out_and_cut_is_what_the_ranks_say(
    tmp_path: Path, kept: Artifact, more: dict[str, Any], says: list[str]
) -> None:
    found = list(unscored.faults(tmp_path / "a.json", report_of(kept, **more), NamedFiles()))
    assert [any(part in each for each in found) for part in says] == [True] * len(says), found
    assert len(found) == len(says)


def test_ranks_that_are_not_at_hand_or_others_say_nothing(tmp_path: Path, kept: Artifact) -> None:
    wrong = report_of(kept, omissions=())
    assert not list(unscored.faults(tmp_path / "away" / "a.json", wrong, NamedFiles()))
    other = replace(wrong, outputs=(replace(kept, digest="blake3:" + "0" * 64),))
    assert not list(unscored.faults(tmp_path / "a.json", other, NamedFiles()))


def test_the_reasons_are_those_of_audits() -> None:
    assert {skip.value: skip.reason for skip in Skip} == unscored.REASONS
