"""What the gate prints if one rule finds the same of many subjects, and its one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.gate import FileLine, Finding, GateJudgement, GateOutcome
from privctl.show.alike import in_a_sentence
from privctl.show.formats import github, junit
from privctl.show.markdown import gate as markdown
from privctl.show.text import gate as text
from privctl.show.text.style import plain

LIMIT = "the upper bound is above 0.6"
FAIL, INCONCLUSIVE, PASS = GateOutcome.FAIL, GateOutcome.INCONCLUSIVE, GateOutcome.PASS


def finding(number: int, outcome: GateOutcome = INCONCLUSIVE, rule: str = "max_auc", **more: str) -> Finding:
    return Finding(
        rule=rule,
        outcome=outcome,
        subject=f"attack{number:02d} AUC",
        message=f"0.55 (0.45 to 0.6{number:02d}): {LIMIT}",
        place=FileLine(path="a.report.json", line=300 + number),
        fix="" if outcome is PASS else "audit again with more records",
        **more,
    )


MANY = GateJudgement(findings=tuple(map(finding, range(1, 31))))


def test_the_limit_is_said_of_however_many_attacks() -> None:
    """With 30 attacks the list was cut before the limit, which stood at its end."""
    shown = " ".join(text.render(MANY).split())
    assert f"max_auc (30 findings): {LIMIT}: attack01 AUC 0.55 (0.45 to 0.601), " in shown
    assert "attack04 AUC 0.55 (0.45 to 0.604), and 26 more" in shown
    assert "attack05" not in shown


def test_verbose_names_every_attack() -> None:
    shown = plain(text.render(MANY, verbose=True))
    assert f"  max_auc (30 findings): {LIMIT}\n    attack01 AUC 0.55 (0.45 to 0.601)\n" in shown
    assert all(f"\n    attack{number:02d}" in shown for number in range(1, 31))
    assert "more" not in shown.replace("more records", "")


def test_five_are_all_named() -> None:
    shown = text.render(replace(MANY, findings=MANY.findings[:5]))
    assert "attack05" in shown
    assert "and 1 more" not in shown


def test_github_gets_one_annotation() -> None:
    """GitHub shows ten annotations of a step, so those on 30 attacks would hide all others."""
    lines = github.render(MANY).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"::warning file=a.report.json,line=301,title=privctl max_auc::{LIMIT}: attack01")
    assert lines[1].endswith("Do not release yet: nothing failed, but max_auc could not be decided.")


def test_markdown_gets_one_row_and_junit_one_case_each() -> None:
    rows = [line for line in markdown.render(MANY).splitlines() if line.startswith("| max")]
    assert len(rows) == 1
    assert "30 findings" in rows[0]
    assert LIMIT in rows[0]
    assert junit.render(MANY).count("<testcase ") == 30


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        ((finding(1, PASS),), "Every requirement of the policy is met."),
        (
            (finding(1, PASS), finding(2, FAIL, waiver="W-1", waived_because="known")),
            "Every requirement of the policy is met, with what is waived.",
        ),
        ((finding(1), finding(2)), "Do not release yet: nothing failed, but max_auc could not be decided."),
        ((finding(1, FAIL), finding(2, FAIL)), "Do not release: max_auc failed."),
        (
            (finding(1, FAIL), finding(2, FAIL, "chain"), finding(3, FAIL, "model"), finding(4, rule="min_power")),
            "Do not release: max_auc, chain and model failed, and min_power could not be decided.",
        ),
        ((finding(1, FAIL), finding(2)), "Do not release: max_auc failed."),  # it failed for one attack of two
        ((), "Do not release yet: nothing was checked."),
    ],
)
def test_one_sentence_says_what_was_found(findings: tuple[Finding, ...], sentence: str) -> None:
    judgement = GateJudgement(findings=findings)
    assert in_a_sentence(judgement) == sentence
    first, *rest = plain(text.render(judgement)).splitlines()
    assert first == text.summary(judgement)
    assert " ".join(" ".join(rest).split()).startswith(sentence)
