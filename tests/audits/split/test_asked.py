"""What an audit was asked: nothing that it found can be left out of its report by itself."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits import ATTACKS, THOROUGH
from audits.asked import ASKED, READ, SETTINGS
from audits.split.findings import NO_BOUNDS
from privctl.domain.report import Omission, ParentReport, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import read_report
from privctl.storage.digest import NamedFiles
from tests.audits.split.test_split import judged
from tests.gate.made import PROVED, making, weights
from verify.audits import asked, kept_request
from verify.audits.asked import unanswered_claims
from verify.audits.consistency import faults
from verify.audits.evidence import check_evidence
from verify.audits.terms import METHODS
from verify.run import read, verify


def without_attack(report: PrivacyReport, name: str) -> PrivacyReport:
    """Without an attack wherever one is named or counted."""
    kept = [i for i in report.evidence if i.method != name and not i.quantity.endswith(f", {name}")]
    compared = sum(item.test is not None for item in kept)
    evidence = [
        item if item.test is None else replace(item, test=replace(item.test, compared=compared)) for item in kept
    ]
    parameters = {**report.parameters, "attack": [each for each in report.parameters["attack"] if each != name]}
    return replace(report, evidence=tuple(evidence), parameters=parameters)


def of_ranks(path: Path, report: PrivacyReport) -> list[str]:
    return [v.reason for v in check_evidence(path, report, NamedFiles()).verdicts if v.outcome is Outcome.REFUTED]


def test_what_was_asked_cannot_be_left_out(audited: Path) -> None:
    report = read_report(audited)
    stated = report.parameters["asked"]
    assert stated["claims"] == [[8.0, 1e-5]]
    assert stated["files"]["split"] == [item.digest for item in report.inputs if item.role == "split"]
    assert not list(faults(report)) + of_ranks(audited, report)
    unbounded = replace(report, evidence=tuple(item for item in report.evidence if item.method not in METHODS))
    omitted = (*report.omissions, Omission(what=NO_BOUNDS, reason="fewer than two lines occur once"))
    parameters = {name: value for name, value in report.parameters.items() if name != "asked"}
    for forged, says in (
        (unbounded, "states no bound from the scores of 'loss'"),
        (replace(report, verdicts=report.verdicts[:1]), "it was to judge (8, 1e-05)-DP, and has no verdict on it"),
        (replace(report, verdicts=report.verdicts[1:]), "and has no verdict on 'members cannot be told"),
        (without_attack(report, "zlib"), "the attack 'zlib' was asked for"),
        (replace(report, inputs=tuple(i for i in report.inputs if i.role != "split")), "about other split"),
        (replace(report, parameters=parameters), "does not say what it was asked"),
    ):
        assert any(says in fault for fault in faults(forged)), says
    hidden = replace(unbounded, omissions=omitted, verdicts=report.verdicts[:1])
    assert not list(faults(hidden))
    assert judged(audited, hidden)[1].startswith("it omits its bounds, and ")


def test_an_audit_made_to_look_like_another_is_not_that_of_its_ranks(audited: Path) -> None:
    """As if no split had been given and no claim: in the report only the shares of the error disagree."""
    report = read_report(audited)
    of_split = ("split_commitment", "split_records")
    asked = {name: value for name, value in report.parameters["asked"].items() if name not in ("claims", "delta")}
    asked["files"] = {role: digests for role, digests in asked["files"].items() if role != "split"}
    plain = replace(
        report,
        inputs=tuple(item for item in report.inputs if item.role != "split"),
        evidence=tuple(item for item in report.evidence if item.method not in METHODS),
        verdicts=report.verdicts[:1],
        parameters={name: value for name, value in report.parameters.items() if name not in of_split}
        | {"asked": asked},
    )
    found = list(faults(plain))
    assert found
    assert all("and such an audit" in fault for fault in found)
    assert of_ranks(audited, plain) == [
        *(f"its parameter {name} is not what the ranks that it kept say" for name in of_split),
        "the files in the role 'split' are not those that the ranks that it kept name",
        "what it says that it was asked is not what the ranks that it kept say",
    ]
    for forged in ({**report.parameters["asked"], "claims": []}, {}):
        changed = replace(report, parameters={**report.parameters, "asked": forged})
        assert of_ranks(audited, changed) == ["what it says that it was asked is not what the ranks that it kept say"]


def test_every_setting_is_the_one_that_the_ranks_record(audited: Path) -> None:
    """Such as a device or a number format, which nothing that was measured shows."""
    report = read_report(audited)
    names = [name for name in report.parameters if name != "asked"]
    assert len(names) > 8
    for name in names:
        others = {other: value for other, value in report.parameters.items() if other != name}
        for parameters in (others, {**others, name: "another"}, {**others, name: {"within": 1}}):
            found = of_ranks(audited, replace(report, parameters=parameters))
            assert any(reason.startswith(f"its parameter {name}") for reason in found), name
    more = replace(report, parameters={**report.parameters, "bits": 4})
    assert of_ranks(audited, more) == ["its parameter bits is not what the ranks that it kept say"]


def test_every_file_and_report_is_one_that_the_ranks_record(audited: Path) -> None:
    """Such as the model, for which another one could be named, or none."""
    report = read_report(audited)
    says = "are not those that the ranks that it kept name"
    for i, item in enumerate(report.inputs):
        others = (*report.inputs[:i], *report.inputs[i + 1 :])
        expected = f"the files in the role {item.role!r} {says}"
        for inputs in (others, (*others, replace(item, digest=report.outputs[0].digest)), (*report.inputs, item)):
            assert expected in of_ranks(audited, replace(report, inputs=inputs))
        renamed = replace(report, inputs=(*others, replace(item, role="another")))
        assert {expected, f"the files in the role 'another' {says}"} <= {*of_ranks(audited, renamed)}
    parent = ParentReport(path="other.report.json", digest=report.outputs[0].digest)
    for parents in ((parent,), (*report.parents, parent)):
        assert of_ranks(audited, replace(report, parents=parents)) == [f"the reports that it builds on {says}"]


@pytest.mark.parametrize("package", ["numpy", "privctl"])
def test_versions_are_those_that_the_ranks_record(package: str, audited: Path) -> None:
    """With another numpy, p-values and intervals are compared roughly or not at all."""
    report = read_report(audited)
    without = {name: version for name, version in report.versions.items() if name != package}
    for versions in ({**without, package: "0.0"}, without, {}):
        found = of_ranks(audited, replace(report, versions=versions))
        assert found == ["its versions of packages are not those that the ranks that it kept say"]


def test_verify_says_what_another_numpy_cannot_draw_again(audited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    omitted = {omission.what for omission in verify(audited, read(audited)).omissions}
    monkeypatch.setattr(np, "__version__", "1.0")
    found = verify(audited, read(audited))
    assert found.exit_code == 0
    more = [omission for omission in found.omissions if omission.what not in omitted]
    assert [omission.what for omission in more] == ["labels drawn again"]
    assert f"numpy {read(audited).versions['numpy']}, and 1.0 is installed" in more[0].reason


def test_an_audit_names_what_it_measured(audited: Path) -> None:
    """Without a model and without scores, whatever its ranks record: they may lie elsewhere, or be edited too."""
    report = read_report(audited)
    for inputs in (
        [item for item in report.inputs if item.role != "model"],
        [replace(item, role="reference model" if item.role == "model" else item.role) for item in report.inputs],
    ):
        assert any("name neither a model nor scores" in f for f in faults(replace(report, inputs=tuple(inputs))))


def test_a_claim_is_not_said_to_be_that_of_a_report(audited: Path) -> None:
    report = read_report(audited)
    named = [
        verdict.subject.replace("as claimed", "proved in m.report.json (dp-sgd, add-or-remove)")
        for verdict in report.verdicts
    ]
    verdicts = tuple(replace(verdict, subject=name) for verdict, name in zip(report.verdicts, named, strict=True))
    assert any("is on a claim of a report that" in fault for fault in faults(replace(report, verdicts=verdicts)))


def test_verify_names_settings_only_where_no_ranks_record_them(audited: Path, tmp_path: Path) -> None:
    alone = tmp_path / audited.name
    shutil.copy(audited, alone)
    for place, named in ((audited, False), (alone, True)):
        (line,) = [each.reason for each in verify(place, read(place)).omissions if each.what == "bookkeeping"]
        assert ("dtype" in line, "device" in line) == (named, named)


def test_every_claim_of_the_models_own_report_is_judged(tmp_path: Path, audited: Path) -> None:
    report = replace(read_report(audited), inputs=(weights("m"),))
    own = read_report(making(tmp_path / "m.json", PROVED))
    (found,) = unanswered_claims(audited, report, [own])
    assert "has no verdict on (2, 1e-06)-DP" in found.reason
    judged = Verdict(subject="(2, 1e-06)-DP, proved in m.json", outcome=Outcome.CONSISTENT, reason="")
    assert not list(unanswered_claims(audited, replace(report, verdicts=(judged,)), [own]))
    assert not list(unanswered_claims(audited, report, [read_report(making(tmp_path / "n.json", PROVED, name="n"))]))
    assert not list(unanswered_claims(audited, report, [replace(own, guarantees=(replace(PROVED, epsilon=None),))]))


def test_verify_and_audit_have_the_same_list_of_attacks() -> None:
    assert (ATTACKS.keys(), THOROUGH.keys()) == (asked.USUAL, asked.THOROUGH)
    assert asked.NO_BOUNDS == NO_BOUNDS
    assert (kept_request.KEY, kept_request.SETTINGS, kept_request.READ) == (ASKED, SETTINGS, READ)
