"""A comparison of an extraction audit that was edited by itself, however consistently, is contradicted by the rates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.extraction.near import NearMatches
from audits.extraction.summary import BEYOND, NEAR_BEYOND, QueryBudget, Texts, summarize
from privctl.domain.evidence import Bound, Evidence
from privctl.reports.audit_parameters import AuditParameters
from verify.audits import figures
from verify.audits.extraction.counts import faults
from verify.audits.extraction.exact_tests import GRID, fault

_SIDES = {"training", "held_out"}


def texts(count: int, out: int, *, shared: int = 0, repeated: int = 0, cued: int = 0, groups: int = 0) -> Texts:
    """So many texts, the first ``out`` of which come out; the last ones are left out, by each reason in turn."""
    place = np.arange(count)
    away = place >= count - shared
    again = ~away & (place >= count - shared - repeated)
    copied = ~away & ~again & (place >= count - shared - repeated - cued)
    copied[: min(cued, 2)] |= cued > 0  # some that come out may be copied
    distance = np.where(place < out + 3, 0.2, 0.9).astype(np.float32)
    distance[:out] = 0.0
    run = np.zeros(count, np.int64)
    return Texts(
        line=place, matched=run, extracted=place < out, undecided=run > 0, copies=run + 1, shared=away,
        compared=~away & ~again, cue=np.where(copied, 0.9, 0.1).astype(np.float32),
        logp=np.where(place < out, -0.1, -9.0),
        near=NearMatches(distance=distance, characters=distance, run=run, but_for_spaces=place < out),
        unit=place % groups if groups else None,
    )  # fmt: skip


def audit(train: Texts, heldout: Texts, *, shared: int = 0, group_by: str | None = None, drawn: bool = False) -> Any:
    evidence = summarize(train, heldout, QueryBudget(), 0.99, drawn=drawn)
    settings = {"windows_in_both_files": shared, **({"sides": "drawn by privctl"} if drawn else {})}
    return SimpleNamespace(evidence=evidence), AuditParameters(extraction=settings, group_by=group_by)


CASES = {
    "all compared": audit(texts(40, 20), texts(30, 0)),
    "copied": audit(texts(40, 20, cued=5), texts(30, 1, cued=4)),
    "in both files": audit(texts(40, 38, shared=5, repeated=3, cued=2), texts(30, 1, shared=5, repeated=4), shared=5),
    "nothing is left": audit(texts(40, 40, cued=40), texts(30, 0, cued=3)),
    "drawn": audit(texts(40, 20, cued=5), texts(30, 1), drawn=True),
    "all held-out text comes out": audit(texts(40, 40), texts(40, 40)),
    "groups": audit(texts(40, 20, repeated=4, groups=13), texts(30, 1, groups=10), drawn=True, group_by="user"),
}


@pytest.mark.parametrize("name", CASES)
def test_genuine_counts_agree(name: str) -> None:
    assert list(faults(*CASES[name])) == []


def changed(name: str, quantity: str, **fields: Any) -> list[str]:
    """What is said of the audit whose figure of this ``quantity`` has other ``fields``; details are added."""
    report, parameters = CASES[name]
    found = [
        item
        if item.quantity != quantity
        else replace(item, **{**fields, "details": {**item.details, **fields["details"]}})
        for item in report.evidence
    ]
    return list(faults(SimpleNamespace(evidence=found), parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["all compared", "copied", "in both files", "drawn", "groups"])
def test_a_leak_is_not_hidden_in_the_comparison_alone(name: str) -> None:
    assert changed(name, BEYOND, details={"training_extracted": 0})


@pytest.mark.parametrize("name", ["all compared", "copied", "drawn"])
@pytest.mark.parametrize("quantity", [BEYOND, NEAR_BEYOND, GRID])
def test_texts_that_are_compared_are_not_said_to_be_left_out(name: str, quantity: str) -> None:
    """Such a comparison has the form of one without texts, so that nothing else looks at it."""
    none = {f"{side}_{what}": 0 for side in _SIDES for what in ("texts", "extracted")}
    report, parameters = CASES[name]
    sides = {"training": 0, "held_out": 0} if quantity == GRID else {"training": 40, "held_out": 30}
    hidden: dict[str, Any] = {
        "estimate": None, "lower": None, "upper": None, "bound": Bound.TWO_SIDED, "interval": "", "samples": sides,
        "reason": "a comparison needs texts of both files", "details": {**none, "cued": 70, "p_value": None},
    }  # fmt: skip
    item = next(item for item in report.evidence if item.quantity == quantity)
    kept = {name: value for name, value in hidden["details"].items() if value is not None}
    assert not list(figures._wrong(replace(item, **{**hidden, "details": kept}), parameters))
    assert changed(name, quantity, **hidden)


@pytest.mark.parametrize(
    ("quantity", "details"),
    [
        (BEYOND, {"training_extracted": 19}),
        (BEYOND, {"training_extracted": 21}),
        (BEYOND, {"held_out_extracted": 1}),
        (BEYOND, {"held_out_texts": 1}),
        (NEAR_BEYOND, {"training_extracted": 0}),
        (NEAR_BEYOND, {"training_texts": 39}),
        ("rate on training text", {"extracted": 0}),
        ("rate on training text", {"extracted_cued": 20}),
    ],
)
def test_each_count_is_held_to_the_others(quantity: str, details: dict[str, float]) -> None:
    assert changed("all compared", quantity, details=details)


@pytest.mark.parametrize("name", CASES)
def test_each_side_is_all_texts_but_those_left_out(name: str) -> None:
    report, _ = CASES[name]
    found = {item.quantity: item.details for item in report.evidence}
    nearly = "near-verbatim rate on {} text, edit distance to 0.3"
    for quantity, whole in ((BEYOND, "rate on {} text"), (NEAR_BEYOND, nearly)):
        for side, of in (("training", "training"), ("held_out", "held-out")):
            details, rate = found[quantity], found[whole.format(of)]
            left = (
                rate["texts"] - details[f"{side}_left_out"],
                rate["extracted"] - details[f"{side}_left_out_extracted"],
            )
            stated = details[f"{side}_texts"], details[f"{side}_extracted"]
            assert stated == left or (name == "groups" and stated <= left)


@pytest.mark.parametrize(
    ("name", "quantity", "details"),
    [
        # What comes out of held-out text makes a leak look like nothing.
        ("in both files", BEYOND, {"held_out_extracted": 20}),
        ("in both files", BEYOND, {"held_out_texts": 4}),
        ("in both files", NEAR_BEYOND, {"training_extracted": 1}),
        ("in both files", NEAR_BEYOND, {"held_out_extracted": 21}),
        ("groups", BEYOND, {"held_out_extracted": 10}),
        ("in both files", BEYOND, {"training_texts": 0, "training_extracted": 0, "training_left_out": 40,
                                   "training_left_out_extracted": 38}),
    ],
)  # fmt: skip
def test_sides_of_files_that_share_texts_are_held_to_what_comes_out(
    name: str, quantity: str, details: dict[str, float]
) -> None:
    assert changed(name, quantity, details=details)


def test_sides_of_files_that_share_texts_say_what_is_left_out() -> None:
    report, parameters = CASES["in both files"]
    silent = [
        replace(item, details={name: number for name, number in item.details.items() if "left_out" not in name})
        for item in report.evidence
    ]
    assert any("does not say how many" in fault for fault in faults(SimpleNamespace(evidence=silent), parameters))  # type: ignore[arg-type]


def test_what_is_not_compared_is_left_to_other_checks() -> None:
    (report, parameters), alone = CASES["all compared"], []
    for item in report.evidence:
        alone += [] if "held" in item.quantity else [item]
    assert list(faults(SimpleNamespace(evidence=alone), parameters)) == []  # type: ignore[arg-type]
    assert isinstance(alone[0], Evidence)


def test_no_number_of_texts_decides_where_all_held_out_text_comes_out() -> None:
    report, _ = CASES["all held-out text comes out"]
    (item,) = (item for item in report.evidence if item.quantity == BEYOND)
    assert fault(item) == ""
    forged = replace(item, details=item.details | {"needed": 100.0})
    assert fault(forged) == "nearly all held-out text comes out, so 100 records would not decide"
