"""Reports of audits of scores of many models are held to the sizes that they state, and to the file of scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import privctl
from privctl.domain.errors import ExitCode
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report, write_report
from tests.few import few
from verify.audits.consistency import faults

Arms = tuple[Any, Any]
CLAIM = (0.8, 1e-5)


def normal(shift: float, inner: int = 60, outer: int = 50) -> Arms:
    source = np.random.default_rng(4)
    return source.normal(shift, 1, inner), source.normal(0, 1, outer)


def csv_of(arms: Arms, path: Path) -> Path:
    rows = [f"{side},{score!r}" for side, scores in zip((1, 0), arms, strict=True) for score in map(float, scores)]
    path.write_text("\n".join(["Member, score", *rows]) + "\n")
    return path


def audited(arms: Arms, folder: Path, name: str = "s", **options: Any) -> Path:
    privctl.audit_scores(csv_of(arms, folder / f"{name}.csv"), models=True, force=True, **options)
    return folder / f"{name}.audit.report.json"


def found(path: Path) -> list[tuple[Outcome, str]]:
    return [(v.outcome, v.reason) for v in privctl.verify(path).verdicts if v.subject == "evidence"]


def _json(arms: Arms, folder: Path) -> Path:
    (folder / "s.json").write_text(json.dumps({"without": arms[1].tolist(), "with": arms[0].tolist()}))
    return folder / "s.json"


def _halves(arms: Arms, folder: Path) -> Path:
    with_scores, without = (torch.tensor(side) for side in arms)
    save_torch({"with": with_scores.to(torch.bfloat16), "without": without.to(torch.float16)}, folder / "s.safetensors")
    return folder / "s.safetensors"


def _doubles(arms: Arms, folder: Path) -> Path:
    save_file(dict(zip(("with", "without"), arms, strict=True)), folder / "s.safetensors")
    return folder / "s.safetensors"


FORMS: dict[str, tuple[Arms, Callable[[Arms, Path], Path], dict[str, Any]]] = {
    "table": (normal(1.5), lambda arms, folder: csv_of(arms, folder / "s.csv"), {"claim": CLAIM}),
    # Two values alone: which of equal scores come first is not drawn.
    "equal scores": (tuple((side > 0.5) * 1.0 for side in normal(1.5)), _json, {"claim": CLAIM, "delta": 0.01}),
    "halves": (normal(0.0), _halves, {"claim": (3.0, 0.0)}),
    "told apart": (normal(99.0, 200, 150), _doubles, {}),
    "swapped": (normal(-2.0), _json, {"claim": CLAIM}),
    "threshold": (normal(1.5), _doubles, {"claim": CLAIM, "threshold": 1.0}),
    "infinite": ((np.array([np.inf, 1, 2, np.inf]), np.array([0.5, -np.inf, 1])), _doubles, {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_figure_is_found_again(name: str, tmp_path: Path) -> None:
    arms, make, options = FORMS[name]
    report = privctl.audit_scores(make(arms, tmp_path), models=True, **options)
    ((outcome, reason),) = found(tmp_path / "s.audit.report.json")
    assert outcome is Outcome.CONSISTENT, reason
    assert reason.startswith(f"{len(report.evidence)} figures are what the scores in the file give")
    assert list(faults(report)) == []


def _of_other_scores(folder: Path, arms: Arms, **options: Any) -> PrivacyReport:
    """All that an audit of other scores says, under the name and the digest of those in ``s.csv``."""
    genuine = read_report(folder / "s.audit.report.json")
    other = read_report(audited(arms, folder, "other", **options))
    asked = {**other.parameters["asked"], "files": genuine.parameters["asked"]["files"]}
    return replace(other, inputs=genuine.inputs, parameters={**other.parameters, "asked": asked})


LIES: dict[str, tuple[Arms, dict[str, Any], str]] = {
    "smaller bound": (normal(0.0), {"claim": CLAIM}, "its bound is 0, which is not the largest"),
    "larger bound": (normal(9.0), {"claim": CLAIM}, "which is not the largest that the scores in the file reject"),
    "other threshold": (normal(1.5), {"claim": CLAIM, "threshold": 1.0}, "true positives are"),
    "more models": (normal(1.5, 61), {"claim": CLAIM}, "and the file has {'with': 60, 'without': 50}"),
    "sides swapped": (normal(-2.0), {"claim": CLAIM}, "it warns that models without the record score higher"),
    "ties": (tuple(np.round(side, 1) for side in normal(1.5)), {"claim": CLAIM}, "its threshold is"),
}  # fmt: skip


@pytest.mark.forged("the figures are those of other scores")
@pytest.mark.parametrize("name", few(LIES, 0, 1, 2))
def test_figures_of_other_scores_are_refuted(name: str, tmp_path: Path) -> None:
    """Planted: entries that agree with each other, and not with the file."""
    arms, options, says = LIES[name]
    true = {**options, "threshold": 0.0} if "threshold" in options else options
    path = audited(normal(1.5), tmp_path, **true)
    lying = _of_other_scores(tmp_path, arms, **options)
    if "threshold" in options:
        asked = {**lying.parameters["asked"], "threshold": 0.0}
        lying = replace(
            lying,
            parameters={**lying.parameters, "asked": asked},
            evidence=tuple(replace(e, details={**e.details, "threshold": 0.0}) for e in lying.evidence),
            warnings=read_report(path).warnings,
        )
    assert list(faults(lying)) == []
    write_report(path, lying)
    assert any(outcome is Outcome.REFUTED and says in reason for outcome, reason in found(path)), found(path)
    assert privctl.verify(path).exit_code is ExitCode.REFUTED


@pytest.mark.forged("the file of scores is changed")
def test_without_the_file_that_was_judged_the_counts_are_the_reports_word(tmp_path: Path) -> None:
    path = audited(normal(1.5), tmp_path)
    csv_of(normal(0.0), tmp_path / "s.csv")
    verified = privctl.verify(path)
    assert found(path) == []
    assert (verified.exit_code, "REFUTED") == (
        ExitCode.REFUTED, next(str(v.outcome) for v in verified.verdicts if v.subject == "s.csv"),
    )  # fmt: skip
    (tmp_path / "s.csv").unlink()
    (omission,) = [
        omission for omission in privctl.verify(path).omissions if omission.what == "evidence not recomputed"
    ]
    assert omission.reason.startswith(
        "2 of 2 measured figures are the report's word (the file of scores is not at hand"
    )


def _claimed(report: PrivacyReport, **changes: Any) -> PrivacyReport:
    *bounds, claim = report.evidence
    return replace(report, evidence=(*bounds, replace(claim, **changes)))


def _detail(report: PrivacyReport, at: int, **changes: float) -> PrivacyReport:
    items = list(report.evidence)
    items[at] = replace(items[at], details={**items[at].details, **changes})
    return replace(report, evidence=tuple(items))


def _judged(report: PrivacyReport, outcome: Outcome) -> PrivacyReport:
    return replace(report, verdicts=tuple(replace(verdict, outcome=outcome) for verdict in report.verdicts))


EDITS: dict[str, tuple[Callable[[PrivacyReport], PrivacyReport], str]] = {
    "a p-value too large": (
        lambda r: _judged(_claimed(r, estimate=0.5), Outcome.CONSISTENT),
        "its p-value is 0.5, but",
    ),
    "no p-value": (lambda r: replace(r, evidence=r.evidence[:-1]), "states no p-value of it"),
    "another verdict": (lambda r: _judged(r, Outcome.CONSISTENT), "but its figures make it REFUTED"),
    "a higher ceiling": (lambda r: _detail(r, 0, ceiling=9.0), "its ceiling is 9"),
    "more power": (lambda r: _detail(r, 2, detectable=0.81), "do not notice randomized response from epsilon 0.81 on"),
    "more Gaussian power": (lambda r: _detail(r, 2, detectable_gaussian=0.81), "do not notice Gaussian noise"),
    "a rank chosen": (lambda r: _detail(r, 0, rank=7.0), "has its rank and its share"),
    "another delta": (
        lambda r: replace(r, parameters={**r.parameters, "asked": {**r.parameters["asked"], "delta": 0.1}}),
        "it is at delta 1e-05, and 0.1 was asked for",
    ),
}


@pytest.fixture(scope="module")
def refuting(tmp_path_factory: pytest.TempPathFactory) -> PrivacyReport:
    return read_report(audited(normal(2.0), tmp_path_factory.mktemp("models"), claim=CLAIM))


@pytest.mark.parametrize("name", EDITS)
def test_what_the_sizes_give_needs_no_file(name: str, refuting: PrivacyReport) -> None:
    edit, says = EDITS[name]
    assert list(faults(refuting)) == []
    assert any(says in fault for fault in faults(edit(refuting))), list(faults(edit(refuting)))


def test_a_verdict_that_so_few_models_do_not_support(tmp_path: Path) -> None:
    for options in ({}, {"threshold": 1.0}):
        report = read_report(audited(normal(0.0), tmp_path, claim=(0.3, 1e-5), **options))
        assert [verdict.outcome for verdict in report.verdicts] == [Outcome.INCONCLUSIVE]
        found_faults: Sequence[str] = list(faults(_judged(report, Outcome.CONSISTENT)))
        assert any("but its figures make it" in fault or "would not notice more" in fault for fault in found_faults), (
            options
        )


def test_an_entry_that_is_missing_is_an_answer_and_no_error(tmp_path: Path) -> None:
    """Planted: a report that ends its verification, so that nothing is said of it."""
    place = audited(normal(1.5), tmp_path, threshold=1.0)
    report = json.loads(place.read_text())
    for item in report["evidence"]:
        item["details"].pop("threshold")
    place.write_text(json.dumps(report))
    (answer,) = found(place)
    assert answer[0] is Outcome.REFUTED
    assert "'threshold'" in answer[1]
