"""Which guarantees count, and which of those that do is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privctl.domain.guarantee import (
    Adjacency,
    Assumption,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    Risk,
    RiskMeasure,
    Scope,
    Status,
)
from privctl.domain.mechanism import Calibration, ClippedTraining, WeightNoise
from tests.gate.made import (
    ASSERTED,
    CONDITIONAL,
    ENFORCED,
    FAIL,
    INCONCLUSIVE,
    PASS,
    PROVED,
    VIOLATED,
    auc,
    audit,
    judged,
    lower_bound,
    making,
    of,
    only,
    weights,
)

CLAIMED = replace(CONDITIONAL, name="published", status=Status.CLAIMED, adjacency=Adjacency.UNSTATED)


@pytest.mark.parametrize(
    ("guarantee", "flags", "outcome", "says"),
    [
        (PROVED, {}, PASS, "epsilon 2 at delta 1e-06"),
        (replace(PROVED, epsilon=2.0001), {}, FAIL, "is above 2"),
        (replace(PROVED, delta=1e-5), {}, PASS, "within 2"),
        (replace(PROVED, delta=1.0001e-5), {}, FAIL, "is at delta"),
        (replace(PROVED, delta=1e-3), {"at_delta": "1e-3"}, PASS, "within"),
        (replace(PROVED, delta=0.0), {"at_delta": "0"}, PASS, "at delta 0"),
        (PROVED, {"at_delta": "0"}, FAIL, "is at delta"),
        (replace(PROVED, epsilon=None), {}, FAIL, "bounds no epsilon"),
        (CONDITIONAL, {}, PASS, "if this holds: vocabulary"),
        (CONDITIONAL, {"require": "proved"}, FAIL, "is conditional"),
        (CONDITIONAL, {"accepted_assumptions": "vocabulary"}, PASS, "vocabulary"),
        (CONDITIONAL, {"accepted_assumptions": "convex-loss"}, FAIL, "rests on vocabulary"),
        (PROVED, {"accepted_assumptions": "convex-loss"}, PASS, "in real arithmetic"),
        (CLAIMED, {}, FAIL, "published is claimed"),
        (CLAIMED, {"require": "proved,claimed"}, FAIL, "adjacency unstated"),
        (CLAIMED, {"require": "claimed", "adjacencies": "unstated"}, PASS, "claimed"),
        (replace(PROVED, status=Status.VOID, assumptions=(VIOLATED,)), {}, FAIL, "is void"),
        (replace(PROVED, status=Status.REFUTED), {}, FAIL, "is refuted"),
        (replace(PROVED, adjacency=Adjacency.REPLACE_ONE), {"adjacencies": "add-or-remove"}, FAIL, "replace-one"),
        (replace(PROVED, notion=Notion.MUTUAL_INFORMATION), {}, FAIL, "is about mutual-information"),
        (replace(PROVED, notion=Notion.MUTUAL_INFORMATION), {"notions": "mutual-information"}, PASS, "nats 2"),
        (replace(PROVED, unit=PrivacyUnit.SECRET), {}, FAIL, "protects one secret"),
        (replace(PROVED, unit=PrivacyUnit.SECRET), {"units": "secret"}, PASS, "within"),
        (replace(PROVED, scope=Scope.ALL_CANDIDATES), {"scope": "all-candidates"}, PASS, "within"),
        (PROVED, {"scope": "all-candidates"}, PASS, "within"),
    ],
)  # fmt: skip
def test_only_sound_guarantees_count(
    tmp_path: Path, guarantee: Guarantee, flags: dict[str, str], outcome: str, says: str
) -> None:
    report = making(tmp_path / "m.report.json", guarantee)
    found = only(judged(report, max_epsilon="2", **flags), "max_epsilon")
    assert found.outcome is outcome
    assert says in found.message
    assert (found.fix == "") == (outcome is PASS)
    line = (tmp_path / "m.report.json").read_text().splitlines()[found.place.line - 1]
    assert '"epsilon"' in line or '"guarantees"' in line


CONVEX = Assumption(name="convex-loss", statement="convex", state=AssumptionState.ASSERTED)
OF_CONVEX = replace(CONDITIONAL, name="convex", assumptions=(ENFORCED, CONVEX))


def test_no_assumption_about_the_loss_counts_unless_the_policy_names_it(tmp_path: Path) -> None:
    """The weights of a Llama with noise have a small epsilon if its loss is convex, and 306 as it is."""
    report = making(tmp_path / "m.report.json", OF_CONVEX)
    found = only(judged(report, max_epsilon="2"), "max_epsilon")
    assert (found.outcome, "rests on convex-loss" in found.message) == (FAIL, True)
    named = only(judged(report, max_epsilon="2", accepted_assumptions="convex-loss"), "max_epsilon")
    assert named.outcome is PASS


@pytest.mark.parametrize(
    ("guarantee", "accepted", "fix"),
    [
        (
            CONDITIONAL,
            "convex-loss",
            'if somebody vouches for the unchecked assumptions, add to accepted_assumptions: "vocab',
        ),
        (OF_CONVEX, "vocabulary", "if this holds for the model's loss, which it does not for a neural network, add to"),
        (OF_CONVEX, None, 'list in accepted_assumptions: "convex-loss"'),
        (replace(CONDITIONAL, epsilon=2.1), "convex-loss", "train with a smaller budget"),
        (replace(CONDITIONAL, delta=0.1), "convex-loss", "train with a smaller budget"),
    ],
)
def test_what_the_policy_does_not_accept_is_no_matter_of_budget(
    tmp_path: Path, guarantee: Guarantee, accepted: str | None, fix: str
) -> None:
    report = making(tmp_path / "m.report.json", guarantee)
    flags = {} if accepted is None else {"accepted_assumptions": accepted}
    assert fix in only(judged(report, max_epsilon="2", **flags), "max_epsilon").fix


@pytest.mark.parametrize(("step", "noise"), [("retrain", False), ("noise", True)])
def test_noise_is_no_way_out_for_a_private_training(tmp_path: Path, step: str, noise: bool) -> None:
    """``privctl noise`` refuses a model that was trained privately."""
    report = making(tmp_path / "m.report.json", replace(PROVED, epsilon=2.1), step=step)
    assert ("privctl noise" in only(judged(report, max_epsilon="2"), "max_epsilon").fix) == noise


@pytest.mark.parametrize(("delta", "outcome"), [(0.1, FAIL), (1 / 60, FAIL), (0.016, PASS)])
def test_no_delta_at_which_a_record_may_come_out_whole(tmp_path: Path, delta: float, outcome: object) -> None:
    report = making(tmp_path / "m.report.json", replace(PROVED, delta=delta), parameters={"examples": 60})
    found = only(judged(report, max_epsilon="2", at_delta="0.5"), "max_epsilon")
    assert found.outcome is outcome
    assert outcome is PASS or "which permits revealing one of the 60 examples completely" in found.message


def test_one_of_several_candidates(tmp_path: Path) -> None:
    training = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=10, batch_size=5)
    noise = WeightNoise(
        training=training,
        noise_stddev=1.0,
        dimension=3,
        calibration=Calibration.GAUSSIAN,
        candidate_stddevs=(1.0, 2.0),
    )
    report = making(tmp_path / "m.report.json", PROVED, step="noise", mechanism=noise)
    assert only(judged(report, max_epsilon="2"), "max_epsilon").outcome is PASS
    found = only(judged(report, max_epsilon="2", scope="all-candidates"), "max_epsilon")
    assert (found.outcome, "one of several candidates" in found.message) == (FAIL, True)


def test_the_best_that_counts_is_enough_and_a_proved_one_is_named_first(tmp_path: Path) -> None:
    small = replace(CONDITIONAL, name="convex", epsilon=0.1)
    large = replace(PROVED, name="nonconvex", epsilon=300.0)
    report = making(tmp_path / "m.report.json", large, small, replace(PROVED, name="tight"))
    assert only(judged(report, max_epsilon="2"), "max_epsilon").subject == "tight"
    assert only(judged(report, max_epsilon="1"), "max_epsilon").subject == "convex"
    failed = only(judged(report, max_epsilon="0.01"), "max_epsilon")
    assert (failed.outcome, failed.subject) == (FAIL, "convex")


def test_a_model_without_any_guarantee_fails(tmp_path: Path) -> None:
    found = only(judged(making(tmp_path / "m.report.json"), max_epsilon="2"), "max_epsilon")
    assert (found.outcome, "state none" in found.message) == (FAIL, True)


def test_without_the_model_s_report_nobody_can_tell(tmp_path: Path) -> None:
    found = only(judged(audit(tmp_path / "a.report.json", auc(0.5, 0.4, 0.6)), max_epsilon="2"), "max_epsilon")
    assert found.outcome is INCONCLUSIVE


@pytest.mark.parametrize(
    ("bound", "outcomes"),
    [
        (lower_bound(1.9), [PASS]),
        (lower_bound(2.1), [FAIL, PASS]),
        (lower_bound(2.1, delta=1e-6), [PASS]),  # says nothing of a larger delta
        (lower_bound(2.1, delta=1e-3), [FAIL, PASS]),
        (replace(lower_bound(9.0), quantity="epsilon of groups of 10"), [PASS]),
        (replace(lower_bound(9.0), quantity="epsilon lower bound at delta 1e-05"), [FAIL, PASS]),
    ],
)  # fmt: skip
def test_an_audit_that_certifies_more_than_is_allowed(tmp_path: Path, bound: object, outcomes: list[object]) -> None:
    report = making(tmp_path / "m.report.json", PROVED)
    looked = audit(tmp_path / "a.report.json", bound)  # type: ignore[arg-type]
    assert [finding.outcome for finding in of(judged(report, looked, max_epsilon="2"), "max_epsilon")] == outcomes


@pytest.mark.parametrize(("limit", "outcome"), [("0.2", PASS), ("0.1", FAIL)])
def test_max_posterior_is_compared_with_the_secret_guarantee(tmp_path: Path, limit: str, outcome: object) -> None:
    secret = replace(
        PROVED,
        name="secret protection",
        notion=Notion.SECRET_PROTECTION,
        unit=PrivacyUnit.SECRET,
        risks=(Risk(measure=RiskMeasure.POSTERIOR, bound=0.15, at=0.01),),
    )
    report = making(tmp_path / "m.report.json", PROVED, secret)
    found = only(judged(report, max_posterior=limit), "max_posterior")
    assert (found.outcome, found.subject) == (outcome, "secret protection")


def test_no_posterior(tmp_path: Path) -> None:
    found = only(judged(making(tmp_path / "m.report.json", PROVED), max_posterior="0.5"), "max_posterior")
    assert (found.outcome, "protects one example" in found.message) == (FAIL, True)


def test_noise_on_a_private_model_keeps_its_guarantee_and_training_on_it_does_not(tmp_path: Path) -> None:
    first = making(tmp_path / "a.report.json", PROVED, name="a")
    noised = making(
        tmp_path / "b.report.json", replace(CLAIMED), name="b", step="noise", inputs=[weights("a")], parents=[first]
    )
    found = judged(noised, max_epsilon="2")
    assert (only(found, "max_epsilon").outcome, found.outcome) == (PASS, PASS)
    trained = making(
        tmp_path / "c.report.json", name="c", step="retrain", inputs=[weights("a", "start-a")], parents=[first]
    )
    assert only(judged(trained, max_epsilon="2"), "max_epsilon").outcome is FAIL


@pytest.mark.parametrize(
    ("guarantee", "says"),
    [
        (replace(CONDITIONAL, status=Status.PROVED), "is conditional by its own assumptions (asserted: vocabulary)"),
        (replace(PROVED, assumptions=(ENFORCED, VIOLATED)), "is void by its own assumptions (violated: secret noise)"),
        (replace(PROVED, status=Status.CLAIMED, assumptions=(VIOLATED, ASSERTED)), "states claimed, but is void"),
        (replace(PROVED, assumptions=()), "no assumption that was enforced"),
        (replace(PROVED, floor=2.5), "lower bound 2.5"),
    ],
)
def test_an_upgraded_status_fails_and_does_not_count(tmp_path: Path, guarantee: Guarantee, says: str) -> None:
    found = judged(making(tmp_path / "m.report.json", guarantee), max_epsilon="2", require="proved,conditional,claimed")
    upgraded = only(found, "contradiction")
    assert (upgraded.outcome, says in upgraded.message) == (FAIL, True), upgraded.message
    assert only(found, "max_epsilon").outcome is FAIL
    fine = judged(making(tmp_path / "m.report.json", PROVED), max_epsilon="2")
    assert only(fine, "contradiction").outcome is PASS


def test_what_one_example_is_is_said_where_it_is_more_than_a_record(tmp_path: Path) -> None:
    unit = Assumption(
        name="unit of privacy",
        statement="all records with one value of 'patient' are one example",
        state=AssumptionState.ENFORCED,
    )
    whole = replace(PROVED, assumptions=(*PROVED.assumptions, unit))
    found = only(judged(making(tmp_path / "users.json", whole), max_epsilon="8"), "max_epsilon")
    assert "(dp-sgd, add-or-remove, of all records with one value of 'patient') is within 8" in found.message
    found = only(judged(making(tmp_path / "records.json", PROVED), max_epsilon="8"), "max_epsilon")
    assert "(dp-sgd, add-or-remove) is within 8" in found.message
