"""What audits found: judged by bounds, never by estimates, and only where it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import beta

from audits.canaries.evidence import COMPLETION, EXPOSURE
from audits.extraction.summary import METHOD as EXTRACTION
from audits.membership.attack import RATES
from audits.membership.baseline import BLIND, CONTROL, LENGTH
from privctl.domain.evidence import Bound, Evidence, JointTest
from privctl.domain.gate import GateOutcome
from privctl.domain.report import Artifact, ParentReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.checks.exposure import upper_bits
from privctl.gate.checks.leakage import BASELINES
from privctl.show.text.gate import render
from privctl.storage.digest import file_digest
from tests.gate.made import (
    DATA,
    FAIL,
    INCONCLUSIVE,
    PASS,
    PROVED,
    auc,
    audit,
    judged,
    lower_bound,
    making,
    of,
    only,
    weights,
)


def tpr(estimate: float | None, lower: float | None, upper: float | None, rate: float = RATES[0]) -> Evidence:
    return auc(estimate, lower, upper, quantity=f"TPR at {100 * rate:g} % FPR")


def extraction(estimate: float, lower: float, upper: float, quantity: str = "rate on training text") -> Evidence:
    return auc(estimate, lower, upper, EXTRACTION, quantity=quantity)


def disclosed(estimate: float, lower: float, upper: float) -> Evidence:
    return auc(estimate, lower, upper, COMPLETION, quantity="disclosed, included, 1 copy")


def exposed(highest: float, ceiling: float, canaries: int = 10) -> Evidence:
    return Evidence(
        method=EXPOSURE,
        quantity="median bits, included, 1 copy",
        estimate=1.0,
        bound=Bound.NONE,
        samples={"canaries": canaries},
        details={"max": highest, "ceiling": ceiling},
    )


def test_the_baselines_are_those_of_the_audits() -> None:
    assert set(BASELINES) == {BLIND, LENGTH, CONTROL}


@pytest.mark.parametrize(
    ("rule", "limit", "item", "outcome", "says"),
    [
        ("max_auc", "0.6", auc(0.5, 0.42, 0.6), PASS, "upper bound 0.6 is within 0.6"),
        # The estimate is fine, and the interval is not.
        ("max_auc", "0.6", auc(0.5, 0.3, 0.61), INCONCLUSIVE, "the upper bound is above 0.6"),
        # The estimate is not fine, and the interval does not say so surely.
        ("max_auc", "0.6", auc(0.63, 0.59, 0.67), INCONCLUSIVE, "the upper bound is above"),
        ("max_auc", "0.6", auc(0.63, 0.601, 0.67), FAIL, "even the lower bound is above 0.6"),
        ("max_auc", "0.6", auc(0.55, 0.5, None), INCONCLUSIVE, "no upper bound"),
        ("max_auc", "0.6", auc(0.7, 0.65, None), FAIL, "lower bound"),
        ("max_auc", "0.6", auc(None, None, None, reason="too few"), INCONCLUSIVE, "too few"),
        ("max_auc", "0.6", auc(None, 0.1, 0.2), INCONCLUSIVE, "not measured"),
        (
            "max_auc",
            "0.6",
            auc(0.5, 0.45, 0.55, confidence=0.9),
            INCONCLUSIVE,
            "confidence is 90 %, and the policy asks for 95 %",
        ),
        ("max_auc", "0.6", auc(0.5, 0.45, 0.55, BLIND), INCONCLUSIVE, "no audit given for this model measured it"),
        ("max_auc", "0.6", auc(0.9, 0.45, 0.55), INCONCLUSIVE, "contradicts itself"),
        ("max_auc", "0.6", auc(-1.0, -2.0, 0.0), INCONCLUSIVE, "contradicts itself"),
        ("max_tpr", "0.05", tpr(0.01, 0.0, 0.04), PASS, "0.04 is within 0.05"),
        ("max_tpr", "0.05", tpr(0.01, 0.0, 0.06), INCONCLUSIVE, "above 0.05"),
        ("max_tpr", "0.05", tpr(0.09, 0.06, 0.12), FAIL, "lower bound"),
        ("max_tpr", "0.05", tpr(0.001, 0.0, 0.004, 0.001), INCONCLUSIVE, "measured it"),
        ("max_extracted", "0.01", extraction(0.0, 0.0, 0.009), PASS, "within"),
        ("max_extracted", "0.01", extraction(0.0, 0.0, 0.02), INCONCLUSIVE, "above 0.01"),
        ("max_extracted", "0.01", extraction(0.5, 0.4, 0.6), FAIL, "lower bound"),
        ("max_extracted", "0.01", extraction(0.5, 0.4, 0.6, "rate on held-out text"), INCONCLUSIVE, "measured it"),
        (
            "max_extracted",
            "0.01",
            extraction(0.5, 0.4, 0.6, "training text found in 100 queries with probability 0.5"),
            FAIL,
            "lower bound",
        ),
        ("max_disclosed", "0.1", disclosed(0.0, 0.0, 0.09), PASS, "within"),
        ("max_disclosed", "0.1", disclosed(0.0, 0.0, 0.3), INCONCLUSIVE, "above 0.1"),
        ("max_disclosed", "0.1", disclosed(0.5, 0.2, 0.8), FAIL, "lower bound"),
        ("max_epsilon_lower_bound", "2", lower_bound(2.0), PASS, "lower bound 2 is within 2"),
        ("max_epsilon_lower_bound", "2", lower_bound(2.1), FAIL, "certainly at least 2.1"),
        # Where delta is large, no epsilon is.
        ("max_epsilon_lower_bound", "2", lower_bound(0.0, delta=0.3), INCONCLUSIVE, "at delta 0.3, and the policy"),
        ("max_epsilon_lower_bound", "2", lower_bound(2.1, delta=0.3), FAIL, "certainly at least 2.1"),
        ("max_epsilon_lower_bound", "2", lower_bound(None, reason="not a bound"), INCONCLUSIVE, "not a bound"),
        ("max_epsilon_lower_bound", "2", lower_bound(1.0, confidence=0.5), INCONCLUSIVE, "its confidence is 50 %"),
        ("max_exposure", "8", exposed(3.0, 14.0), PASS, "bits, within 8"),
        ("max_exposure", "8", exposed(9.0, 14.0), FAIL, "exposure of 9 bits, above 8"),
        # One canary outranks all: nobody knows by how far.
        ("max_exposure", "14", exposed(10.0, 10.0), INCONCLUSIVE, "bits or more"),
        ("max_exposure", "8", exposed(7.9, 10.0), INCONCLUSIVE, "but may be"),
        ("max_exposure", "8", exposed(11.0, 10.0), INCONCLUSIVE, "states no valid highest exposure"),
        ("max_exposure", "8", exposed(-1.0, 10.0), INCONCLUSIVE, "states no valid highest exposure"),
        ("max_exposure", "8", exposed(1.0, 1e300), INCONCLUSIVE, "states no valid highest exposure"),
        ("max_exposure", "8", exposed(1.0, 10.0, canaries=0), INCONCLUSIVE, "states no valid highest exposure"),
    ],
)
def test_a_measured_quantity_is_compared_with_its_limit(
    tmp_path: Path, rule: str, limit: str, item: Evidence, outcome: object, says: str
) -> None:
    report, looked = making(tmp_path / "m.report.json", PROVED), audit(tmp_path / "a.report.json", item)
    judgement = judged(report, looked, **{rule: limit})
    found = only(judgement, rule)
    assert (found.outcome, says in found.message) == (outcome, True), found
    assert judgement.outcome in (found.outcome, FAIL)  # a contradiction is a finding of its own
    assert (found.fix == "") == (outcome is PASS)


def test_every_attack_is_judged_and_the_largest_is_named(tmp_path: Path) -> None:
    report = making(tmp_path / "m.report.json", PROVED)
    fine = [auc(0.5, 0.45, 0.55), auc(0.52, 0.47, 0.57, "zlib"), auc(0.53, 0.48, 0.9, BLIND)]
    passed = only(judged(report, audit(tmp_path / "a.json", *fine), max_auc="0.6"), "max_auc")
    assert (passed.subject, passed.message) == ("zlib AUC", "the largest of 2 upper bounds 0.57 is within 0.6")
    more = [*fine, auc(0.8, 0.7, 0.9, "rmia"), auc(0.6, 0.5, 0.7, "lira")]
    found = of(judged(report, audit(tmp_path / "a.json", *more), max_auc="0.6"), "max_auc")
    assert {(verdict.subject, verdict.outcome) for verdict in found} == {
        ("rmia AUC", FAIL),
        ("lira AUC", INCONCLUSIVE),
        ("zlib AUC", PASS),
    }


@pytest.mark.parametrize("baseline", [BLIND, LENGTH])
@pytest.mark.parametrize("interval", [(0.9, 0.8, 0.95), (0.1, 0.05, 0.2)])
def test_a_confounded_audit_is_no_pass(tmp_path: Path, baseline: str, interval: tuple[float, float, float]) -> None:
    """Where the records differ without the model, an attack that is blind to it may look harmless."""
    report = making(tmp_path / "m.report.json", PROVED)
    looked = audit(tmp_path / "a.json", auc(0.5, 0.45, 0.55), auc(*interval, baseline))
    found = only(judged(report, looked, max_auc="0.6"), "max_auc")
    assert found.outcome is INCONCLUSIVE
    assert "confounded" in found.message


def test_a_backward_auc_is_no_pass(tmp_path: Path) -> None:
    """Files that were swapped make a leak look like the opposite of one."""
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", auc(0.1, 0.05, 0.2))
    judgement = judged(report, looked, max_auc="0.6")
    assert judgement.outcome is INCONCLUSIVE
    assert any("non-members score higher" in finding.message for finding in of(judgement, "max_auc"))


def test_an_audit_of_another_model_says_nothing(tmp_path: Path) -> None:
    report = making(tmp_path / "m.report.json", PROVED)
    other = audit(tmp_path / "a.report.json", auc(0.5, 0.45, 0.55), name="other")
    judgement = judged(report, other, max_auc="0.6")
    assert judgement.outcome is INCONCLUSIVE
    assert judgement.models == ("m", "other")
    by_model = {finding.model: finding.outcome for finding in of(judgement, "max_auc")}
    assert by_model == {"m": INCONCLUSIVE, "other": PASS}


def test_only_audits_measure(tmp_path: Path) -> None:
    report = making(tmp_path / "m.json", PROVED)
    looked = audit(tmp_path / "a.json", auc(0.5, 0.45, 0.55), step="inspect")
    assert only(judged(report, looked, max_auc="0.6"), "max_auc").outcome is INCONCLUSIVE


def joint(detectable: float | None) -> JointTest:
    return JointTest(p_value=0.4, level=0.05, compared=1, relabellings=999, critical=2.0, detectable=detectable)


@pytest.mark.parametrize(
    ("asked", "item", "outcome"),
    [
        ("auc=0.6", auc(0.5, 0.4, 0.6), PASS),
        ("auc=0.59", auc(0.5, 0.4, 0.6), INCONCLUSIVE),
        ("auc=0.6", auc(0.5, 0.4, 0.6, details={"detectable": -1.0}), INCONCLUSIVE),
        ("auc=0.6", auc(0.5, 0.4, 0.6, details={}), INCONCLUSIVE),
        ("auc=0.6", auc(0.5, 0.4, 0.6, BLIND), INCONCLUSIVE),
        ("epsilon=3", lower_bound(1.0), PASS),
        ("epsilon=2.9", lower_bound(1.0), INCONCLUSIVE),
        # The joint test decides, whatever an interval would have shown.
        ("auc=0.58", auc(0.5, 0.4, 0.6, test=joint(0.58)), PASS),
        ("auc=0.7", auc(0.5, 0.4, 0.6, test=joint(0.71)), INCONCLUSIVE),
        ("auc=0.7", auc(0.5, 0.4, 0.6, test=joint(None)), INCONCLUSIVE),
        ("extraction=0.7", extraction(0.0, 0.0, 0.1), PASS),
        ("extraction=0.5", extraction(0.0, 0.0, 0.1), INCONCLUSIVE),
    ],
)
def test_an_audit_of_less_than_min_power_stops_a_release(
    tmp_path: Path, asked: str, item: Evidence, outcome: object
) -> None:
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", item)
    found = only(judged(report, looked, min_power=asked), "min_power")
    assert (found.outcome, found.subject) == (outcome, asked.split("=")[0])


@pytest.mark.parametrize(
    ("asked", "item", "remedy"),
    [
        # To see an AUC 0.05 above chance where 0.1 is seen takes a little more than four times as many.
        ("auc=0.55", replace(auc(0.5, 0.4, 0.6), samples={"members": 300, "nonmembers": 250}),
         "audit again with about 1,300 members and 1,100 non-members"),
        ("extraction=0.3", replace(extraction(0.0, 0.0, 0.1), samples={"training": 60}), "about 170 training texts"),
        ("epsilon=2", lower_bound(0.5), "privctl audit split --to-see 2 says whether"),
        ("auc=0.55", auc(0.5, 0.4, 0.6), "audit again with more records"),
    ],
)  # fmt: skip
def test_an_audit_that_saw_too_little_says_how_many_would_do(
    tmp_path: Path, asked: str, item: Evidence, remedy: str
) -> None:
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", item)
    assert remedy in only(judged(report, looked, min_power=asked), "min_power").fix


def test_an_upper_bound_above_the_limit_says_how_many_records_bring_it_down(tmp_path: Path) -> None:
    """A margin of 0.1 above the estimate becomes 0.05 with four times the sample."""
    counts = {"members": 100, "nonmembers": 100}
    near, wide = auc(0.55, 0.45, 0.65, samples=counts), auc(0.5, 0.3, 0.7, "lira", samples=counts)
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", near, wide)
    judgement = judged(report, looked, max_auc="0.6")
    assert {finding.fix for finding in of(judgement, "max_auc")} == {
        "audit again with about 400 members and 400 non-members, so that the interval is narrower"
    }
    grouped = audit(tmp_path / "g.json", near, wide, parameters={"group_by": "patient"})
    (found, _) = of(judged(report, grouped, max_auc="0.6"), "max_auc")
    assert "about 400 groups of members and 400 groups of non-members" in found.fix
    assert "max_auc (2 findings): the upper bound is above 0.6: loss AUC" in " ".join(render(judgement).split())
    few = replace(near, estimate=None, lower=None, upper=None, reason="too few non-members")
    (found,) = of(judged(report, audit(tmp_path / "b.json", few), max_auc="0.6"), "max_auc")
    assert found.fix == "remove the cause named here, audit again, and replace the report (privctl audit --force)"


def test_the_power_of_extraction_is_that_of_the_comparison_with_held_out_text(tmp_path: Path) -> None:
    """One text that comes out is seen soon, and is no verdict until it is beyond what held-out text gives."""
    alone = extraction(0.0, 0.0, 0.1, "rate on training text")
    beyond = replace(extraction(0.0, -0.1, 0.1, "rate beyond held-out text"), details={"detectable": 0.8})
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", beyond, alone)
    found = only(judged(report, looked, min_power="extraction=0.7"), "min_power")
    assert (found.outcome, "of 0.8 would" in found.message) == (INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (auc(0.9, 0.45, 0.55), "does not contain its estimate"),
        (auc(0.5, 0.6, 0.4), "is above its upper bound"),
        (auc(-1.0, -2.0, 0.0), "outside 0 to 1"),
        (auc(0.5, 0.4, 0.6, confidence=1.0), "confidence is 1"),
        (lower_bound(-1.0), "below 0"),
    ],
)
def test_evidence_that_nobody_can_have_measured_fails(tmp_path: Path, item: Evidence, says: str) -> None:
    report, looked = making(tmp_path / "m.json", PROVED), audit(tmp_path / "a.json", item)
    found = only(judged(report, looked, max_epsilon="8"), "contradiction")
    assert (found.outcome, says in found.message) == (FAIL, True)


def test_an_audit_proves_nothing(tmp_path: Path) -> None:
    proved = Verdict(subject="private", outcome=Outcome.PROVED, reason="")
    looked = audit(tmp_path / "a.json", auc(0.5, 0.4, 0.6), verdicts=[proved])
    judgement = judged(making(tmp_path / "m.json", PROVED), looked, max_epsilon="8")
    assert "no attack can prove" in only(judgement, "contradiction").message
    consistent = replace(proved, outcome=Outcome.CONSISTENT)
    looked = audit(tmp_path / "a.json", auc(0.5, 0.4, 0.6), verdicts=[consistent])
    assert judged(making(tmp_path / "m.json", PROVED), looked, max_epsilon="8").outcome is PASS


@pytest.mark.parametrize("bits", [1.0, 3.0, 6.0, 9.0, 11.0])
@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_the_bound_on_exposure_is_a_little_above_clopper_and_pearson_s(bits: float, alpha: float) -> None:
    """scipy's beta quantile gives the exact limit, which Chernoff's must never undercut."""
    references = 2**12 - 1
    above = round(2 ** (12 - bits)) - 1
    exact = beta.ppf(alpha, above, references - above + 1)
    found = upper_bits(bits, 12.0, alpha)
    assert found is not None
    assert 2**-found <= exact * (1 + 1e-9)
    assert 2**-found >= exact / 3
    if bits <= 6:
        assert 2**-found >= exact / 1.2


def test_the_bound_on_exposure_where_there_is_none() -> None:
    assert upper_bits(12.0, 12.0, 0.05) is None
    assert upper_bits(0.0, 0.0, 0.05) is None


@pytest.mark.parametrize(("trained", "outcome"), [((DATA,), PASS), ((), INCONCLUSIVE)])
def test_a_training_that_names_no_data_shows_of_no_records_that_they_were_trained_on(
    tmp_path: Path, trained: tuple[Artifact, ...], outcome: GateOutcome
) -> None:
    """Left out of its report, any records could be audited in their place."""
    report = making(tmp_path / "m.json", PROVED, inputs=trained)
    looked = audit(tmp_path / "a.json", auc(0.5, 0.4, 0.55), inputs=[weights("m"), replace(DATA, role="members")])
    assert only(judged(report, looked, max_auc="0.6"), "max_auc").outcome is outcome


@pytest.mark.parametrize(("rule", "role"), [("max_auc", "nonmembers"), ("max_extracted", "heldout")])
@pytest.mark.parametrize(("compared", "outcome"), [("another file", PASS), ("what was trained on", INCONCLUSIVE)])
@pytest.mark.parametrize("learned", ["data", "public"])
def test_training_data_are_no_records_to_compare_with(
    tmp_path: Path, rule: str, role: str, compared: str, outcome: GateOutcome, learned: str
) -> None:
    """The audit names no parent: which data the model was trained on is known from the reports of the model."""
    more = replace(DATA, role=learned, path="more.jsonl", digest="blake3:" + "e" * 64)
    report = making(tmp_path / "m.json", PROVED, inputs=(DATA, more))
    read = [each for each in (DATA, more) if each.role == "data"]
    taken = [replace(each, role="members" if rule == "max_auc" else "train") for each in read]
    other = replace(more, role=role, digest=more.digest if outcome is INCONCLUSIVE else "blake3:" + "f" * 64)
    item = auc(0.5, 0.4, 0.55) if rule == "max_auc" else extraction(0.02, 0.0, 0.05)
    looked = audit(tmp_path / "a.json", item, inputs=[weights("m"), *taken, other])
    found = only(judged(report, looked, **{rule: "0.6"}), rule)
    assert found.outcome is outcome, compared
    assert ("were trained on according to the model's reports" in found.message) is (outcome is INCONCLUSIVE)


@pytest.mark.parametrize("role", ["nonmembers", "heldout"])
def test_an_audit_of_its_models_training_data_as_others_is_refuted_whatever_is_asked(tmp_path: Path, role: str) -> None:
    """The policy has no limit on audits; the audit names the training's report, which names the file."""
    report = making(tmp_path / "m.json", PROVED)
    for taken, is_refuted in ((DATA, True), (replace(DATA, digest="blake3:" + "f" * 64), False)):
        looked = audit(tmp_path / "a.json", inputs=[weights("m"), replace(taken, role=role)],
                       parents=(ParentReport(path="m.json", digest=file_digest(report)),))  # fmt: skip
        found = of(judged(report, looked, recompute="true", max_epsilon="3"), "recomputed")
        findings = [each for each in found if "took it as records that the model was not trained on" in each.message]
        assert [finding.outcome for finding in findings] == [FAIL] * is_refuted
