"""Reports made by hand, as privctl would write them, with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Status
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.verdict import Verdict
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.policy import read_policy
from privctl.reports.files import write_report
from privctl.storage.digest import file_digest

NOW = datetime(2030, 1, 10, 12, tzinfo=UTC)
CREATED = "2030-01-09T00:00:00Z"
PASS, FAIL, INCONCLUSIVE = GateOutcome.PASS, GateOutcome.FAIL, GateOutcome.INCONCLUSIVE
ENFORCED = Assumption(name="contribution", statement="clipped", state=AssumptionState.ENFORCED)
ASSERTED = Assumption(name="vocabulary", statement="made without", state=AssumptionState.ASSERTED)
VIOLATED = Assumption(name="secret noise", statement="no seed", state=AssumptionState.VIOLATED)
PROVED = Guarantee(
    name="dp-sgd",
    epsilon=2.0,
    delta=1e-6,
    adjacency=Adjacency.ADD_OR_REMOVE,
    accountant="pld",
    status=Status.PROVED,
    assumptions=(ENFORCED,),
)
CONDITIONAL = replace(PROVED, status=Status.CONDITIONAL, assumptions=(ENFORCED, ASSERTED))


DATA = Artifact(role="data", path="records.jsonl", digest="blake3:" + "d" * 64, bytes=9)


def digest(name: str) -> str:
    return "blake3:" + name.encode().hex().ljust(64, "0")


def weights(name: str, role: str = "model") -> Artifact:
    return Artifact(role=role, path=f"{name}/model.safetensors", digest=digest(name), bytes=4)


def making(
    path: Path,
    *guarantees: Guarantee,
    name: str = "m",
    step: str = "retrain",
    inputs: Sequence[Artifact] | None = None,
    parents: Sequence[Path] = (),
    **more: Any,
) -> Path:
    """The report of a step that wrote the weights ``name``; of a training it names some data unless told otherwise."""
    if inputs is None:
        inputs = (DATA,) if step == "retrain" else ()
    report = PrivacyReport(
        step=step,
        created=CREATED,
        versions={"privctl": "0.1.0"},
        inputs=tuple(inputs),
        outputs=(weights(name),),
        guarantees=guarantees,
        parents=tuple(ParentReport(path=parent.name, digest=file_digest(parent)) for parent in parents),
    )
    write_report(path, replace(report, **more))
    return path


def audit(
    path: Path,
    *evidence: Evidence,
    name: str = "m",
    verdicts: Sequence[Verdict] = (),
    step: str = "audit",
    **more: Any,
) -> Path:
    """The report of an audit of the weights ``name``."""
    report = PrivacyReport(
        step=step,
        created=CREATED,
        versions={"privctl": "0.1.0"},
        inputs=(weights(name),),
        evidence=evidence,
        verdicts=tuple(verdicts),
    )
    write_report(path, replace(report, **more))
    return path


def auc(
    estimate: float | None, lower: float | None, upper: float | None, method: str = "loss", **more: Any
) -> Evidence:
    item = Evidence(
        method=method,
        quantity="AUC",
        estimate=estimate,
        lower=lower,
        upper=upper,
        confidence=0.99,
        details={"chance": 0.5, "detectable": 0.6},
    )
    return replace(item, **more)


def lower_bound(value: float | None, delta: float = 1e-5, **more: Any) -> Evidence:
    item = Evidence(
        method="one run",
        quantity="epsilon",
        estimate=value,
        lower=value,
        bound=Bound.LOWER,
        details={"delta": delta, "copies": 1, "detectable": 3.0},
    )
    return replace(item, **more)


def judged(*paths: Path, environment: Mapping[str, str] | None = None, **flags: str) -> GateJudgement:
    """The judgement under a policy given by flags alone; reports made by hand do not bear computing again."""
    policy = {"recompute": "false", **flags}
    return judge(paths, read_policy(None, policy, environment or {}, RULES), None, NOW)


def of(judgement: GateJudgement, rule: str) -> list[Finding]:
    return [finding for finding in judgement.findings if finding.rule == rule]


def only(judgement: GateJudgement, rule: str) -> Finding:
    (found,) = of(judgement, rule)
    return found
