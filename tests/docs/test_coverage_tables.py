"""The tables of ``docs/architectures.md`` count and group as they say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.coverage import FAILS, LESS, NONE, REFUSED, RIGHT, WRONG
from tests.docs import coverage_tables
from tests.docs.figures import results
from tests.docs.pages import pages, table


def row(kind: str, ours: str, theirs: str = "", reason: str = "") -> dict[str, Any]:
    opacus = {mode: {"outcome": theirs, "reason": reason} for mode in coverage_tables.MODES} if theirs else {}
    return {"task": "causal-lm", "architecture": kind, "privctl": {"outcome": ours, "reason": reason}, "opacus": opacus}


def test_architectures_are_listed_by_how_both_ended() -> None:
    rows = [row("a", RIGHT, FAILS), row("b", RIGHT, RIGHT), row("c", REFUSED), row("d", RIGHT, LESS)]
    rows += [row("e", RIGHT, FAILS), row("f", WRONG, RIGHT), row("g", RIGHT, WRONG)]
    assert list(coverage_tables._all(rows))[1:-1] == [
        "- both right (1): b",
        "- privctl right, Opacus with less trained (1): d",
        "- privctl right, Opacus wrong (1): g",
        "- privctl right, Opacus fails (2): a, e",
        "- privctl refuses (1): c",
        "- privctl wrong (1): f",
    ]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            "TypeError: A.forward() missing 2 required positional arguments: 'x'",
            "TypeError: forward() missing required",
        ),
        ("RuntimeError: got [6] at entry 0 | `a`", "RuntimeError: got [N] at entry N / 'a'"),
    ],
)
def test_alike_messages_are_counted_together(message: str, kind: str) -> None:
    assert coverage_tables._kind(message).startswith(kind)


def test_a_refusal_without_a_stored_sentence_has_its_own() -> None:
    table = coverage_tables._refused([row("unheard-of", REFUSED, reason="InputError: model (x) reads a | b; do c")])
    assert r"| causal-lm | unheard-of | reads a \| b; do c |" in table


def test_every_pair_is_in_the_results_once() -> None:
    data = results("coverage")
    named = [(row["task"], row["architecture"]) for row in data["rows"]]
    assert len(set(named)) == len(named) == data["pairs"]
    built = [row for row in data["rows"] if row["privctl"]["outcome"] != NONE]
    assert all(each["privctl"]["difference"] <= 1e-3 for each in built if each["privctl"]["outcome"] == RIGHT)


def test_the_page_begins_with_the_totals() -> None:
    page = pages()["architectures.md"]
    total = table(page, "Results by task")[-1]
    lead = " ".join(page.split("<!--", 1)[0].split())
    assert f"{total['privctl right']} of {total['pairs']} pairs" in lead
    assert f"refuses the other {total['privctl refuses']}; none was wrong" in lead
    assert total["privctl wrong"] == "0"
    less = total["Opacus right with less trained"]
    assert f"Opacus is right for {total['Opacus right']}, and for {less} more if less is trained" in lead
