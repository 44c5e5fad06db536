"""Figures by names that no audit gives, second ones of a name, and verdicts on what was not measured are faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.files import read_report
from privctl.reports.parameters import parameters_as
from tests.verify.kinds import Kinds
from verify.audits import entries
from verify.audits.consistency import faults
from verify.audits.terms import BOUND

_CLAIM = "(8, 1e-05)-DP, as claimed"
_SAYS = "no audit measures anything of that name"


def of_entries(report: PrivacyReport) -> Iterator[str]:
    yield from entries.faults(report, parameters_as(AuditParameters, report))


def of_figure(method: str, quantity: str, **asked: object) -> list[str]:
    item = Evidence(method=method, quantity=quantity, estimate=0.1, bound=Bound.NONE)
    parameters = {"attack": ["loss", "midpoint"], "asked": {"files": {}, **asked}}
    created = "2026-01-01T00:00:00Z"
    report = PrivacyReport(step="audit", created=created, versions={}, parameters=parameters, evidence=(item,))
    return list(of_entries(report))


@pytest.mark.parametrize(
    ("method", "quantity", "others"),
    [
        ("loss", "AUC", ("AUC or so", "AUC over the length baseline's", "accuracy", "")),
        ("loss", "TPR at 0.1 % FPR", ("TPR at 1 % FPR or so", "TPR")),
        ("midpoint", "F1", ("AUC", "F2")),
        ("blind baseline", "AUC", ("area",)),
        ("extraction", "rate on training text", ("rate on training texts", "another")),
        ("extraction", "rate on text in 10 to 99 documents", ("rate on text in some documents",)),
        ("extraction", "near-verbatim rate beyond held-out text, among texts alike", ("rate, among texts alike",)),
        ("divergence", "queries for one training text", ("queries for one training text or so",)),
        ("divergence", "prompts that give training text, beyond the control", ("prompts that give training text",)),
        ("prompts from a file", "rate beyond held-out text", ("prompts that give training text, beyond the control",)),
        ("canary exposure, extrapolated", "highest bits", ("lowest bits",)),
        ("one run, stated steps", "noise multiplier", ("noise",)),
        ("rank test", "epsilon lower bound at delta 1e-05", ("epsilon upper bound at delta 1e-05",)),
    ],
)
def test_each_method_has_its_quantities(method: str, quantity: str, others: tuple[str, ...]) -> None:
    assert of_figure(method, quantity) == []
    for other in others:
        assert of_figure(method, other) == [f"{method}, {other}: {_SAYS}"]
    for stranger in ("zlib", "certificate", f"{method} or so"):
        assert of_figure(stranger, quantity) == [f"{stranger}, {quantity}: {_SAYS}"]


def test_a_figure_on_secrets_is_one_that_the_audit_says_it_measured() -> None:
    method, quantity = "secret reconstruction", "told first, trained"
    assert of_figure(method, quantity, secret_figures=[f"{method}: {quantity}"]) == []
    assert of_figure(method, quantity) == [], "an older audit did not say which"
    (wrong,) = of_figure(method, "told at all", secret_figures=[f"{method}: {quantity}"])
    assert wrong.endswith("is not among the figures that this audit says it measured")


@pytest.mark.parametrize("name", ["audit", "audit of canaries"])
def test_a_renamed_figure_is_a_fault(name: str, kinds: Kinds) -> None:
    report = read_report(kinds[name].path)
    assert not list(faults(report))
    for i, item in enumerate(report.evidence):
        for renamed in (replace(item, quantity=f"{item.quantity} or so"), replace(item, method="certificate")):
            evidence = (*report.evidence[:i], renamed, *report.evidence[i + 1 :])
            assert list(faults(replace(report, evidence=evidence))), renamed.quantity


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"confidence": 1.5}, "it holds with 1.5, which is no confidence"),
        ({"confidence": -0.99}, "it holds with -0.99, which is no confidence"),
        ({"details": {"p_value": -1e-60}}, "its p-value is -1e-60"),
    ],
)
def test_no_figure_has_an_impossible_confidence_or_p_value(change: dict[str, object], says: str, kinds: Kinds) -> None:
    report = read_report(kinds["audit"].path)
    first = replace(report.evidence[0], **change)  # type: ignore[arg-type]
    assert any(says in fault for fault in faults(replace(report, evidence=(first, *report.evidence[1:]))))


@pytest.mark.parametrize("name", ["audit", "audit of canaries"])
def test_a_second_figure_verdict_or_file_of_the_same_name_is_a_fault(name: str, kinds: Kinds) -> None:
    report = read_report(kinds[name].path)
    assert not list(faults(report))
    milder = replace(report.evidence[0], estimate=0.5, lower=0.4, upper=0.6)
    calm = replace(report.verdicts[0], outcome=Outcome.CONSISTENT, reason="nothing was found")
    model = replace(report.outputs[0], role="model")
    for forged, says in (
        (replace(report, evidence=(*report.evidence, milder)), f"{milder.quantity}: it is stated 2 times"),
        (replace(report, verdicts=(*report.verdicts, calm)), f"its verdict on {calm.subject!r} is stated 2 times"),
        (replace(report, outputs=(*report.outputs, *report.outputs)), "other files that it wrote than one of scores"),
        (replace(report, outputs=(model,)), "other files that it wrote than one of scores"),
    ):
        assert any(says in fault for fault in faults(forged)), says


def _judging(*roles: str, times: int) -> PrivacyReport:
    """An audit of such files with a verdict on the same claim so many ``times``."""
    verdict = Verdict(subject=_CLAIM, outcome=Outcome.REFUTED, reason="epsilon is at least 9")
    return PrivacyReport(
        step="audit", created="2026-01-01T00:00:00Z", versions={},
        parameters={"asked": {"files": {role: ["blake3:00"] for role in roles}, "claims": [[8.0, 1e-5]]}},
        evidence=(Evidence(method=BOUND, quantity="epsilon", estimate=9.0, bound=Bound.LOWER),),
        verdicts=(verdict,) * times,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("roles", "most"), [(("members", "split"), 1), (("canaries",), 1), (("members", "split", "canaries"), 2)]
)
def test_bounds_of_canaries_and_of_a_split_both_judge_a_claim(roles: tuple[str, ...], most: int) -> None:
    for times in (most, most + 1):
        report = _judging(*roles, times=times)
        found = list(entries.faults(report, parameters_as(AuditParameters, report)))
        assert found == ([] if times == most else [f"its verdict on {_CLAIM!r} is stated {times} times"])


@pytest.mark.parametrize("outcome", [Outcome.CONSISTENT, Outcome.INCONCLUSIVE, Outcome.REFUTED])
@pytest.mark.parametrize(
    ("name", "subject", "says"),
    [
        ("audit", "the model keeps every record private", "is on something that it did not measure"),
        ("audit", "planted canaries left no trace", "is on something that it did not measure"),
        ("audit", "training made no secret easier to tell", "is on something that it did not measure"),
        ("audit", "(0.1, 1e-05)-DP, as claimed", "is on something that it did not measure"),
        ("audit of canaries", "(0.1, 1e-05)-DP, as claimed", "is on a claim that it was not asked about"),
        ("audit of canaries", "training text cannot be extracted", "is on something that it did not measure"),
        ("audit of canaries", "members cannot be told from non-members", "is on something that it did not measure"),
        (
            "audit of canaries", "(prior, posterior)-secret protection, as planned in plan.safetensors",
            "is on something that it did not measure",
        ),
    ],
)  # fmt: skip
def test_no_verdict_is_on_what_was_not_measured(
    name: str, subject: str, says: str, outcome: Outcome, kinds: Kinds
) -> None:
    report = read_report(kinds[name].path)
    added = replace(report, verdicts=(*report.verdicts, Verdict(subject=subject, outcome=outcome, reason="so")))
    assert f"its verdict on {subject!r} {says}" in list(faults(added))
