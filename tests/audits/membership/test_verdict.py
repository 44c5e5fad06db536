from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from audits.membership.baseline import BLIND, CONTROL, DIFFERENCE, LENGTH, Baseline
from audits.membership.verdict import verdict
from privctl.domain.evidence import Evidence, JointTest
from privctl.domain.verdict import Outcome


def evidence(method: str, lower: float, *, quantity: str = "AUC", reach: float = 0.54) -> Evidence:
    chance = 0.0 if quantity == DIFFERENCE else 0.5
    return Evidence(
        method=method,
        quantity=quantity,
        estimate=lower + 0.05,
        lower=lower,
        upper=lower + 0.1,
        details={"chance": chance, **({"detectable": reach} if quantity == "AUC" else {})},
    )


def tpr(lower: float) -> Evidence:
    return Evidence(
        method="loss",
        quantity="TPR at 0.1 % FPR",
        estimate=lower + 0.01,
        lower=lower,
        upper=1,
        details={"chance": 0.01},
    )


def blind(lower: float = 0.45, length: float = 0.45, control: float | None = None) -> Baseline:
    found = [evidence(BLIND, lower), evidence(LENGTH, length)]
    if control is not None:
        found.append(evidence(CONTROL, control))
    return Baseline(evidence=tuple(found), scores=np.zeros(0))


UNKNOWN = "how large an AUC would have been missed is not known, where 0.55 must be seen"
ALL = "with so few records even an AUC of 1 would be missed, where 0.55 must be seen"


@pytest.mark.parametrize(
    ("quantity", "count", "critical", "least", "words"),
    [
        ("AUC", 50, 2.5, 0.6, "with so few records an AUC below 0.600 would often be missed, where 0.55 must be seen"),
        ("AUC", 2, 1.549193338482967, None, ALL),
        ("AUC", 1, None, None, ALL),
        ("AUC", 6, 2.5, None, UNKNOWN),  # members who all score higher than others are 2.88 deviations from chance
        ("AUC", 60, 0.0, None, UNKNOWN),  # all scores are equal
        ("accuracy", 2, 1.5, None, UNKNOWN),
    ],
)
def test_what_few_records_would_miss(
    quantity: str, count: int, critical: float | None, least: float | None, words: str
) -> None:
    """Two members and two others have six relabellings, so that no test at 5 % can reject."""
    test = JointTest(p_value=1 / 6, level=0.05, compared=1, relabellings=999, critical=critical, detectable=least)
    samples = {"members": count, "nonmembers": count}
    item = replace(evidence("loss", 0.45, quantity=quantity), test=test, samples=samples)
    found = verdict([item], blind())
    assert found.outcome is Outcome.INCONCLUSIVE
    assert words in found.reason


@pytest.mark.parametrize(
    ("attacks", "baseline", "outcome", "words"),
    [
        ([evidence("loss", 0.6), evidence("zlib", 0.7)], blind(), Outcome.REFUTED, "zlib AUC 0.750"),
        ([evidence("loss", 0.45)], blind(), Outcome.CONSISTENT, "an AUC of 0.540 would have been found"),
        ([evidence("loss", 0.45, reach=0.6)], blind(), Outcome.INCONCLUSIVE, "give more records"),
        ([evidence("loss", 0.01)], blind(), Outcome.INCONCLUSIVE, "backwards: loss AUC 0.060"),
        ([evidence("loss", 0.45), tpr(0.02)], blind(), Outcome.REFUTED, "loss TPR at 0.1 % FPR 0.030"),
        ([evidence("loss", 0.45), tpr(0.005)], blind(), Outcome.CONSISTENT, "no attack found"),
        ([evidence("reference", 0.6)], blind(control=0.3), Outcome.INCONCLUSIVE, "confounded: .*reference control"),
        ([evidence("loss", 0.6)], blind(length=0.1), Outcome.INCONCLUSIVE, "confounded: .*length baseline"),
        ([evidence("loss", 0.9)], blind(0.6), Outcome.INCONCLUSIVE, "confounded: .*blind baseline"),
        (
            [evidence("zlib", 0.9), evidence("zlib", 0.1, quantity=DIFFERENCE)],
            blind(0.6, control=0.45),
            Outcome.INCONCLUSIVE,
            "confounded",
        ),
        ([evidence("loss", 0.9)], blind(length=0.6), Outcome.INCONCLUSIVE, "confounded: .*length baseline"),
        ([evidence("loss", 0.9)], blind(control=0.6), Outcome.INCONCLUSIVE, "confounded: .*reference control"),
        (
            [evidence("loss", 0.9), evidence("loss", 0.1, quantity=DIFFERENCE)],
            blind(0.6),
            Outcome.INCONCLUSIVE,
            "loss does so better",
        ),
        (
            [evidence("loss", 0.9), evidence("loss", 0.1, quantity=DIFFERENCE)],
            blind(0.6, control=0.45),
            Outcome.REFUTED,
            "loss AUC 0.950",
        ),
    ],
)
def test_the_outcome_follows_from_attacks_and_baseline(
    attacks: list[Evidence], baseline: Baseline, outcome: Outcome, words: str
) -> None:
    found = verdict(attacks, baseline)
    assert found.outcome is outcome
    assert re.search(words, found.reason)


def test_records_that_may_differ_ask_for_an_attack_that_beats_them() -> None:
    """The guard's p-value alone, with intervals that show nothing; without it the same attack is believed."""
    calm, alarmed = blind(), replace(blind(), p_value=0.15)
    found, beats = evidence("loss", 0.6), evidence("loss", 0.05, quantity=DIFFERENCE)
    assert verdict([found], calm).outcome is Outcome.REFUTED
    doubted = verdict([found, replace(beats, lower=-0.01)], alarmed)
    assert doubted.outcome is Outcome.INCONCLUSIVE
    assert doubted.reason.startswith("confounded: the records may differ without the model (p 0.15")
    assert verdict([found, evidence("zlib", 0.05, quantity=DIFFERENCE)], alarmed).outcome is Outcome.INCONCLUSIVE
    assert verdict([found, beats], alarmed).outcome is Outcome.REFUTED
    assert verdict([evidence("loss", 0.45)], alarmed).outcome is Outcome.CONSISTENT, "silence needs no such caution"


def joint(p_value: float, detectable: float = 0.53) -> JointTest:
    return JointTest(p_value=p_value, level=0.05, compared=2, relabellings=999, critical=2.4, detectable=detectable)


@pytest.mark.parametrize(
    ("lower", "p_value", "outcome", "words"),
    [
        (0.48, 0.01, Outcome.REFUTED, r"zlib AUC 0.530 \(0.480 to 0.580\).*\(p 0.01, adjusted for 2 attacks\)"),
        (0.6, 0.01, Outcome.REFUTED, "zlib AUC 0.650"),
        (0.51, 0.08, Outcome.INCONCLUSIVE, "lies above chance, but not by enough for the test of all attacks together"),
        (0.48, 0.08, Outcome.CONSISTENT, "an AUC of 0.530 would have been found"),
    ],
)
def test_the_joint_test_decides_and_intervals_do_not(
    lower: float, p_value: float, outcome: Outcome, words: str
) -> None:
    calm = replace(evidence("loss", 0.45, reach=0.6), test=joint(0.9))
    found = verdict([calm, replace(evidence("zlib", lower, reach=0.6), test=joint(p_value))], blind())
    assert found.outcome is outcome
    assert re.search(words, found.reason)


def test_the_guard_holds_for_the_joint_test() -> None:
    found = replace(evidence("loss", 0.6), test=joint(0.001))
    assert verdict([found], replace(blind(), p_value=0.15)).outcome is Outcome.INCONCLUSIVE
    assert verdict([found], blind(length=0.6)).outcome is Outcome.INCONCLUSIVE
