"""What the records of an audit tell without the model, computed again: a leak cannot be excused by its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.membership import baseline
from audits.membership.attack import Settings, curve_evidence
from audits.scores.scores_file import BASELINE, FOLD, SCORE, SEED, ranks_of, staged_scores
from audits.statistics.cross_fit import folds
from audits.statistics.relabel import data_seed
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.digest import NamedFiles
from tests.audits.membership.test_attacks import table
from verify.audits.evidence import check_evidence

SIDE, SETTINGS = 40, Settings(confidence=0.995)


class Audit:
    """One attack, the baselines with a reference model, and what an audit keeps of them."""

    def __init__(self, folder: Path) -> None:
        source = np.random.default_rng(3)
        scores = source.normal(size=2 * SIDE) + (np.arange(2 * SIDE) < SIDE)
        candidates = replace(
            table(scores[:SIDE] - 9, scores[SIDE:] - 9),
            reference=np.round(source.normal(size=2 * SIDE), 1),
        )
        blind = baseline.baseline(candidates, SETTINGS)
        member, digests = candidates.table.member, [record.digest for record in candidates.records]
        self.evidence = (
            *curve_evidence("loss", scores, member, SETTINGS),
            *baseline.differences({"loss": scores}, blind, candidates, SETTINGS),
            *blind.evidence,
        )
        self.arrays: dict[str, Any] = {
            "member": member, f"{SCORE}loss": scores, f"{SCORE}blind": blind.scores,
            **{f"{BASELINE}{name}": ranks_of(values) for name, values in blind.others.items()},
            f"{BASELINE}area": blind.areas,
            FOLD: folds(digests).astype(np.uint8),
            SEED: np.array([data_seed(digests)], dtype=np.uint64).view(np.int64),
        }  # fmt: skip
        self.folder = folder

    def judged(self, *evidence: Evidence, numpy: str | None = None) -> tuple[list[Verdict], list[str]]:
        """The verdicts on ``evidence``, and what is said not to be recomputed."""
        place, kept = self.folder / "r.report.json", self.folder / "r.scores.safetensors"
        if not kept.is_file():
            with staged_scores(kept, self.arrays, {}) as pending:
                pending.commit()
        by = versions(("numpy",)) if numpy is None else {"numpy": numpy}
        report = PrivacyReport(
            step="audit", created=now(), versions=by, parameters={"confidence": 0.95},
            outputs=(file_artifact("scores", kept, place),), evidence=evidence,
        )  # fmt: skip
        found = check_evidence(place, report, NamedFiles())
        return found.verdicts, [each.reason for each in found.omissions if each.what == "evidence not recomputed"]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return Audit(tmp_path_factory.mktemp("alone"))


def test_every_figure_of_the_records_follows_from_what_was_kept(audit: Audit) -> None:
    (verdict,), omitted = audit.judged(*audit.evidence)
    assert verdict.outcome is Outcome.CONSISTENT
    assert verdict.reason.startswith(f"{len(audit.evidence)} figures are what the ranks kept give")
    assert omitted == []


def test_by_another_numpy_only_what_no_label_decides(audit: Audit) -> None:
    """Another version may draw other labels, which decide the p-value and the deviation of a difference."""
    (verdict,), _ = audit.judged(*audit.evidence, numpy="0.1")
    assert verdict.outcome is Outcome.CONSISTENT


def changed(item: Evidence) -> Iterator[tuple[str, Evidence]]:
    for name in ("estimate", "lower", "upper"):
        yield name, replace(item, **{name: 0.9 * (getattr(item, name) or 0.0) + 0.02})
    for name in ("deviation", "p_value"):
        if name in item.details:
            yield name, replace(item, details={**item.details, name: 0.5 * item.details[name]})


def test_every_number_of_them_that_was_changed_is_noticed(audit: Audit) -> None:
    """Planted: a length, or another model, that tells the records apart, so that what the model leaks is excused."""
    tried = set()
    for item in audit.evidence:
        for name, mutant in changed(item) if item.quantity.startswith("AUC") else ():
            verdicts, _ = audit.judged(mutant)
            assert {verdict.outcome for verdict in verdicts} == {Outcome.REFUTED}, (item.method, item.quantity, name)
            tried.add((item.method, name))
    assert {("length baseline", "lower"), ("reference control", "lower"), ("blind baseline", "p_value")} <= tried
    assert {("loss", "deviation"), ("blind baseline", "deviation")} <= tried
