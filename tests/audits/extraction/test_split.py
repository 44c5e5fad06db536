"""Extraction audits of a split that privctl drew: exact by its coins, and held to them by verify."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.extraction.alike import ALIKE
from audits.extraction.coins import least
from audits.extraction.counts import of_units
from audits.extraction.grid import GRID
from audits.extraction.near import NearMatches
from audits.extraction.summary import BEYOND, METHOD, NEAR_BEYOND, QueryBudget, Texts, summarize
from audits.split.draw import SplitRequest, draw_split
from privctl.cli import run
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.show.decision import conclusion
from tests.audits.extraction.public_text import PREFIX, SPAN, learn, others
from tests.audits.extraction.test_part import words
from verify.audits.consistency import faults
from verify.audits.groups import check_groups
from verify.audits.split.drawn import check_split
from verify.warned.check import check_warnings

RECORDS, KNOWN = 100, 14
EXACT = (BEYOND, NEAR_BEYOND, GRID)


def texts(out: Sequence[bool], unit: Sequence[int] | None) -> Texts:
    count = len(out)
    came = np.array(out, dtype=np.bool_)
    near = NearMatches(
        distance=np.where(came, 0, 0.5).astype(np.float32),
        characters=np.ones(count, np.float32),
        run=np.zeros(count, np.int64),
        but_for_spaces=came,
    )
    return Texts(
        line=np.arange(count),
        matched=np.zeros(count, np.int64),
        extracted=came,
        undecided=np.zeros(count, np.bool_),
        copies=np.ones(count, np.int64),
        shared=np.zeros(count, np.bool_),
        compared=np.ones(count, np.bool_),
        cue=np.zeros(count, np.float32),
        logp=np.where(came, 0.0, -1e4),
        near=near,
        unit=None if unit is None else np.array(unit),
    )


def p_values(out: Sequence[bool], units: Sequence[int], coins: Sequence[bool], *, grouped: bool) -> dict[str, float]:
    """What is concluded of records that come ``out``, each of one of ``units``, if the ``coins`` of these fell so."""
    inside = [coins[unit] for unit in units]
    sides = [
        texts(
            [o for o, i in zip(out, inside, strict=True) if i is side],
            [u for u, i in zip(units, inside, strict=True) if i is side] if grouped else None,
        )
        for side in (True, False)
    ]
    found = summarize(*sides, QueryBudget(), 0.95, drawn=True)
    return {item.quantity: item.details["p_value"] for item in found if item.quantity in EXACT}


def rejections(out: Sequence[bool], units: Sequence[int], level: float, *, grouped: bool) -> float:
    """The share of all ways for the coins to fall, with members and others, in which a test rejects at ``level``."""
    assignments = [coins for coins in product((True, False), repeat=max(units) + 1) if 0 < sum(coins) < len(coins)]
    return sum(p_values(out, units, coins, grouped=grouped)[BEYOND] <= level for coins in assignments) / len(
        assignments
    )


OUT = (True, True, True, True, False, False, False, False, False)
GROUPS = (0, 0, 0, 0, 1, 2, 3, 4, 5)


def test_the_test_is_that_of_all_ways_for_the_coins_to_fall() -> None:
    """Against counting them: of each number of members, how many leave as many texts that come out, or more."""
    units = range(7)
    out = (True, True, True, False, False, False, False)
    for coins in product((True, False), repeat=7):
        if not 0 < sum(coins) < 7:
            continue
        found = sum(o and c for o, c in zip(out, coins, strict=True))
        all_flips = [flips for flips in product((True, False), repeat=7) if sum(flips) == sum(coins)]
        as_many = sum(sum(o and c for o, c in zip(out, flips, strict=True)) >= found for flips in all_flips)
        stated = p_values(out, units, coins, grouped=False)
        assert stated == {name: pytest.approx(as_many / comb(7, sum(coins))) for name in EXACT}


def test_groups_are_counted_once_each() -> None:
    """Of six groups one gives all four texts: no coins tell it. Counted by records, they would, falsely."""
    for level in (0.05, 0.2):
        assert rejections(OUT, GROUPS, level, grouped=True) <= level
    assert rejections(OUT, GROUPS, 0.05, grouped=False) > 0.05
    coins = (True, False, False, True, False, False)
    assert p_values(OUT, GROUPS, coins, grouped=True) == {name: pytest.approx(2 / 6) for name in EXACT}


def test_the_highest_of_each_group() -> None:
    assert of_units(np.array([0.1, 0.9, 0.5, 0.2]), np.array([3, 1, 3, 1])).tolist() == [0.9, 0.5]
    assert of_units(np.array([], dtype=np.bool_), np.array([], dtype=np.int64)).tolist() == []


def test_what_is_looked_at_does_not_follow_from_the_sides() -> None:
    names = [bytes([i]) for i in range(8)]
    for size in (2, 5):
        found = least([names[:size], names[size:]], 4)
        assert [*found[0].tolist(), *(found[1] + size).tolist()] == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of records, one of users of the same records, and a model that knows some who are members of both."""
    folder = tmp_path_factory.mktemp("drawn")
    every = others(RECORDS, 1)
    lines = [json.dumps({"text": words(row), "user": f"u{i // 2}"}) + "\n" for i, row in enumerate(every)]
    data = folder / "data.jsonl"
    data.write_text("".join(lines))
    sides = {}
    for name, field in (("records", None), ("users", "user")):
        draw_split(SplitRequest(data=data, folder=folder / name, group_by=field))
        sides[name] = {json.loads(line)["text"] for line in (folder / name / "members.jsonl").open()}
    both = sides["records"] & sides["users"]
    learned = [row for row in every if words(row) in both][:KNOWN]
    learn(folder / "model", np.stack(learned))
    learn(folder / "other", others(4, 77), steps=1)
    return folder


def audited(folder: Path, split: str, model: str = "model", *more: str) -> Path:
    output = folder / f"{model}.{split}.report.json"
    call = ["audit", "extraction", str(folder / model), "--split", str(folder / split), "--log", str(folder / "log")]
    call += ["--prefix-tokens", str(PREFIX), "--suffix-tokens", str(SPAN), "--device", "cpu", "-q", "-f", *more]
    assert run([*call, "-o", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def records(folder: Path) -> Path:
    return audited(folder, "records", "model", "--divergence", "--continuations", "1")


@pytest.fixture(scope="module")
def users(folder: Path) -> Path:
    return audited(folder, "users")


def named(report: PrivacyReport) -> dict[str, Evidence]:
    return {item.quantity: item for item in report.evidence if item.method == METHOD}


def judged(path: Path, report: PrivacyReport) -> tuple[Outcome, str]:
    (found,) = check_split(path, report, ())
    return found.outcome, found.reason


def test_what_was_memorized_is_found_without_texts_alike(records: Path) -> None:
    report = read_report(records)
    details = named(report)[BEYOND].details
    assert details["training_extracted"] >= KNOWN - 1
    assert details["held_out_extracted"] == 0
    assert details["p_value"] <= details["level"]
    assert not any(item.quantity.endswith(ALIKE) for item in report.evidence)
    (decided,) = report.verdicts
    assert decided.outcome is Outcome.REFUTED
    assert "privctl drew the sides by coins" in decided.reason
    assert any("each record is on the side of its coin" in line for line in report.warnings)
    assert "training records can be extracted word for word" in conclusion(report).sentence
    assert judged(records, report)[0] is Outcome.CONSISTENT
    assert run(["verify", str(records), "-q"]) == 0


def test_users_are_counted(users: Path) -> None:
    report = read_report(users)
    assert report.parameters["group_by"] == "user"
    details = named(report)[BEYOND].details
    assert details["training_texts"] + details["held_out_texts"] == RECORDS // 2
    assert KNOWN / 2 - 1 <= details["training_extracted"] < KNOWN
    assert named(report)["rate on training text"].details["extracted"] >= KNOWN - 1
    assert "of groups with one value of 'user' any text of" in report.verdicts[0].reason
    assert judged(users, report)[0] is Outcome.CONSISTENT
    assert not list(check_groups(users, report, ()))
    assert run(["verify", str(users), "-q"]) == 0


def test_a_model_that_saw_nothing_is_not_accused(folder: Path) -> None:
    report = read_report(audited(folder, "records", "other", "--records", "30", "--adversarial", "2",
                                 "--adversarial-budget", "8"))  # fmt: skip
    details = named(report)[BEYOND].details
    assert 55 <= details["training_texts"] + details["held_out_texts"] <= 60, "of both sides together"
    assert report.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert "split more records" in report.verdicts[0].reason


def doubting(item: Evidence) -> Evidence:
    """A comparison among texts alike of which none tells, which would silence ``item``."""
    level = item.details["level"]
    details = {"compared": 0.0, "compared_training": 0.0, "p_value": 1.0, "level": level, "detected": 0.0}
    return replace(item, quantity=BEYOND + ALIKE, estimate=None, details=details)


def _details(report: PrivacyReport, quantity: str, **changed: float) -> PrivacyReport:
    found = tuple(
        replace(item, details={**item.details, **changed})
        if (item.method, item.quantity) == (METHOD, quantity) else item
        for item in report.evidence
    )  # fmt: skip
    return replace(report, evidence=found)


def _settings(report: PrivacyReport, **changed: Any) -> PrivacyReport:
    held = {**report.parameters["extraction"], **changed}
    held = {name: value for name, value in held.items() if value is not None}
    return replace(report, parameters={**report.parameters, "extraction": held})


@pytest.mark.parametrize(
    ("forge", "complaint"),
    [
        (lambda r: _details(r, BEYOND, p_value=0.5, detected=0.0), "its counts give"),
        (lambda r: _details(r, BEYOND, training_extracted=0.0), "counts contradict each other"),
        (lambda r: _details(r, NEAR_BEYOND, held_out_most=40.0), "its counts give"),
        (lambda r: _details(r, BEYOND, detectable=0.001), "is not the least that it would have seen"),
        (lambda r: _settings(r, sides=None), "or not, against what the audit says of its sides"),
        (lambda r: _settings(r, sides=None), "does not say that its sides are those"),
        (
            lambda r: replace(r, parameters={**r.parameters, "split_commitment": None}),
            "says that privctl drew its sides, and states no commitment",
        ),
        (
            lambda r: replace(r, verdicts=(replace(r.verdicts[0], outcome=Outcome.CONSISTENT),)),
            "but its evidence refutes that",
        ),
        (
            lambda r: replace(r, evidence=(*r.evidence, doubting(named(r)[BEYOND]))),
            "nothing that it could confirm",
        ),
    ],
)
def test_what_is_forged_in_the_report_is_refused(
    records: Path, forge: Callable[[PrivacyReport], PrivacyReport], complaint: str
) -> None:
    report = read_report(records)
    assert not list(faults(report))
    assert any(complaint in fault for fault in faults(forge(report))), list(faults(forge(report)))


def _swapped(report: PrivacyReport) -> PrivacyReport:
    roles = {"train": "heldout", "heldout": "train"}
    return replace(report, inputs=tuple(replace(i, role=roles.get(i.role, i.role)) for i in report.inputs))


def test_another_split_or_other_sides_are_refused(folder: Path, records: Path, users: Path) -> None:
    report, of_users = read_report(records), read_report(users)
    assert judged(records, _swapped(report)) == (
        Outcome.REFUTED, "the train that it audited are not those that were drawn"
    )  # fmt: skip
    theirs = {item.role: item for item in of_users.inputs}
    other = tuple(theirs["split"] if item.role == "split" else item for item in report.inputs)
    assert judged(records, replace(report, inputs=other))[0] is Outcome.REFUTED
    stated = {"split_commitment": of_users.parameters["split_commitment"]}
    claimed = replace(report, inputs=other, parameters={**report.parameters, **stated})
    assert judged(records, claimed) == (
        Outcome.REFUTED, "its split tossed coins for groups by 'user', and it judges records"
    )  # fmt: skip
    more = _details(report, BEYOND, training_texts=RECORDS)
    assert "counts more records than" in judged(records, more)[1]
    less = tuple(item for item in report.inputs if item.role not in ("train", "heldout"))
    assert judged(records, replace(report, inputs=less))[0] is Outcome.REFUTED


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--train", "data.jsonl"], "--split brings the training and held-out text"),
        (["--split", "none.json"], "none.json"),
    ],
)
def test_bad_requests_are_one_sentence(
    folder: Path, more: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    more = [str(folder / word) if "." in word else word for word in more]
    split = ["--split", str(folder / "records")] if more[0] == "--train" else []
    assert run(["audit", "extraction", str(folder / "model"), *split, *more, "-o", str(folder / "bad.json")]) in (2, 3)
    assert complaint in capfd.readouterr().err
    assert run(["audit", "extraction", str(folder / "model"), "-o", str(folder / "bad.json")]) == 2
    assert not (folder / "bad.json").exists()


def test_one_audit_is_of_one_split(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    both = ["--members", str(folder / "data.jsonl"), "--nonmembers", str(folder / "users" / "nonmembers.jsonl")]
    call = [
        "audit",
        str(folder / "model"),
        "--extraction-split",
        str(folder / "records"),
        "-o",
        str(folder / "bad.json"),
    ]
    for more in (both, ["--split", str(folder / "users")]):
        assert run([*call, *more]) == 2
        assert "give it as --split too" in capfd.readouterr().err


def test_a_split_of_members_says_nothing_of_texts_given_beside_it(folder: Path, tmp_path: Path) -> None:
    """Such a report has the split among its inputs, and warns that its held-out text is nobody's drawing."""
    split, output = folder / "records", tmp_path / "a.report.json"
    call = ["audit", str(folder / "model"), "--split", str(split), "--attack", "loss", "--log", str(tmp_path / "log")]
    call += ["--train", str(split / "members.jsonl"), "--held-out", str(split / "nonmembers.jsonl"), "-o", str(output)]
    call += ["--prefix-tokens", str(PREFIX), "--suffix-tokens", str(SPAN), "--greedy-only", "--exact-only"]
    assert run([*call, "--device", "cpu", "-q"]) == 0
    report = read_report(output)
    assert wrong_warnings(output, report) == []
    control = next(warning for warning in report.warnings if warning.startswith("extraction: held-out text is taken"))
    left = replace(report, warnings=tuple(warning for warning in report.warnings if warning != control))
    assert "calls for the warning" in wrong_warnings(output, left)[0]


def wrong_warnings(path: Path, report: PrivacyReport) -> list[str]:
    return [found.reason for found in check_warnings(path, report, ())]
