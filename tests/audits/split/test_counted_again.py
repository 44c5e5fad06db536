"""Right guesses behind bounds of splits, counted again from the ranks that audits keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from audits.canaries.bounds import EITHER, bounds_of
from audits.canaries.design import register
from privctl.domain.evidence import Evidence
from privctl.reports.files import read_report
from privctl.storage.digest import NamedFiles
from verify.audits.evidence import check_evidence
from verify.audits.split.counted_again import wrong_guesses
from verify.audits.terms import METHODS


def faults(path: Path, change: Callable[[Evidence], Evidence]) -> list[str]:
    report = read_report(path)
    evidence = tuple(change(item) if item.method in METHODS else item for item in report.evidence)
    found = check_evidence(path, replace(report, evidence=evidence), NamedFiles())
    return [verdict.reason for verdict in found.verdicts if " are said to be right" in verdict.reason]


def more_right(item: Evidence) -> Evidence:
    """As if three more guesses of the smallest set were right."""
    return replace(item, details={**item.details, "correct 1": item.details["correct 1"] + 3})


def all_right(item: Evidence) -> Evidence:
    last = int(item.details["sets"])
    return replace(item, details={**item.details, f"correct {last}": item.details[f"guesses {last}"]})


def test_counts_of_an_audit_follow_from_its_ranks(audited: Path, audited_users: Path) -> None:
    for path in (audited, audited_users):
        report = read_report(path)
        number = sum(item.method in METHODS for item in report.evidence)
        assert number > 3
        assert not faults(path, lambda item: item)
        omitted = check_evidence(path, report, NamedFiles()).omissions
        assert not any(EITHER in verdict.reason for verdict in omitted), "all counts were looked at"
        for change in (more_right, all_right):
            assert len(faults(path, change)) == number


@pytest.mark.parametrize("unscored", [0, 7])
@pytest.mark.parametrize("levels", [6, 10_000])
def test_ranks_give_what_scores_give(unscored: int, levels: int) -> None:
    """Ties, missing scores and a leak: what the audit counts is possible, and one right guess more is not."""
    source = np.random.default_rng(5)
    for count in (2, 9, 40, 333):
        member = source.random(count) < 0.5
        scores = np.round(source.normal(size=count) + member, 2) if levels > 6 else source.integers(0, levels, count)
        scored = np.ones(count, np.bool_)
        scored[: min(unscored, count - 2)] = False
        item, _ = bounds_of(register([1] * count), scores.astype(float), scored, member, 1e-5, 0.05)
        ranks = rankdata(scores[scored])
        assert not wrong_guesses(item, ranks, member[scored])
        for number in range(1, int(item.details["sets"])):
            more = {**item.details, f"correct {number}": item.details[f"correct {number}"] + 1}
            assert "are said to be right" in wrong_guesses(replace(item, details=more), ranks, member[scored])
        given_scores = scores[scored].astype(float)
        assert not wrong_guesses(item, given_scores, member[scored], whole=True)
        for number in range(1, int(item.details["sets"]) + 1):  # scores tell the last set too
            other = {**item.details, f"correct {number}": item.details[f"correct {number}"] - 1}
            assert wrong_guesses(replace(item, details=other), given_scores, member[scored], whole=True)
        fewer = {**item.details, "made 1": item.details["made 1"] + 1}
        assert "guesses made are said to be right" in wrong_guesses(replace(item, details=fewer), ranks, member[scored])
