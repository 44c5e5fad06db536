"""Scores of the records of a drawn split bound epsilon, as scores of canaries do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.canaries.bounds import EITHER, MAHLOUJIFAR
from audits.canaries.design import power_ceiling, register
from audits.claims import EpsilonClaim
from audits.findings import Findings
from audits.record_scores.audit import run_record_scores
from audits.record_scores.table import ScoreColumns
from audits.split.bounds import DrawnScores
from audits.split.draw import SplitRequest, draw_split
from audits.split.drawn import DrawnSplit, read_split
from audits.split.findings import split_findings
from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.verdict import Outcome
from tests.audits.tiny import write_jsonl
from verify.audits.canaries.guesses import check_guesses
from verify.audits.consistency import faults
from verify.audits.split.drawn import check_split

Rows = list[tuple[str, int, float]]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> DrawnSplit:
    folder = tmp_path_factory.mktemp("split")
    data = write_jsonl(folder / "d.jsonl", [f"record {i}" for i in range(500)])
    draw_split(SplitRequest(data=data, folder=folder / "split"))
    return read_split(folder / "split/manifest.json")


def rows(split: DrawnSplit, shift: float, seed: int = 0) -> Rows:
    source = np.random.default_rng(seed)
    return [
        (f"{'members' if member else 'nonmembers'}:{line}", int(member), shift * member + source.normal())
        for member, line in sorted(split.coins)
    ]


def report_on(split: DrawnSplit, found: Rows, *more: str, delta: float | None = None) -> PrivacyReport:
    """Of the scores, and of as many columns of nothing as there are names ``more``."""
    source = np.random.default_rng(7)
    path = split.path.with_name("s.csv")
    lines = [",".join(map(str, (*row, *source.normal(size=len(more))))) for row in found]
    path.write_text("\n".join([",".join(("id", "member", "score", *more)), *lines]) + "\n")
    columns = ScoreColumns(scores=("score", *more))
    return run_record_scores([path], path.with_name("r.json"), columns=columns, split=split, delta=delta)


def bounds(report: PrivacyReport) -> tuple[Evidence, ...]:
    found = tuple(item for item in report.evidence if item.method in (EITHER, MAHLOUJIFAR))
    path = Path(report.inputs[0].path).parent / "r.json"
    assert not list(faults(report))
    assert not list(check_guesses(path, report, ()))
    return found


def test_scores_that_tell_all_reach_the_ceiling(split: DrawnSplit) -> None:
    report = report_on(split, rows(split, 100.0))
    epsilon, mu = bounds(report)
    # as the table of what 500 canaries can certify: docs/canaries.md
    assert epsilon.lower == pytest.approx(4.585, abs=1e-3)
    assert epsilon.lower == pytest.approx(power_ceiling(register([1] * 500), 1e-5, 0.025))
    assert mu.lower is not None
    assert mu.lower > 1
    assert [item.confidence for item in (epsilon, mu)] == [0.975, 0.975]
    test = report.evidence[0].test
    assert test is not None
    assert test.level == 0.025
    assert report.verdicts[0].outcome is Outcome.REFUTED
    ((found),) = check_split(split.path.with_name("r.json"), report, ())
    assert found.outcome is Outcome.CONSISTENT


def test_all_columns_pay_for_each_other(split: DrawnSplit) -> None:
    one, three = (report_on(split, rows(split, 3.0), *more) for more in ((), ("other", "third")))
    alone, first, *others = bounds(one)[0], *bounds(three)
    assert first.quantity == "epsilon, column score"
    assert first.confidence == pytest.approx(1 - 0.025 / 3)
    assert 0 < first.lower < alone.lower  # type: ignore[operator]
    assert [item.lower for item in others[1:]] == [0, 0, 0, 0]
    path = split.path.with_name("r.json")
    cheap = tuple(replace(i, confidence=0.975) if i.method == EITHER else i for i in three.evidence)
    ((found),) = check_split(path, replace(three, evidence=cheap), ())
    assert found.outcome is Outcome.REFUTED
    assert "more than half of the audit's" in found.reason


def test_no_bound_from_a_choice_of_records(split: DrawnSplit) -> None:
    found = rows(split, 3.0)
    whole = bounds(report_on(split, found))[0]
    assert whole.lower is not None
    less = [row for row in found if row[1] or row[2] < 1.5]  # those that would have been guessed wrong
    epsilon, mu = bounds(report_on(split, less))
    assert epsilon.lower is mu.lower is None
    assert "have no score, and which ones may depend on the coins" in epsilon.reason


@pytest.mark.parametrize("again", ["members:01", "members:\N{ARABIC-INDIC DIGIT ONE}", "members:1_0"])
def test_a_second_name_of_a_record_does_not_count_it_twice(split: DrawnSplit, again: str) -> None:
    with pytest.raises(InputError, match="is none of"):
        report_on(split, [*rows(split, 0.0), (again, 1, 9.0)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda first: ("x7", *first[1:]), "'x7' is none of"),
        (lambda first: ("members:501", *first[1:]), "'members:501' is none of"),
        (lambda first: (f"members:{'9' * 5000}", *first[1:]), "is none of"),
        (lambda first: (first[0], 1 - first[1], first[2]), "is on the other side of"),
    ],
)
def test_records_of_other_splits_are_refused(
    split: DrawnSplit, change: Callable[[tuple[str, int, float]], tuple[str, int, float]], says: str
) -> None:
    first, *others = rows(split, 0.0)
    with pytest.raises(InputError, match=says):
        report_on(split, [change(first), *others])


def test_seldom_a_bound_where_there_is_nothing(split: DrawnSplit) -> None:
    """At 97.5 %, at most 1 in 40 runs may find an epsilon above 0; 8 of 60 are 1 in 10,000."""
    found = 0
    for seed in range(60):
        ids, member, values = zip(*rows(split, 0.0, seed), strict=True)
        scored = DrawnScores(split=split, ids=ids, member=np.array(member, dtype=np.bool_), skipped={})
        found += (scored.bounds({"score": np.array(values)}, 1e-5, 0.025)[0].lower or 0) > 0
    assert found < 8


def findings(
    split: DrawnSplit, shift: float, *claimed: EpsilonClaim, trained_on: tuple[str, ...] | None = None
) -> Findings:
    ids, member, values = zip(*rows(split, shift), strict=True)
    scored = DrawnScores(split=split, ids=ids, member=np.array(member, dtype=np.bool_), skipped={})
    scores = {"loss": np.array(values), "zlib": np.random.default_rng(1).normal(size=len(values))}
    return split_findings(
        scored, scores, trained_on=trained_on, claimed=claimed, curve=None, delta=None, alpha=0.025
    )  # fmt: skip


def report_of(found: Findings, *claims: tuple[float, float]) -> PrivacyReport:
    return PrivacyReport(
        step="audit", created="2030-01-01T00:00:00Z", versions={}, evidence=found.evidence, verdicts=found.verdicts,
        parameters={"attack": ["loss", "zlib"], "confidence": 0.95, "split_commitment": "blake3:0",
                    "asked": {"claims": claims}},
        omissions=(Omission(what="loss attack and zlib attack", reason="these are their bounds alone"),),
        inputs=(Artifact(role="model", path="m/model.safetensors", digest="blake3:0", bytes=9),),
        outputs=(Artifact(role="scores", path="r.scores.safetensors", digest="blake3:0", bytes=9),),
    )  # fmt: skip


def test_a_models_scores_of_a_split_refute_its_claims(split: DrawnSplit) -> None:
    low, high = (EpsilonClaim(epsilon=epsilon, delta=1e-6) for epsilon in (1.0, 8.0))
    found = findings(split, 100.0, low, high)
    assert [verdict.outcome for verdict in found.verdicts] == [Outcome.REFUTED, Outcome.INCONCLUSIVE]
    assert "with 500 coins no bound can exceed 4." in found.verdicts[1].reason
    assert "split more records (privctl audit split --to-see 8 says how many)" in found.verdicts[1].reason
    assert [item.quantity for item in found.evidence] == ["epsilon, loss", "mu, loss", "epsilon, zlib", "mu, zlib"]
    assert found.evidence[0].details["delta"] == 1e-6
    assert findings(split, 0.0, low).verdicts[0].outcome is not Outcome.REFUTED
    for trained_on, bounded in (((split.trained_on.digest,), True), (("blake3:0",), False)):
        found = findings(split, 100.0, low, trained_on=trained_on)
        assert (found.verdicts[0].outcome is Outcome.REFUTED) is bounded
        assert (found.evidence[0].lower is not None) is bounded
    assert found.evidence[0].reason.endswith("names other training data than members.jsonl of the split")


def test_verdicts_on_claims_follow_from_counts(split: DrawnSplit) -> None:
    low, high = (EpsilonClaim(epsilon=epsilon, delta=1e-5) for epsilon in (1.0, 8.0))
    right = report_of(findings(split, 100.0, low, high), (1.0, 1e-5), (8.0, 1e-5))
    assert not list(faults(right))
    for place, outcome, says in (
        (0, Outcome.CONSISTENT, "but its counts refute that"),
        (0, Outcome.INCONCLUSIVE, "but its counts refute that"),
        (1, Outcome.REFUTED, "but its counts do not refute that"),
    ):
        verdicts = [*right.verdicts]
        verdicts[place] = replace(verdicts[place], outcome=outcome)
        (fault,) = faults(replace(right, verdicts=tuple(verdicts)))
        assert fault.endswith(says)


def test_the_guesses_on_a_split_follow_from_its_size(tmp_path: Path, split: DrawnSplit) -> None:
    right = report_of(findings(split, 100.0))
    assert not list(check_guesses(tmp_path / "r.json", right, ()))
    first = right.evidence[0]
    chosen = replace(first, details={**first.details, "guesses 1": 18, "correct 1": 18})
    (found,) = check_guesses(tmp_path / "r.json", replace(right, evidence=(chosen, *right.evidence[1:])), ())
    assert found.outcome is Outcome.REFUTED
    assert "where a split has 20, 100, 250, 500" in found.reason


def test_options_that_do_not_go_together(split: DrawnSplit, capsys: pytest.CaptureFixture[str]) -> None:
    report_on(split, rows(split, 0.0))
    scores, manifest = str(split.path.with_name("s.csv")), str(split.path)
    for words, code, says in (
        (["--split", manifest, "--models"], 2, "--split is for scores of records"),
        (["--delta", "1e-6"], 2, "--delta needs scores of many models or of a split"),
        (["--split", manifest, "--claim", "1,1e-5"], 2, "--claim needs scores of many models"),
        (["--split", str(split.members)], 3, "is not"),
        (["--split", manifest, "--delta", "1e-6"], 0, ""),
    ):
        assert run(["audit", "scores", scores, *words, "-q"]) == code
        assert says in capsys.readouterr().err
