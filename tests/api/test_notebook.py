"""Values in notebooks: all text of them escaped, and nothing of the page's own script or style."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import privctl.api  # what says how
from privctl.domain.evidence import Evidence
from privctl.domain.gate import FileLine, Finding, GateJudgement, GateOutcome
from privctl.domain.notebook import Shown
from privctl.domain.report import Omission, PrivacyReport, Reports
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import write_report
from privctl.show.html.notebook import fragment
from tests.gate.made import CONDITIONAL

EVIL = "<script>alert('x')</script>\x1b[31m"
REPORT = PrivacyReport(
    step=EVIL,
    created="2030-01-01T00:00:00Z",
    versions={},
    guarantees=(replace(CONDITIONAL, name=EVIL, accountant=EVIL),),
    verdicts=(Verdict(subject=EVIL, outcome=Outcome.REFUTED, reason=EVIL),),
    evidence=(Evidence(method=EVIL, quantity=EVIL, estimate=0.5, lower=0.4, upper=0.6),),
    omissions=(Omission(what=EVIL, reason=EVIL),),
    warnings=(EVIL,),
)
FINDING = Finding(rule=EVIL, outcome=GateOutcome.FAIL, subject=EVIL, message=EVIL, place=FileLine(path=EVIL), fix=EVIL)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "value",
    [
        REPORT,
        Reports((REPORT, REPORT)),
        REPORT.guarantees[0],
        GateJudgement(findings=(FINDING,), notes=(EVIL,)),
    ],
    ids=["report", "reports", "guarantee", "gate"],
)
def test_values_are_shown_and_escaped(value: Shown) -> None:
    text = value._repr_html_()
    assert text is not None
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen <= {"div", "h4", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "span",
                         "details", "summary", "ul", "li"}  # fmt: skip
    assert "table" in tags.seen
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "value",
    [REPORT, Reports((REPORT, REPORT)), REPORT.guarantees[0], GateJudgement(findings=(FINDING,), notes=(EVIL,))],
    ids=["report", "reports", "guarantee", "gate"],
)
def test_printed_values_are_a_few_harmless_lines(value: Shown) -> None:
    assert "\x1b" not in str(value)
    assert len(str(value)) < min(1200, len(repr(value)))


def test_a_printed_report_says_what_matters_and_where_the_rest_is() -> None:
    many = replace(REPORT, step="retrain", guarantees=(CONDITIONAL,), warnings=("a",) * 30)
    text = str(many)
    assert text.startswith("report of privctl retrain, 2030-01-01T00:00:00Z\n")
    assert f"epsilon {CONDITIONAL.epsilon:g}" in text
    assert "conditional" in text
    assert "1 asserted" in " ".join(text.split())
    assert "30 in .warnings" in text
    assert str(replace(many, verdicts=REPORT.verdicts * 9)).count("refuted: ") == 4
    assert "... and 5 more" in str(replace(many, verdicts=REPORT.verdicts * 9))
    assert repr(many).startswith("PrivacyReport(")


def test_a_guarantee_is_shown_with_its_status() -> None:
    text = CONDITIONAL._repr_html_()
    assert text is not None
    assert "conditional" in text
    assert "1 asserted" in text


def test_a_verification_is_shown(tmp_path: Path) -> None:
    report_path = tmp_path / "m.report.json"
    write_report(report_path, replace(REPORT, guarantees=(), evidence=(), verdicts=()))
    text = privctl.api.verify(report_path)._repr_html_()
    assert text is not None
    assert "inconclusive" in text
    assert "no step named" in text
    assert "<script" not in text
    assert str(privctl.api.verify(report_path)).startswith("verification\n")
    assert "Undecided: no error was found, but" in text
    assert "Undecided: no error was found" in str(privctl.api.verify(report_path))


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        fragment(3)
