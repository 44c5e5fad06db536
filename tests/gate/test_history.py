"""Chains, steps, verdicts, ages and waivers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.gate import GateJudgement
from privctl.domain.guarantee import Assumption, AssumptionState, Status
from privctl.domain.report import Artifact, ParentReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.policy import read_policy
from privctl.storage.digest import file_digest
from tests.gate.made import (
    DATA,
    FAIL,
    INCONCLUSIVE,
    NOW,
    PASS,
    PROVED,
    auc,
    audit,
    judged,
    making,
    of,
    only,
    weights,
)

LEAK = Verdict(subject="members", outcome=Outcome.REFUTED, reason="loss AUC 0.9")


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, Path]:
    first = making(tmp_path / "a.report.json", name="a")
    last = making(tmp_path / "b.report.json", PROVED, name="b", step="noise", inputs=[weights("a")], parents=[first])
    return first, last


def test_a_chain_is_followed(chain: tuple[Path, Path]) -> None:
    judgement = judged(chain[1], max_epsilon="8", required_steps="retrain,noise")
    assert (judgement.outcome, judgement.models) == (PASS, ("b",))
    assert "1 that they build on" in only(judgement, "readable").message


def test_the_earlier_model_is_not_judged_and_its_audit_does_not_count(chain: tuple[Path, Path], tmp_path: Path) -> None:
    looked = audit(tmp_path / "x.json", auc(0.9, 0.8, 0.95), name="a", verdicts=[LEAK])
    judgement = judged(*chain, looked, max_epsilon="8")
    assert (judgement.outcome, judgement.models) == (PASS, ("b",))
    assert any("earlier model" in note for note in judgement.notes)
    assert only(judged(*chain, looked, max_auc="0.6"), "max_auc").outcome is INCONCLUSIVE


@pytest.mark.parametrize("method", ["dp-sgd", "dpquant"])
def test_an_audit_run_is_not_for_release_and_nothing_trained_from_it(method: str, tmp_path: Path) -> None:
    mixed_in = {"method": method, "gradient_canaries": 301}
    first = making(tmp_path / "a.report.json", PROVED, name="a", parameters=mixed_in)
    last = making(tmp_path / "b.report.json", PROVED, name="b", inputs=[weights("a", "start-a")], parents=[first])
    for report in (first, last):
        judgement = judged(report, max_epsilon="8")
        assert judgement.outcome is FAIL
        assert "added canary gradients for an audit" in only(judgement, "model").message


def test_a_parent_that_changed_fails_and_is_not_read(chain: tuple[Path, Path]) -> None:
    chain[0].write_text("not even JSON")
    found = only(judged(chain[1], max_epsilon="8"), "chain")
    assert (found.outcome, "its digest differs" in found.message) == (FAIL, True)
    line = chain[1].read_text().splitlines()[found.place.line - 1]
    assert "a.report.json" in line


def test_a_parent_that_is_gone_is_inconclusive_unless_it_is_given(chain: tuple[Path, Path], tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.json"
    chain[0].rename(moved)
    assert only(judged(chain[1], max_epsilon="8"), "chain").outcome is INCONCLUSIVE
    assert judged(chain[1], moved, max_epsilon="8").outcome is PASS


def test_a_parent_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("pipe", ".", "\0", "/dev/zero", "../" * 50 + "etc/hostname"):
        parents = (ParentReport(path=path, digest="blake3:00"),)
        report = making(tmp_path / "m.report.json", PROVED, parents=[])
        data = json.loads(report.read_text())
        data["parents"] = [{"path": parent.path, "digest": parent.digest} for parent in parents]
        report.write_text(json.dumps(data))
        judgement = judged(report, max_epsilon="8")
        assert judgement.outcome in (FAIL, INCONCLUSIVE), path


def test_weights_that_no_parent_wrote(tmp_path: Path) -> None:
    first = making(tmp_path / "a.report.json", name="a")
    last = making(tmp_path / "b.report.json", PROVED, name="b", step="noise", inputs=[weights("z")], parents=[first])
    assert only(judged(last, max_epsilon="8"), "chain").outcome is FAIL


def test_training_twice_on_the_same_data_is_not_covered_by_the_second_guarantee(tmp_path: Path) -> None:
    def data(name: str) -> Artifact:
        return Artifact(role="data", path="d.jsonl", digest=f"blake3:{name}", bytes=1)

    first = making(tmp_path / "a.report.json", name="a", inputs=[data("1")])
    for name, outcome in (("1", FAIL), ("2", PASS)):
        last = making(tmp_path / "b.report.json", PROVED, name="b", inputs=[data(name), weights("a", "start-a")])
        assert only(judged(first, last, max_epsilon="8"), "contradiction").outcome is outcome


def test_noise_after_training_twice_on_the_same_data_hides_nothing(tmp_path: Path) -> None:
    """What noise adds is post-processing, so the second guarantee is that of its output too."""
    first = making(tmp_path / "one.json", PROVED, name="one")
    second = making(tmp_path / "two.json", PROVED, name="two", inputs=[DATA, weights("one", "start-model.safetensors")])
    noised = making(tmp_path / "n.json", name="n", step="noise", inputs=[weights("two")])
    fails = [
        finding.message
        for finding in judged(noised, second, first, max_epsilon="8").findings
        if finding.outcome is FAIL
    ]
    assert any("on the same data" in each for each in fails)
    assert not any(
        "on the same data" in finding.message for finding in judged(noised, second, max_epsilon="8").findings
    )


def test_a_second_training_that_promises_nothing_contradicts_nothing(tmp_path: Path) -> None:
    """Without a guarantee, and where the report says itself that none holds."""
    first = making(tmp_path / "one.json", name="one")
    begun = Assumption(name="starting weights", statement="made without these", state=AssumptionState.VIOLATED)
    void = replace(PROVED, status=Status.VOID, assumptions=(begun,))
    for promised in ((), (void,)):
        inputs = [DATA, weights("one", "start-model.safetensors")]
        second = making(tmp_path / "two.json", *promised, name="two", inputs=inputs)
        assert only(judged(first, second, max_auc="0.6"), "contradiction").outcome is PASS


def test_two_reports_of_one_model(tmp_path: Path) -> None:
    """The one with the better number must not be enough."""
    bad = making(tmp_path / "a.json", replace(PROVED, epsilon=50.0))
    good = making(tmp_path / "b.json", PROVED)
    judgement = judged(bad, good, max_epsilon="8")
    assert (judgement.outcome, "the two reports differ" in only(judgement, "contradiction").message) == (FAIL, True)


def test_a_report_given_twice_counts_once(tmp_path: Path) -> None:
    report = making(tmp_path / "m.json", PROVED)
    (tmp_path / "copy.json").write_bytes(report.read_bytes())
    (tmp_path / "link.json").symlink_to("m.json")
    judgement = judged(report, tmp_path / "copy.json", tmp_path / "link.json", report, max_epsilon="8")
    assert (judgement.outcome, len(of(judgement, "max_epsilon"))) == (PASS, 1)
    assert sum("counts once" in note for note in judgement.notes) == 3


def test_every_model_that_goes_out_is_judged(tmp_path: Path) -> None:
    good = making(tmp_path / "a.json", PROVED, name="a")
    bad = making(tmp_path / "b.json", replace(PROVED, epsilon=9.0), name="b")
    judgement = judged(good, bad, max_epsilon="8")
    assert judgement.outcome is FAIL
    assert [finding.model for finding in of(judgement, "max_epsilon")] == ["a", "b"]


def test_a_plan_is_no_model(tmp_path: Path) -> None:
    plan = making(tmp_path / "p.json", PROVED, step="account", outputs=())
    alone = judged(plan, max_epsilon="8")
    assert (alone.outcome, "about a model" in only(alone, "model").message) == (INCONCLUSIVE, True)
    with_model = judged(making(tmp_path / "m.json", replace(PROVED, epsilon=9.0)), plan, max_epsilon="8")
    assert only(with_model, "max_epsilon").outcome is FAIL
    assert only(with_model, "model").outcome is INCONCLUSIVE


def test_a_refuted_claim_fails_though_the_report_names_no_model(tmp_path: Path) -> None:
    scores = audit(tmp_path / "s.json", verdicts=[LEAK], inputs=())
    judgement = judged(making(tmp_path / "m.json", PROVED), scores, max_epsilon="8")
    assert (judgement.outcome, only(judgement, "forbid_outcomes").outcome) == (FAIL, FAIL)
    assert only(judgement, "model").outcome is INCONCLUSIVE


# Steps.


@pytest.mark.parametrize(
    ("step", "evidence", "verdicts", "outcome"),
    [
        ("audit", (auc(0.5, 0.4, 0.6),), (), PASS),
        ("audit", (), (), INCONCLUSIVE),
        ("audit", (auc(None, None, None),), (), INCONCLUSIVE),
        ("verify", (), (Verdict(subject="s", outcome=Outcome.PROVED, reason=""),), PASS),
        ("verify", (), (Verdict(subject="s", outcome=Outcome.INCONCLUSIVE, reason=""),), INCONCLUSIVE),
        ("verify", (), (), INCONCLUSIVE),
        ("inspect", (), (), PASS),
    ],
)
def test_a_required_step_must_have_something_to_show(
    tmp_path: Path, step: str, evidence: tuple[Evidence, ...], verdicts: tuple[Verdict, ...], outcome: object
) -> None:
    report = making(tmp_path / "m.json", PROVED)
    looked = audit(tmp_path / "x.json", *evidence, verdicts=verdicts, step=step)
    assert only(judged(report, looked, required_steps=step), "required_steps").outcome is outcome
    assert only(judged(report, required_steps=step), "required_steps").outcome is INCONCLUSIVE


def test_a_step_that_names_only_the_report_is_about_its_model(tmp_path: Path) -> None:
    report = making(tmp_path / "m.json", PROVED)
    parents = (ParentReport(path="m.json", digest=file_digest(report)),)
    for subject, outcome in ((PROVED.name, PASS), ("another", INCONCLUSIVE)):
        settled = Verdict(subject=subject, outcome=Outcome.CONSISTENT, reason="")
        looked = audit(tmp_path / "v.json", verdicts=[settled], step="verify", inputs=(), parents=parents)
        assert judged(report, looked, required_steps="verify").outcome is outcome
        looked.unlink()


@pytest.mark.parametrize(
    ("outcome", "forbidden", "found"),
    [
        (Outcome.REFUTED, "REFUTED", FAIL),
        (Outcome.INCONCLUSIVE, "REFUTED", PASS),
        (Outcome.INCONCLUSIVE, "INCONCLUSIVE", INCONCLUSIVE),
        (Outcome.CONSISTENT, "REFUTED,INCONCLUSIVE", PASS),
    ],
)
def test_forbidden_verdicts_stop_a_release(tmp_path: Path, outcome: Outcome, forbidden: str, found: object) -> None:
    looked = audit(tmp_path / "a.json", verdicts=[replace(LEAK, outcome=outcome)])
    judgement = judged(making(tmp_path / "m.json", PROVED), looked, forbid_outcomes=forbidden, max_epsilon="8")
    assert only(judgement, "forbid_outcomes").outcome is found


@pytest.mark.parametrize(
    ("created", "outcome"),
    [
        ("2030-01-09T00:00:00Z", PASS),
        ("2030-01-09T00:00:00", PASS),
        ("2030-01-05T11:59:59Z", FAIL),
        ("2030-01-05T12:00:01Z", PASS),
        ("2030-01-11T11:00:00Z", PASS),  # a clock that is ahead
        ("2999-01-01T00:00:00Z", FAIL),
        ("yesterday", FAIL),
        ("", FAIL),
        ("9999-12-31T23:59:59-23:59", FAIL),
        ("0001-01-01T00:00:00+23:59", FAIL),
    ],
)
def test_old_reports_stop_a_release(tmp_path: Path, created: str, outcome: object) -> None:
    report = making(tmp_path / "m.json", PROVED, created=created)
    assert only(judged(report, max_age_days="5"), "max_age_days").outcome is outcome


@pytest.mark.parametrize("created", ["yesterday", "", "2099-01-01T00:00:00Z"])
def test_an_impossible_date_fails_whatever_the_policy_asks(tmp_path: Path, created: str) -> None:
    judgement = judged(making(tmp_path / "m.json", PROVED, created=created), max_epsilon="8")
    assert only(judgement, "max_age_days").outcome is FAIL


def test_a_step_that_privctl_does_not_write_fails(tmp_path: Path) -> None:
    judgement = judged(making(tmp_path / "m.json", PROVED, step="train"), max_epsilon="8")
    assert "privctl has no step 'train'" in only(judgement, "contradiction").message


# Waivers.


def waived(tmp_path: Path, *entries: str, verdict: Verdict = LEAK) -> GateJudgement:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_epsilon = 8\nrecompute = false\n" + "".join(f"[[waiver]]\n{entry}\n" for entry in entries))
    looked = audit(tmp_path / "a.json", verdicts=[verdict])
    report = making(tmp_path / "m.json", PROVED)
    return judge([report, looked], read_policy(policy, {}, {}, RULES), None, NOW)


def entry(expires: date, rule: str = "forbid_outcomes", more: str = "", name: str = "W1") -> str:
    return f'id = "{name}"\nrule = "{rule}"\nreason = "public data"\nexpires = {expires.isoformat()}\n{more}'


TODAY = NOW.date()


def test_a_waiver_covers_and_is_shown(tmp_path: Path) -> None:
    judgement = waived(tmp_path, entry(TODAY))
    assert judgement.outcome is PASS
    (found,) = judgement.waived
    assert (found.waiver, found.waived_because) == ("W1", f"public data (until {TODAY})")


def test_a_waiver_that_expired_yesterday_does_not(tmp_path: Path) -> None:
    judgement = waived(tmp_path, entry(TODAY - timedelta(days=1)))
    assert (judgement.outcome, judgement.waived) == (FAIL, ())
    assert any("waiver W1 expired" in note and "its findings count again" in note for note in judgement.notes)


@pytest.mark.parametrize(
    ("more", "outcome"), [('subject = "members"', PASS), ('subject = "Members"', FAIL), ('subject = "m"', FAIL)]
)
def test_a_waiver_of_one_subject(tmp_path: Path, more: str, outcome: object) -> None:
    assert waived(tmp_path, entry(TODAY, more=more)).outcome is outcome


def test_a_waiver_of_another_rule_is_unused(tmp_path: Path) -> None:
    judgement = waived(tmp_path, entry(TODAY, rule="max_auc"))
    assert judgement.outcome is FAIL
    assert "waiver W1 covers no finding: remove it" in judgement.notes


def test_of_two_waivers_the_one_that_is_alive_counts(tmp_path: Path) -> None:
    judgement = waived(tmp_path, entry(TODAY - timedelta(days=1)), entry(TODAY, name="W2"))
    assert (judgement.outcome, judgement.waived[0].waiver) == (PASS, "W2")


def test_thousands_of_findings_are_cut_and_counted(tmp_path: Path) -> None:
    looked = audit(tmp_path / "a.json", *(auc(0.9, 0.8, 0.95, f"attack {i}") for i in range(1500)))
    judgement = judged(making(tmp_path / "m.json", PROVED), looked, max_auc="0.6")
    assert (judgement.outcome, len(of(judgement, "max_auc"))) == (FAIL, 100)
    assert "1400 more findings of max_auc (fail) left out" in judgement.notes
