"""That members can be told from non-members fails a gate, unless the policy's limits and a guarantee allow as much."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Status
from privctl.domain.report import Artifact
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.checks.permitted import _largest_accuracy, _largest_auc, _largest_tpr
from tests.gate.made import (
    CONDITIONAL,
    FAIL,
    INCONCLUSIVE,
    PASS,
    PROVED,
    auc,
    audit,
    digest,
    judged,
    lower_bound,
    making,
    of,
    only,
    weights,
)
from verify.audits.terms import MEMBERSHIP

APART = Verdict(subject=MEMBERSHIP, outcome=Outcome.REFUTED, reason="loss AUC 0.53 (0.51 to 0.55)")
SEEN = auc(0.53, 0.51, 0.55)
LIMITS = {"max_epsilon": "8", "max_auc": "0.6"}


def tpr(lower: float, **details: float) -> Evidence:
    """A true positive rate that is at least ``lower``."""
    item = auc(lower + 0.02, lower, lower + 0.04, quantity="TPR at 1 % FPR")
    return replace(item, details={"chance": 0.02, **details})


def data(name: str, role: str = "data") -> Artifact:
    return Artifact(role=role, path=f"{name}.jsonl", digest=digest(name), bytes=9)


def finding(folder: Path, *evidence: Evidence, guarantee: Guarantee = PROVED, **limits: Any) -> Finding:
    """What a gate finds of the verdict that members can be told from non-members."""
    # Reports made by hand hold no mechanism to compute anything from; what only reads the setting takes it as given.
    guarantees = [guarantee, *limits.pop("more", ())]
    report = making(folder / "m.json", *guarantees, inputs=limits.pop("trained", (data("later"),)))
    inputs = limits.pop("inputs", (weights("m"), data("later", "members")))
    looked = audit(folder / "a.json", *(evidence or (SEEN,)), verdicts=[limits.pop("verdict", APART)], inputs=inputs)
    return only(judged(report, looked, recompute=limits.pop("recompute", "true"), **limits), "forbid_outcomes")


@pytest.mark.parametrize("guarantee", [PROVED, CONDITIONAL])
def test_a_leak_within_limits_and_guarantee_passes_and_is_shown(tmp_path: Path, guarantee: Guarantee) -> None:
    found = finding(tmp_path, guarantee=guarantee, **LIMITS)
    assert (found.outcome, found.subject) == (PASS, MEMBERSHIP)
    assert "REJECTED by audit, as the policy allows: loss AUC 0.53" in found.message
    assert "dp-sgd allows an AUC of up to 0.881" in found.message


def test_a_policy_without_a_limit_on_attacks_is_told_of_it(tmp_path: Path) -> None:
    found = finding(tmp_path, max_epsilon="8")
    assert (found.outcome, found.fix.partition(":")[0]) == (FAIL, "also set max_auc")
    assert finding(tmp_path, max_auc="0.6").fix.startswith("make the model safer")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"max_auc": None}, "no limit on attacks"),
        ({"max_epsilon": None}, "no limit on epsilon"),
        ({"max_auc": "0.54"}, "the interval reaches beyond the limit"),
        ({"max_auc": "0.505"}, "the interval lies beyond the limit"),
        ({"max_epsilon": "1"}, "the guarantee is too weak"),
        ({"recompute": "false"}, "nobody computes the guarantee again"),
        ({"guarantee": replace(PROVED, status=Status.CLAIMED)}, "only claimed"),
        ({"guarantee": replace(PROVED, status=Status.CLAIMED), "require": "claimed,proved"}, "a claim that counts"),
        ({"guarantee": replace(PROVED, delta=1e-3)}, "delta too large"),
        ({"guarantee": replace(PROVED, unit=PrivacyUnit.SECRET), "units": "secret"}, "no example is protected"),
        (
            {"guarantee": replace(PROVED, notion=Notion.MUTUAL_INFORMATION), "notions": "mutual-information"},
            "no bound on the AUC",
        ),
        ({"guarantee": replace(PROVED, epsilon=0.01)}, "the attack does better than the guarantee allows"),
        ({"min_confidence": "0.995"}, "the interval is not certain enough"),
        ({"inputs": (weights("m"),)}, "it is not known whose membership was attacked"),
        ({"verdict": replace(APART, subject="planted canaries left no trace")}, "another verdict"),
        ({"trained": ()}, "the training does not name its data"),
        ({"trained": (data("earlier"),)}, "the training names other data"),
    ],
)
def test_anything_else_fails(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    settings = {name: value for name, value in {**LIMITS, **change}.items() if value is not None}
    assert finding(tmp_path, **settings).outcome is FAIL, why


@pytest.mark.parametrize(("smaller", "outcome"), [(0.02, FAIL), (0.5, PASS)])
def test_a_leak_beyond_a_guarantee_for_other_neighbours_fails(
    tmp_path: Path, smaller: float, outcome: GateOutcome
) -> None:
    """The policy counts one kind of neighbours; that the other guarantee is contradicted shows all the same."""
    counted = replace(PROVED, adjacency=Adjacency.REPLACE_ONE)
    other = replace(PROVED, epsilon=smaller)
    settings = {**LIMITS, "adjacencies": "replace-one"}
    assert finding(tmp_path, guarantee=counted, more=[other], **settings).outcome is outcome


def test_a_guarantee_for_neighbours_that_the_policy_does_not_count_allows_nothing(tmp_path: Path) -> None:
    assert finding(tmp_path, **LIMITS, adjacencies="replace-one").outcome is FAIL


@pytest.mark.parametrize(("unit", "outcome"), [(None, FAIL), ("document", FAIL), ("user", PASS)])
def test_a_guarantee_of_single_records_allows_nothing_of_users(
    tmp_path: Path, unit: str | None, outcome: GateOutcome
) -> None:
    """What an epsilon of one record allows is less than what all records of a user may show."""
    parameters = {"method": "dp-sgd", "unit": unit}
    report = making(tmp_path / "m.json", PROVED, parameters=parameters, inputs=[data("later")])
    grouped = {"group_by": "user", "grouped_records": {"members": 900, "nonmembers": 900}}
    inputs = (weights("m"), data("later", "members"))
    looked = audit(tmp_path / "a.json", SEEN, verdicts=[APART], inputs=inputs, parameters=grouped)
    assert only(judged(report, looked, recompute="true", **LIMITS), "forbid_outcomes").outcome is outcome


def test_a_few_records_that_stand_out_fail(tmp_path: Path) -> None:
    """An AUC near chance can hide them."""
    close = replace(PROVED, epsilon=0.5)
    allowed = math.exp(0.5) * 0.02 + PROVED.delta
    assert finding(tmp_path, SEEN, tpr(0.99 * allowed), guarantee=close, **LIMITS).outcome is PASS
    assert finding(tmp_path, SEEN, tpr(1.01 * allowed), guarantee=close, **LIMITS).outcome is FAIL


def test_an_epsilon_certified_above_the_guarantee_fails(tmp_path: Path) -> None:
    """Also where the policy's limit would allow it; a guarantee at a larger delta is another one."""
    for certified, delta, outcome in ((1.9, 1e-5, PASS), (2.1, 1e-5, FAIL), (2.1, 1e-7, PASS)):
        assert finding(tmp_path, SEEN, lower_bound(certified, delta), **LIMITS).outcome is outcome


@pytest.mark.parametrize("quantity", ["TPR at 1 % FPR", "accuracy"])
def test_an_attack_without_the_lower_end_of_its_interval_fails(tmp_path: Path, quantity: str) -> None:
    """One that could not be measured has no estimate either, and stops nothing."""
    without = auc(0.9, None, None, quantity=quantity)
    assert finding(tmp_path, SEEN, without, **LIMITS).outcome is FAIL
    assert finding(tmp_path, SEEN, replace(without, estimate=None, reason="too few"), **LIMITS).outcome is PASS


@pytest.mark.parametrize(("audited", "outcome"), [("earlier", FAIL), ("later", PASS)])
@pytest.mark.parametrize("noised", [False, True])
def test_a_guarantee_for_other_records_allows_nothing(
    tmp_path: Path, audited: str, outcome: GateOutcome, noised: bool
) -> None:
    """A model that learnt some records without protection, and was then trained privately on others."""
    first = making(tmp_path / "1.json", name="base", inputs=[data("earlier")])
    second = making(
        tmp_path / "2.json",
        *(() if noised else (PROVED,)),
        name="trained" if noised else "m",
        inputs=[weights("base", "start-0"), data("later")],
        parents=[first],
    )
    reports = [first, second]
    if noised:
        reports.append(making(tmp_path / "3.json", PROVED, step="noise", inputs=[weights("trained")], parents=[second]))
    looked = audit(tmp_path / "a.json", SEEN, verdicts=[APART], inputs=(weights("m"), data(audited, "members")))
    assert only(judged(*reports, looked, recompute="true", **LIMITS), "forbid_outcomes").outcome is outcome


def test_a_verdict_of_an_audit_that_is_called_a_claim_is_a_contradiction(tmp_path: Path) -> None:
    """What is only claimed counts for nothing, so that the word would silence the verdict."""
    silenced = replace(APART, status=Status.CLAIMED)
    looked = audit(tmp_path / "a.json", SEEN, verdicts=[silenced])
    found = of(judged(making(tmp_path / "m.json", PROVED), looked, **LIMITS), "contradiction")
    assert [(verdict.outcome, verdict.subject) for verdict in found] == [(FAIL, MEMBERSHIP)]


def test_a_model_without_a_guarantee_fails(tmp_path: Path) -> None:
    looked = audit(tmp_path / "a.json", SEEN, verdicts=[APART])
    found = only(judged(making(tmp_path / "m.json"), looked, **LIMITS), "forbid_outcomes")
    assert found.outcome is FAIL


def test_an_inconclusive_audit_is_no_permitted_leak(tmp_path: Path) -> None:
    unsure = replace(APART, outcome=Outcome.INCONCLUSIVE)
    assert finding(tmp_path, verdict=unsure, forbid_outcomes="INCONCLUSIVE", **LIMITS).outcome is INCONCLUSIVE


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (2.0, 0.01), (8.0, 1e-6), (1000.0, 0.0)])
def test_what_a_guarantee_allows_is_the_area_and_the_corners_of_its_trade_off(epsilon: float, delta: float) -> None:
    guarantee = replace(PROVED, epsilon=epsilon, delta=delta)
    steps = 20_000
    grow = math.exp(min(epsilon, 700.0))
    rates = [(i + 0.5) / steps for i in range(steps)]
    missed = [max(0.0, 1 - delta - grow * a, (1 - delta - a) / grow) for a in rates]
    assert _largest_auc(guarantee) == pytest.approx(1 - sum(missed) / steps, abs=1e-4)
    for place in (0, steps // 100, steps // 3, steps - 1):
        assert _largest_tpr(guarantee, rates[place]) == pytest.approx(1 - missed[place], abs=1e-9)
    for share in (0.1, 0.5, 0.8):
        best = max(share * (1 - miss) + (1 - share) * (1 - rate) for rate, miss in zip(rates, missed, strict=True))
        assert _largest_accuracy(guarantee, share) == pytest.approx(best, abs=1e-4)


def test_published_corner() -> None:
    """Randomized response at epsilon ln 3 tells the truth three times in four."""
    guarantee = replace(PROVED, epsilon=math.log(3), delta=0.0)
    assert _largest_accuracy(guarantee, 0.5) == pytest.approx(0.75, rel=1e-12)
    assert _largest_auc(guarantee) == pytest.approx(0.75, rel=1e-12)
