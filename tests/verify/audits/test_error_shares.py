"""Every test and interval of an audit has the share of the allowed error that audits give it, neither more nor less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audits.canaries.design import BOUNDS_SHARE
from privctl.domain.evidence import Bound, Evidence, JointTest
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from tests.verify.audits.test_reach import canaries, report
from verify.audits.error_shares import faults
from verify.audits.terms import BEYOND

ALPHA = 0.05


def of(asked: AskedAudit, *items: Evidence, **more: object) -> list[str]:
    return list(faults(report(*items), AuditParameters(asked=asked, **more)))  # type: ignore[arg-type]


def about(*roles: str, **more: object) -> AskedAudit:
    return AskedAudit(files=dict.fromkeys(roles, ("blake3:0",)), **more)  # type: ignore[arg-type]


def item(method: str, quantity: str, share: float, **details: float) -> Evidence:
    return Evidence(
        method=method, quantity=quantity, estimate=0.5, bound=Bound.NONE, confidence=1 - share, details=details
    )


def a_test(method: str, quantity: str, level: float) -> Evidence:
    return item(method, quantity, level, p_value=0.01, level=level, detected=float(level >= 0.01))


def joint(level: float) -> JointTest:
    return JointTest(p_value=0.004, level=level, compared=1, relabellings=999, critical=2.5)


def attacked(level: float, share: float, guard: float = 0.2) -> list[Evidence]:
    return [
        replace(item("loss", "AUC", share, chance=0.5), test=joint(level)),
        item("loss", "TPR at 1 % FPR", share),
        item("loss", "AUC over the blind baseline's", share),
        item("blind baseline", "AUC", share, p_value=0.5, level=guard),
        item("length baseline", "AUC", share),
    ]


MEMBERSHIP = about("members", "nonmembers")


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (MEMBERSHIP, ALPHA),
        (about("members", "nonmembers", "split"), ALPHA / 2),
        (about("members", "nonmembers", "train", "secrets"), ALPHA / 3),
        (about("scores", columns=("loss",)), ALPHA),
    ],
)
def test_the_joint_test_and_the_intervals_of_membership(asked: AskedAudit, part: float) -> None:
    assert of(asked, *attacked(part, part / 5)) == []
    for level in (part / 25, part * 2):
        (fault,) = of(asked, *attacked(level, part / 5))
        assert f"joint test is {level:g}, and such an audit's is {part:g}" in fault
    for share in (part / 500, part):
        assert len(of(asked, *attacked(part, share))) == 5


def test_the_test_without_the_model_keeps_its_level() -> None:
    (fault,) = of(MEMBERSHIP, *attacked(ALPHA, ALPHA / 5, guard=1e-9))
    assert "the level of its test is not 0.2" in fault


@pytest.mark.parametrize("beside", [(), ("members",)])
def test_bounds_of_planted_canaries(beside: tuple[str, ...]) -> None:
    part = ALPHA / (1 + len(beside))
    bound = replace(canaries(500, 1e-5), confidence=1 - BOUNDS_SHARE * part)
    planted = {"canary_commitment": "blake3:1", "canary_conditions": ()}
    assert of(about("canaries", *beside), bound, **planted) == []
    (fault,) = of(about("canaries", *beside), replace(bound, confidence=1 - 1e-9), **planted)
    assert "may be wrong with a probability of 1e-09" in fault


def test_bounds_of_a_split_share_by_attacks() -> None:
    bounds = [
        replace(canaries(500, 1e-5), quantity=f"epsilon, {name}", confidence=1 - ALPHA / 4) for name in ("loss", "zlib")
    ]
    stated = {"split_commitment": "blake3:1", "attack": ("loss", "zlib")}
    asked = about("members", "nonmembers", "split")
    assert of(asked, *bounds, **stated) == []
    assert len(of(asked, bounds[0], replace(bounds[1], confidence=1 - 1e-6), **stated)) == 1


def test_tests_of_canaries() -> None:
    def found(level: float, share: float) -> list[Evidence]:
        sides = ("included", "left out (control)")
        return [a_test("canary exposure", f"mean bits, {side}", level) for side in sides] + [
            item("canary completion", f"disclosed, {side}", share) for side in sides
        ]

    asked, planted = about("canaries"), {"canary_commitment": "blake3:1", "canary_conditions": ()}
    assert of(asked, *found(ALPHA / 8, ALPHA / 8), **planted) == []
    assert len(of(asked, *found(1e-9, ALPHA / 8), **planted)) == 2
    assert len(of(asked, *found(ALPHA / 8, 1e-9), **planted)) == 2


def test_tests_of_secrets() -> None:
    def found(level: float, rates: float, plan: float) -> list[Evidence]:
        return [
            a_test("secret trace", "mean bits beyond, against held-out secrets, by loss", level),
            a_test("secret trace", "mean bits beyond, drawn at random, by loss", level),
            item("secret reconstruction", "told first, trained", rates),
            item("secret baseline", "area without the model", rates / 2, p_value=0.5, level=0.2),
            a_test("secret protection", "secrets told against the plan", plan),
        ]

    asked = about("secrets")
    assert of(asked, *found(ALPHA / 8, ALPHA / 8, ALPHA / 2)) == []
    assert len(of(asked, *found(1e-9, ALPHA / 8, ALPHA / 2))) == 2
    assert len(of(asked, *found(ALPHA / 8, 1e-9, ALPHA / 2))) == 2
    assert len(of(asked, *found(ALPHA / 8, ALPHA / 8, 1e-9))) == 1


@pytest.mark.parametrize(
    ("asked", "methods", "number"),
    [
        (about("train", greedy_only=True, exact_only=True), (), 5),
        (about("train"), (), 6),
        (about("train", "heldout", exact_only=True), (), 10),
        (about("train", "heldout", exact_only=True), ("adversarial prefix",), 13),
        (about("train", "heldout", exact_only=True), ("divergence", "divergence control"), 21),
    ],
)
def test_figures_of_an_extraction(asked: AskedAudit, methods: tuple[str, ...], number: int) -> None:
    def found(share: float) -> list[Evidence]:
        sides = ("training", "held-out") if "heldout" in asked.files else ("training",)
        rates = [item("extraction", f"rate on {side} text", share) for side in sides]
        tests = [a_test(method, BEYOND[0], share) for method in methods]
        return [*rates, *tests]

    assert of(asked, *found(ALPHA / number)) == []
    assert len(of(asked, *found(ALPHA / number / 1000))) == len(found(1.0))


def test_near_verbatim_rates_have_their_shares() -> None:
    rates = [item("extraction", f"near-verbatim rate on training text, edit distance to {d}", 0.05 / 8) for d in (1, 3)]
    rates.append(item("extraction", "rate on training text", 0.05 / 8))
    assert of(about("train"), *rates) == []


def test_what_was_not_measured_has_no_share() -> None:
    unmeasured = replace(item("extraction", "rate on training text", 0.5), estimate=None, reason="no text is left")
    assert of(about("train"), unmeasured) == []
