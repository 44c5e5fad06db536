"""Warnings: none but those that privctl writes passes, and none that a report's other entries call for may go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.canaries.bounds import guesses_of
from audits.canaries.design import register
from audits.scores.table import Skip
from privctl.domain.errors import ExitCode
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.secrets.scan.kinds import KINDS, PERSON, not_looked_for
from privctl.secrets.scan.report import _limits
from tests.verify.kinds import Kinds
from verify.audits.canaries.gradients import _middle, _outside
from verify.run import verify
from verify.texts.warnings.of_audits import TEXTS as OF_AUDITS
from verify.texts.warnings.table import TEXTS
from verify.warned.check import check_warnings

_QUICK = ("noise", "noise, several candidates", "plan", "own loop", "opacus", "from elsewhere")


def found(path: Path, report: PrivacyReport) -> list[tuple[Outcome, str]]:
    return [(verdict.outcome, verdict.reason) for verdict in check_warnings(path, report, ())]


@pytest.mark.parametrize("name", _QUICK)
def test_every_warning_is_called_for(kinds: Kinds, name: str) -> None:
    path = kinds[name].path
    report = read_report(path)
    assert report.warnings
    assert found(path, report) == []
    for text in report.warnings:
        others = tuple(warning for warning in report.warnings if warning != text)
        assert [outcome for outcome, _ in found(path, replace(report, warnings=others))] == [Outcome.REFUTED], text
        softer = replace(report, warnings=(*others, f"{text}, mostly"))
        assert [outcome for outcome, _ in found(path, softer)] == [Outcome.REFUTED] * 2, text
    twice = replace(report, warnings=(*report.warnings, report.warnings[0]))
    assert "it warns 2 times" in found(path, twice)[0][1]


def test_verify_and_other_versions(kinds: Kinds) -> None:
    path = kinds["plan"].path
    report = read_report(path)
    praised = replace(report, warnings=(*report.warnings, "audited by a notary: nothing is missing"))
    judged = verify(path, praised)
    assert judged.exit_code is ExitCode.REFUTED
    assert any("unknown warning" in verdict.reason for verdict in judged.integrity)
    later = replace(praised, versions={**report.versions, "privctl": "9.0.0"})
    assert verify(path, later).exit_code is ExitCode.BAD_INPUT


def test_numbers_that_the_report_states(kinds: Kinds) -> None:
    path = kinds["noise, several candidates"].path
    report = read_report(path)
    fewer = tuple(re.sub("^2 candidates", "1 candidates", warning) for warning in report.warnings)
    assert [outcome for outcome, _ in found(path, replace(report, warnings=fewer))] == [Outcome.REFUTED]


def _forms() -> Iterator[tuple[str, str, bool]]:
    yield "left out: 2 members, repeating an earlier record of their file", "left out", True
    yield "left out: 2 members, as usual", "left out", False
    yield "taken to be so: all is well", "taken to be so", False
    yield "no bound follows: the file has other bytes than the one that was planted", "no bound follows", True
    for skip in Skip:
        yield f"left out: 1 nonmember, {skip.reason}", "left out", True


@pytest.mark.parametrize(("text", "name", "allowed"), list(_forms()))
def test_only_warnings_of_a_known_form_are_accepted(text: str, name: str, allowed: bool) -> None:
    assert (re.fullmatch(OF_AUDITS[name], text) is not None) is allowed


def test_a_text_may_name_any_number_of_classes_and_files_of_any_length() -> None:
    names = ", ".join(f"the animals of kind {i}" for i in range(1000))
    assert re.fullmatch(
        TEXTS["retrain"]["classes of an adapter"],
        f"load base with num_labels=1000; the classes are, in this order, {names}",
    )
    other = f"the model's training report names other data than {'n' * 250}.jsonl"
    assert re.fullmatch(OF_AUDITS["secrets: broken"], f"secrets: {other}")
    unread = f"the model names a report of how it was made, which cannot be used: {'d' * 2000}/r.json is no report"
    assert re.fullmatch(OF_AUDITS["unusable report"], unread)


@pytest.mark.parametrize("names", [(), tuple(KINDS), ("email",), (PERSON,), (*KINDS, PERSON)])
def test_what_a_scan_does_not_look_for(names: tuple[str, ...]) -> None:
    form, text = TEXTS["secrets-scan"]["not looked for"], _limits(names)
    assert re.fullmatch(form, text)
    assert not re.fullmatch(form, text.replace(not_looked_for(names)[-1], "little else"))


@pytest.mark.parametrize("digits", [0, 1, 6])
@pytest.mark.parametrize("count", [2, 3, 12, 301])
def test_guesses_are_those_of_the_audit(count: int, digits: int) -> None:
    source = np.random.default_rng([count, digits])
    scores = source.normal(size=count).round(digits)
    for group in register([1] * count):
        guesses = guesses_of(scores, np.ones(count, np.bool_), group)
        low, high = _middle(scores.tolist()) if group.guesses == count else _outside(scores.tolist(), group.included)
        again = np.where(scores >= high, 1, np.where(scores <= low, -1, 0)) if low < high else np.zeros(count)
        assert (again == guesses).all()
