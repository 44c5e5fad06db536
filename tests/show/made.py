"""Page data made by hand: what a page is drawn from, without any file."""

from __future__ import annotations

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Risk, RiskMeasure, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, WeightNoise
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.strength import Severity
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.page_data import (
    BoundCurve,
    ExposureGroup,
    JudgedSubject,
    PageData,
    ReportSource,
    RocCurve,
    TensorNoiseSummary,
)

#: What must stand on a page as text and never as anything else.
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.\u2066\x00\"'&]]>--> javascript:alert(3)"
)
DIGEST = "blake3:" + "0" * 64


def artifact(role: str, path: str) -> Artifact:
    return Artifact(role=role, path=path, digest=DIGEST, bytes=4096)


def trained(text: str = "", **more: object) -> PrivacyReport:
    """A private training; ``text`` stands wherever a report may hold free text."""
    fields: dict[str, object] = {
        "step": "retrain" + text,
        "created": "2026-01-01T00:00:00Z" + text,
        "versions": {"privctl": "0.1.0", "torch" + text: "2" + text},
        "inputs": (artifact("data" + text, "data.jsonl" + text),),
        "outputs": (artifact("model", "m/model.safetensors" + text), artifact("companion", "m/config.json" + text)),
        "parameters": {
            "optimizer" + text: "adamw" + text,
            "history": [{"training_loss": 3.0, "held_out_loss": 3.1}, {"training_loss": 2.0, "held_out_loss": 2.4}],
        },
        "mechanism": Ledger(events=(SampledGaussian(noise_multiplier=1.0, sample_rate=0.05, steps=100),)),
        "guarantees": (
            Guarantee(
                name="dp-sgd" + text,
                epsilon=2.0,
                delta=1e-5,
                adjacency=Adjacency.ADD_OR_REMOVE,
                accountant="privacy loss distribution" + text,
                status=Status.CONDITIONAL,
                noise_multiplier=1.0,
                note="for real arithmetic" + text,
                assumptions=(
                    Assumption(name="a" + text, statement="batches are Poisson" + text, state=AssumptionState.ENFORCED),
                    Assumption(name="b" + text, statement="public words" + text, state=AssumptionState.ASSERTED),
                ),
                risks=(Risk(measure=RiskMeasure.TRUE_POSITIVE_RATE, bound=0.1, at=0.01),),
            ),
            Guarantee(
                name="published" + text,
                epsilon=0.5,
                delta=1e-5,
                adjacency=Adjacency.UNSTATED,
                accountant="a paper" + text,
                status=Status.CLAIMED,
            ),
        ),
        "warnings": ("keep this report to yourself" + text,),
    }
    return PrivacyReport(**(fields | more))  # type: ignore[arg-type]


def audited(text: str = "") -> PrivacyReport:
    def rate(method: str, quantity: str, value: float, chance: float) -> Evidence:
        return Evidence(
            method=method + text, quantity=quantity, estimate=value, lower=value / 2, upper=min(1.0, value * 1.2),
            samples={"members": 100, "nonmembers": 100}, details={"chance": chance}, interval="exact" + text,
        )  # fmt: skip

    return PrivacyReport(
        step="audit",
        created="2026-01-02T00:00:00Z",
        versions={"privctl": "0.1.0"},
        inputs=(artifact("model", "m/model.safetensors"),),
        evidence=(
            rate("loss", "AUC", 0.7, 0.5),
            rate("loss", "TPR at 1 % FPR", 0.08, 0.02),
            rate("zlib", "AUC", 0.6, 0.5),
            rate("extraction", "rate on training text" + text, 0.2, 0.0),
            rate("canary completion", "disclosed, left out" + text, 0.01, 0.0),
            Evidence(method="one run", quantity="epsilon", estimate=1.2, lower=1.2, bound=Bound.LOWER),
            Evidence(
                method="canary exposure",
                quantity="mean bits, included" + text,
                estimate=3.0,
                bound=Bound.NONE,
                details={"p_value": 0.001, "level": 0.01, "detected": 1.0},
                reason=text,
            ),
        ),
        verdicts=(
            Verdict(subject="nothing is remembered" + text, outcome=Outcome.REFUTED, reason="it is" + text),
            Verdict(subject="epsilon 2" + text, outcome=Outcome.INCONCLUSIVE, reason="too few" + text),
        ),
        omissions=(Omission(what="lira" + text, reason="no shadow models" + text),),
    )


def noised(text: str = "") -> PrivacyReport:
    facts = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=100, batch_size=10)
    return PrivacyReport(
        step="noise",
        created="2026-01-03T00:00:00Z",
        versions={"privctl": "0.1.0"},
        outputs=(artifact("model", "n/model.safetensors"),),
        mechanism=WeightNoise(training=facts, noise_stddev=0.1, dimension=30, calibration=Calibration.GAUSSIAN),
        guarantees=(
            Guarantee(
                name="nonconvex" + text, epsilon=8.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE,
                accountant="analytic", status=Status.PROVED, noise_multiplier=0.6,
            ),
        ),
    )  # fmt: skip


def planned(text: str = "") -> PrivacyReport:
    spread = {f"quantile {q}": value for q, value in (("0", 0.1), ("0.5", 0.5), ("1", 0.99))}
    return PrivacyReport(
        step="secrets-plan",
        created="2026-01-04T00:00:00Z",
        versions={"privctl": "0.1.0"},
        parameters={"caps": [
            {"cap": 1.0, "kept": 0.5, "noise_multiplier": 1.0}, {"cap": None, "kept": 1.0, "noise_multiplier": 4.0},
        ]},
        evidence=(
            Evidence(method="computed", quantity="information / budget" + text, estimate=0.5, details=spread,
                     samples={"secrets": 9}),
        ),
    )  # fmt: skip


def accounted(text: str = "") -> PrivacyReport:
    return PrivacyReport(
        step="account",
        created="2026-01-05T00:00:00Z",
        versions={"privctl": "0.1.0"},
        guarantees=tuple(
            Guarantee(name=name + text, epsilon=epsilon, delta=1e-5, adjacency=Adjacency.UNSTATED, accountant=name,
                      status=status, follows=2.0)
            for name, epsilon, status in (("pld", 2.0, Status.CONDITIONAL), ("limit theorem", 1.5, Status.REFUTED))
        ),
    )  # fmt: skip


def page_data(text: str = "") -> PageData:
    """One of everything."""
    curve = RocCurve(
        name="loss" + text, points=((0.0, 0.0), (0.01, 0.08), (0.5, 0.8), (1.0, 1.0)), corners=400,
        band=((0.01, 0.04, 0.12), (0.5, 0.7, 0.9)),
    )  # fmt: skip
    bound = BoundCurve(
        label="dp-sgd" + text,
        status=Status.CONDITIONAL,
        severity=Severity.FAIR,
        points=((1e-4, 0.01), (1.0, 1.0)),
        source="ledger" + text,
    )
    model = ReportSource(key="r1", name="private" + text, digest=DIGEST, report=trained(text), bounds=(bound,),
                   absent=("gone" + text,))  # fmt: skip
    audit = ReportSource(
        key="r2", name="private.audit" + text, digest=DIGEST, report=audited(text), parents=("r1",), roc=(curve,),
        exposures=(
            ExposureGroup(name="included" + text, counts=(1, 2, 3), ceiling=3.0, included=True),
            ExposureGroup(name="left out" + text, counts=(4, 2, 0), ceiling=3.0, included=False),
        ),
        digests=(Verdict(subject="scores" + text, outcome=Outcome.PROVED, reason="the one recorded"),),
        left_out=("something" + text,),
    )  # fmt: skip
    noise = ReportSource(
        key="r3", name="noised" + text, digest=DIGEST, report=noised(text),
        tensors=(TensorNoiseSummary(name="w" + text, size=20, rms=0.3, noised=True),
                 TensorNoiseSummary(name="b" + text, size=10, rms=0.0, noised=False)),
    )  # fmt: skip
    plan = ReportSource(key="r4", name="plan" + text, digest=DIGEST, report=planned(text))
    account = ReportSource(key="r5", name="account" + text, digest=DIGEST, report=accounted(text))
    return PageData(
        title="Privacy report" + text,
        version="0.1.0",
        sources=(model, audit, noise, plan, account),
        subjects=(
            JudgedSubject(source=model, audits=(audit,)),
            *(JudgedSubject(source=source) for source in (noise, plan, account)),
        ),
    )
