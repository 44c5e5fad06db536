"""A verification for the terminal: what was checked, and what a simulation showed."""

from __future__ import annotations

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Status
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.text.style import plain
from privctl.show.text.verify import VerifiedRow, verify_text


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


@pytest.mark.parametrize("status", [Status.CONDITIONAL, Status.CLAIMED])
def test_what_only_the_author_vouches_for_stands_below_the_table(status: Status) -> None:
    """Once for all guarantees that rest on it; what only claims something promises nothing, whatever is true."""
    assumptions = tuple(
        Assumption(name=name, statement=f"the {name} is right", state=state)
        for name, state in (("loop", AssumptionState.ASSERTED), ("noise", AssumptionState.ENFORCED))
    )
    rows = []
    for name in ("first", "second"):
        guarantee = Guarantee(
            name=name, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE, accountant="made up",
            status=status, assumptions=assumptions,
        )  # fmt: skip
        verdict = Verdict(subject=name, outcome=Outcome.PROVED, reason="as stated")
        rows.append(VerifiedRow(guarantee=guarantee, verdict=verdict))
    said = words(verify_text((), rows))
    told = "first, second: holds if the following is true, for which there is only the author's word: - the loop is"
    assert (told in said) is (status is Status.CONDITIONAL)
    assert "the noise is right" not in said
