"""A verification for the terminal: what was checked, and what a simulation showed."""

from __future__ import annotations

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.text.style import plain
from privctl.show.text.verify import verify_text


def words(text: str) -> str:
    return " ".join(plain(text).split())


def test_a_report_that_names_no_file_counts_no_checks() -> None:
    said = words(verify_text((), ()))
    assert said.startswith("the report names no file that could be checked, and no fault was found in its parameters")
    of_one = verify_text((Verdict(subject="files", outcome=Outcome.PROVED, reason="as named"),), ())
    assert words(of_one).startswith("1 of 1 check of files, reports and parameters passed")
    assert "Simulated" not in said + of_one


def test_what_was_simulated_is_shown_with_what_it_cannot_show() -> None:
    seen = Verdict(subject="a toy training of 100 steps", outcome=Outcome.CONSISTENT, reason="no violation seen")
    rate = Evidence(
        method="algorithm 1",
        quantity="violation rate of published",
        estimate=0.25,
        bound=Bound.NONE,
        reason="it says nothing of delta",
    )
    said = words(verify_text((), (), (seen,), (rate,)))
    assert "Simulated: a toy training of 100 steps: CONSISTENT: no violation seen" in said
    assert "violation rate of published: 0.25 (algorithm 1); it says nothing of delta" in said
