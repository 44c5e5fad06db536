"""Entries on which no check rests: verify names them, and no other entry may be edited unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from privctl.domain.gate import GateOutcome
from privctl.reports.audit_parameters import OF_ATTACKS
from tests.verify.kinds import Gate, Kinds
from verify.run import Verification, read, verify

_AUDITED = ("audit", "audit of canaries")
Report = dict[str, Any]


def changed(kinds: Kinds, name: str, **entries: Any) -> Verification:
    """The verification of a kind's report with other entries."""
    path = kinds[name].path.with_name("mutant.report.json")
    path.write_text(json.dumps(json.loads(kinds[name].path.read_text()) | entries))
    found = verify(path, read(path))
    path.unlink()
    return found


def named(found: Verification) -> str:
    (line,) = [omission.reason for omission in found.omissions if omission.what == "bookkeeping"]
    return line


def test_a_report_without_versions_has_the_line_too(kinds: Kinds) -> None:
    for versions in (json.loads(kinds["dp-sgd"].path.read_text())["versions"], {}):
        line = named(changed(kinds, "dp-sgd", versions=versions))
        assert "library versions, its date" in line
        assert {"optimizer", "clip_norm", "history"} <= set(line.split("the parameters ")[1].split(":")[0].split(", "))
        assert line.endswith("but no guarantee rests on it")


def test_a_report_of_another_version_may_lack_notes(kinds: Kinds) -> None:
    versions = json.loads(kinds["dp-sgd"].path.read_text())["versions"]
    for other, shown in (("0.0", "privctl 0.0 wrote it"), (None, "privctl without a version wrote it")):
        now = {name: version for name, version in versions.items() if name != "privctl"}
        found = changed(kinds, "dp-sgd", versions=now if other is None else {**now, "privctl": other})
        assert any(o.what == "notes of another version" and shown in o.reason for o in found.omissions)
    assert all(o.what != "notes of another version" for o in changed(kinds, "dp-sgd", versions=versions).omissions)


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("dp-sgd", "omissions", "what it says was left out"),
        ("audit", "verdicts", "the reasons of its verdicts"),
        ("audit", "evidence", "why figures were not measured"),
        ("dp-sgd", "warnings", "names and most numbers in its warnings"),
    ],
)
def test_free_words_are_named(kinds: Kinds, name: str, entry: str, words: str) -> None:
    assert words in named(changed(kinds, name))
    assert words not in named(changed(kinds, name, **{entry: []}))


@pytest.mark.parametrize("created", ["certified private", "2030-01-09", "2030-01-09T00:00:00Z, certified"])
def test_words_for_a_date_are_refuted(kinds: Kinds, created: str) -> None:
    found = changed(kinds, "dp-sgd", created=created)
    assert found.exit_code is ExitCode.REFUTED
    assert any("is no date and time" in verdict.reason for verdict in found.verdicts)
    assert changed(kinds, "dp-sgd", created="2030-01-09T00:00:00Z").exit_code is ExitCode.OK


@pytest.fixture
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an older audit whose log is not at hand: neither it nor the ranks record the parameters."""
    monkeypatch.setattr("verify.run.check_log", lambda path, report: ([], []))
    monkeypatch.setattr("verify.audits.kept_request.SETTINGS", "not recorded")


@pytest.mark.usefixtures("nothing_recorded")
@pytest.mark.parametrize("name", _AUDITED)
def test_every_parameter_of_an_audit_that_no_check_rests_on_is_named(kinds: Kinds, name: str) -> None:
    parameters = json.loads(kinds[name].path.read_text())["parameters"]
    passed = set()
    for entry, value in parameters.items():
        other = f"{value}x" if isinstance(value, str) else {"certified": 1} if isinstance(value, dict) else None
        other = 2 * value + 1 if isinstance(value, int | float) else other
        if other is not None and changed(kinds, name, parameters=parameters | {entry: other}).exit_code is ExitCode.OK:
            passed.add(entry)
    assert passed & {*OF_ATTACKS, "dtype"}
    assert passed <= set(named(changed(kinds, name)).split("the parameters ")[1].split(":")[0].split(", "))


@pytest.mark.usefixtures("nothing_recorded")
@pytest.mark.parametrize("name", _AUDITED)
def test_a_parameter_that_no_audit_has_leaves_it_open(kinds: Kinds, name: str) -> None:
    parameters = json.loads(kinds[name].path.read_text())["parameters"]
    assert changed(kinds, name).exit_code is ExitCode.OK
    found = changed(kinds, name, parameters=parameters | {"certified": True})
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any(
        "has the parameter 'certified', so its meaning is unknown" in verdict.reason for verdict in found.verdicts
    )


def test_how_a_scan_looked_is_named(kinds: Kinds) -> None:
    parameters = json.loads(kinds["book of secrets"].path.read_text())["parameters"]
    found = changed(kinds, "book of secrets", parameters=parameters | {"certified": True})
    listed = named(found).split("the parameters ")[1].split(":")[0].split(", ")
    assert {"certified", "kinds", "most_secrets"} <= {*listed}
    assert not {"found", "dataset_size"} & {*listed}


@pytest.mark.parametrize(("entry", "value"), [("canary_exact_groups", 1), ("canary_groups", 0)])
def test_ranks_among_some_secrets_are_not_exact(kinds: Kinds, entry: str, value: int) -> None:
    """A gate takes an exposure for exact, and needs no upper bound on it, if all sets were ranked among all secrets."""
    kind = kinds["audit of canaries"]
    parameters = json.loads(kind.path.read_text())["parameters"]
    assert (parameters["canary_exact_groups"], parameters["canary_groups"]) == (0, 1)
    path = kind.path.with_name("mutant.report.json")
    # The canaries are drawn anew, so whether their exposure is small enough, or might be, differs.
    for changes, fails in (({}, False), ({entry: value}, True)):
        path.write_text(json.dumps(json.loads(kind.path.read_text()) | {"parameters": parameters | changes}))
        limited = replace(kind, policy={"max_exposure": "5.4", "require_model": "true"})
        assert (Gate(limited).judged(path).outcome is GateOutcome.FAIL) is fails
    found = verify(path, read(path))
    path.unlink()
    assert any("ranked among some secrets, by what it kept" in verdict.reason for verdict in found.verdicts)
