"""The conditions of bounds by canaries: each must be stated, in the form and state that audits give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audits.canaries.conditions import number_included
from audits.canaries.gradients import GradientEvidence, conditions
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.codec import encode_value
from tests.verify.audits.canaries.test_bounds import found
from verify.audits.canaries.conditions import check_named, misstated_conditions
from verify.audits.figures import faults

COUNT, DELTA = 250, 1e-5
NAMED = "blake3:" + "1" * 64
COINS, NUMBER, TRAINED = conditions(
    GradientEvidence(
        version=1,
        created="",
        model="m",
        delta=DELTA,
        noise_multiplier=1.0,
        sample_rate=0.1,
        steps=8,
        included=(1,) * 127 + (0,) * 123,
        every_step=(0.0,) * COUNT,
        end=(0.0,) * COUNT,
    ),
    NAMED,
    NAMED,
)
OF_GRADIENTS = AuditParameters(canary_delta=DELTA, canary_conditions=(COINS, NUMBER, TRAINED))
Conditions = tuple[Assumption, ...]


def of(stated: Conditions | None, *, evidence: tuple[Evidence, ...] | None = None, delta: float = DELTA) -> list[str]:
    bounds = tuple(found(COUNT, 1.0)) if evidence is None else evidence
    report = PrivacyReport(step="audit", created="", versions={}, evidence=bounds)
    return list(misstated_conditions(report, replace(OF_GRADIENTS, canary_conditions=stated, canary_delta=delta)))


def test_genuine_conditions_stand() -> None:
    exact = number_included(20, 40)
    assert exact.state is AssumptionState.CHECKED
    before = Assumption(
        name="number included",
        statement="exactly 20 of 40 canaries are included, each by a coin of its own: a draw of a fixed number gives "
        "that too, and for it the bounds have no proof; an odd number of canaries rules it out",
        state=AssumptionState.ASSERTED,
    )
    assert of((COINS, NUMBER, TRAINED)) == of((COINS, exact, TRAINED)) == of((COINS, before, TRAINED)) == []


def test_exactly_half_may_not_be_called_usual() -> None:
    for included, refuted in ((20, True), (19, False)):
        usual = f"{included} of 40 canaries are included, which fair coins give"
        faults_found = of((COINS, replace(NUMBER, statement=usual), TRAINED))
        assert [fault for fault in faults_found if "exactly half" in fault] == faults_found
        assert bool(faults_found) is refuted


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda of_all: None, "states no conditions"),
        (lambda of_all: of_all[1:], "does not state the condition 'independent coins'"),
        (lambda of_all: (*of_all, of_all[0]), "2 times"),
        (lambda of_all: (*of_all, replace(of_all[0], name="certified")), "no bound by canaries has a condition"),
        (lambda of_all: (replace(of_all[0], state=AssumptionState.ENFORCED), *of_all[1:]), "said to be enforced"),
        (lambda of_all: (replace(of_all[0], state=AssumptionState.CHECKED), *of_all[1:]), "said to be checked"),
        (lambda of_all: (*of_all[:2], replace(of_all[2], statement="a laboratory saw it")), "'a laboratory saw it'"),
        (
            lambda of_all: (*of_all[:2], replace(of_all[2], state=AssumptionState.ASSERTED)),
            "is not what an audit finds",
        ),
    ],
)
def test_other_conditions_are_refuted(change: Callable[[Conditions], Conditions | None], says: str) -> None:
    assert any(says in fault for fault in of(change((COINS, NUMBER, TRAINED))))


def test_coins_of_a_manifest_are_never_enforced() -> None:
    """An audit reads the manifest after the coins were tossed: their fairness is the word of whoever planted."""
    statement = "each canary was included by a fair coin of its own, from the operating system, as the manifest says"
    known = Assumption(
        name="commitment",
        statement="the manifest is the one that the given commitment stands for",
        state=AssumptionState.CHECKED,
    )
    report = PrivacyReport(step="audit", created="", versions={}, evidence=())
    for state in AssumptionState:
        coins = Assumption(name="independent coins", statement=statement, state=state)
        planted = AuditParameters(canary_commitment="blake3:0", canary_conditions=(known, coins))
        wrong = [fault for fault in misstated_conditions(report, planted) if "'independent coins'" in fault]
        assert bool(wrong) is (state is not AssumptionState.ASSERTED)


def test_another_delta_of_a_bound_is_refuted() -> None:
    assert any("the delta of epsilon" in fault for fault in of((COINS, NUMBER, TRAINED), delta=1e-6))


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.001, 2.0])
def test_another_epsilon_of_mu_is_refuted(factor: float) -> None:
    bounds = list(found(COUNT, 1.0))
    (place,) = [i for i, item in enumerate(bounds) if "epsilon_if_gaussian" in item.details]
    epsilon = bounds[place].details["epsilon_if_gaussian"]
    assert epsilon > 0.1
    bounds[place] = replace(bounds[place], details={**bounds[place].details, "epsilon_if_gaussian": factor * epsilon})
    (fault,) = of((COINS, NUMBER, TRAINED), evidence=tuple(bounds))
    assert "its epsilon_if_gaussian is not that of mu" in fault


@pytest.mark.parametrize(
    ("change", "says"),
    [({"interval": "certified"}, "the interval 'certified' is not one"), ({"reason": "certified"}, "and a reason why")],
)
def test_free_words_in_a_figure_are_refuted(change: dict[str, str], says: str) -> None:
    for changed in ({}, change):
        bounds = tuple(replace(item, **changed) for item in found(COUNT, 1.0))  # type: ignore[arg-type]
        report = PrivacyReport(step="audit", created="", versions={}, evidence=bounds)
        assert any(says in fault for fault in faults(report, OF_GRADIENTS)) is bool(changed)


@pytest.mark.parametrize(("digest", "parents", "refuted"), [(NAMED, 1, 0), ("blake3:2", 1, 1), (NAMED, 0, 1)])
def test_a_training_that_names_no_such_file_refutes_the_condition(digest: str, parents: int, refuted: int) -> None:
    training = PrivacyReport(
        step="retrain", created="", versions={}, parameters={"gradient_canaries_file": digest, "method": "dp-sgd"}
    )
    audit = PrivacyReport(
        step="audit",
        created="",
        versions={},
        inputs=(Artifact(role="canaries", path="c.json", digest=NAMED, bytes=1),),
        parameters={"canary_conditions": [encode_value(each) for each in (COINS, NUMBER, TRAINED)]},
        parents=(ParentReport(path="a", digest="b"),) * parents,
    )
    verdicts = list(check_named(Path("a"), audit, [training][:parents]))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.REFUTED] * refuted
