"""A verification for the terminal: what was checked, and what a simulation showed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Status
from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.text.style import plain
from privctl.show.text.verify import VerifiedRow, verify_text
from privctl.show.verified import verification_sentence


def words(text: str) -> str:
    return " ".join(plain(text).split())


def test_a_report_that_names_no_file_counts_no_checks() -> None:
    text = words(verify_text((), ()))
    assert "The report names no file that could be checked, and no fault was found in its parameters." in text
    of_one = verify_text((Verdict(subject="files", outcome=Outcome.PROVED, reason="as named"),), ())
    assert "1 of 1 check of files, reports and parameters passed" in words(of_one)
    assert "Simulated" not in text + of_one


def test_what_was_simulated_is_shown_with_what_it_cannot_show() -> None:
    simulated = Verdict(subject="a toy training of 100 steps", outcome=Outcome.CONSISTENT, reason="no violation seen")
    rate = Evidence(
        method="algorithm 1",
        quantity="violation rate of published",
        estimate=0.25,
        bound=Bound.NONE,
        reason="it says nothing of delta",
    )
    text = words(verify_text((), (), (simulated,), (rate,)))
    assert "Simulated: a toy training of 100 steps: CONSISTENT: no violation seen" in text
    assert "violation rate of published: 0.25 (algorithm 1); it says nothing of delta" in text


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
    text = words(verify_text((), rows))
    sentence = "first; second: hold if the following is true, which only the report's author asserts: - the loop is"
    assert (sentence in text) is (status is Status.CONDITIONAL)
    assert "the noise is right" not in text


P, R, C, U = Outcome.PROVED, Outcome.REFUTED, Outcome.CONSISTENT, Outcome.INCONCLUSIVE


def stated(name: str, status: Status, *states: AssumptionState) -> Guarantee:
    assumptions = tuple(Assumption(name=str(i), statement=f"{i} holds", state=state) for i, state in enumerate(states))
    return Guarantee(
        name=name, epsilon=2.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE, accountant="made up", status=status,
        assumptions=assumptions,
    )  # fmt: skip


def checks(*outcomes: Outcome) -> list[Verdict]:
    return [Verdict(subject=f"file {i}", outcome=outcome, reason="r") for i, outcome in enumerate(outcomes)]


PROVED = stated("dp-sgd", Status.PROVED, AssumptionState.ENFORCED)
ASSERTED = stated("dp-sgd", Status.CONDITIONAL, AssumptionState.ENFORCED, AssumptionState.ASSERTED)
CLAIMED = stated("published", Status.CLAIMED)
NOTHING = replace(PROVED, epsilon=None)
ONE = "the privacy guarantee (epsilon 2 at delta 1e-05)"
RUN = "for the run that the report describes"


@pytest.mark.parametrize(
    ("integrity", "guarantees", "outcomes", "sentence"),
    [
        ((P, C), [PROVED], [P], f"Verified: all 2 checks of the report and its files passed, and {ONE} holds {RUN}."),
        (
            (P,),
            [ASSERTED],
            [P],
            f"Verified: the one check of the report and its files passed, and {ONE} holds {RUN}, if the assumptions "
            "that nobody checked are true.",
        ),
        ((), [PROVED, ASSERTED], [P, P], "Verified: no error was found in the report, and the 2 privacy guarantees "
         f"hold {RUN}, if the assumptions that nobody checked are true."),
        ((P,) * 3, [PROVED, CLAIMED], [P, R], "Verified: all 3 checks of the report and its files passed, and "
         f"{ONE} holds {RUN}; 1 bound that it marks as only claimed is false."),
        ((P,) * 3, [], [], "Verified: all 3 checks of the report and its files passed; the report states no privacy "
         "guarantee."),
        ((P,) * 3, [CLAIMED], [R], "Verified: all 3 checks of the report and its files passed, but the report states "
         "no privacy guarantee that anyone can rely on."),
        ((P, P), [PROVED], [C], f"Verified: all 2 checks of the report and its files passed, and nothing contradicts "
         f"{ONE}."),
        ((P, P), [PROVED, NOTHING], [P, C], f"Verified: all 2 checks of the report and its files passed, and {ONE} "
         f"holds {RUN}."),
        ((P, P), [NOTHING], [C], "Verified: all 2 checks of the report and its files passed, but the report states no "
         "privacy guarantee that anyone can rely on."),
        ((P, U), [PROVED], [P], "Undecided: no error was found, but 1 of 2 checks of the report and its files could "
         "not be completed."),
        ((P, P), [PROVED], [U], f"Undecided: no error was found, but {ONE} is not confirmed."),
        ((U, P), [PROVED, ASSERTED], [P, U], "Undecided: no error was found, but 1 of 2 checks of the report and its "
         "files could not be completed and 1 of 2 privacy guarantees is not confirmed."),
        ((R, U, R), [PROVED], [P], "Do not rely on this report: 2 of 3 checks of the report and its files failed."),
        ((P, U), [PROVED], [R], f"Do not rely on this report: {ONE} is wrong."),
        ((P, P), [PROVED, ASSERTED], [R, R], "Do not rely on this report: 2 of 2 privacy guarantees are wrong."),
    ],
)  # fmt: skip
def test_the_conclusion_comes_first(
    integrity: tuple[Outcome, ...], guarantees: list[Guarantee], outcomes: list[Outcome], sentence: str
) -> None:
    rows = [
        VerifiedRow(guarantee=g, verdict=Verdict(subject=g.name, outcome=outcome, reason="r", status=g.status))
        for g, outcome in zip(guarantees, outcomes, strict=True)
    ]
    text = verify_text(checks(*integrity), rows)
    assert words(text).startswith(sentence + " ")
    colour = {"Verified": 32, "Undecided": 33}.get(sentence.partition(":")[0], 31)
    assert text.startswith(f"\x1b[{colour}m")
    assert verification_sentence([*checks(*integrity), *(row.verdict for row in rows)], guarantees) == sentence


def test_a_simulation_that_refutes_decides() -> None:
    row = VerifiedRow(guarantee=PROVED, verdict=Verdict(subject="dp-sgd", outcome=P, reason="r", status=PROVED.status))
    simulated = Verdict(subject="dp-sgd, simulated", outcome=R, reason="r", status=PROVED.status)
    assert words(verify_text(checks(P), [row], [simulated])).startswith(f"Do not rely on this report: {ONE} is wrong.")


def test_absent_inputs_are_told_at_once() -> None:
    absent = [Omission(what=f"digest of the input base/{name}", reason="it is not at hand") for name in "abc"]
    odd = Omission(what="digest of the input base/d", reason="base/d is a pipe")
    shown = words(verify_text([], [], omissions=[*absent, odd, Omission(what="noise", reason="x")]))
    assert "not checked: digests of 3 inputs, base/a, base/b, base/c: they are not at hand" in shown
    assert "not checked: digest of the input base/d: base/d is a pipe" in shown
    assert shown.count("not checked") == 3
    assert "digest of the input base/a: it is not at hand" in words(verify_text([], [], omissions=absent[:1]))


def test_without_a_verdict_nothing_is_said_to_hold() -> None:
    """As of the report of another program's verification."""
    assert verification_sentence(checks(P, P), [PROVED]) == (
        f"Verified: all 2 checks of the report and its files passed, but {ONE} was not recomputed."
    )
