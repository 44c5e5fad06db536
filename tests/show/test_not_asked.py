"""What an audit says of the questions that nobody asked, and once of several attacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.verdict import Outcome, Verdict
from privctl.show.leaks import EXTRACTION, SECRETS
from privctl.show.text.audit import audit_text
from tests.show import made
from tests.show.test_decision import membership


@pytest.mark.parametrize(
    ("task", "asked", "named"),
    [
        ("causal-lm", (), ("extraction", "secrets")),
        ("causal-lm", (EXTRACTION,), ("secrets",)),
        ("causal-lm", (EXTRACTION, SECRETS), ()),
        ("text-classification", (), ()),
    ],
)
def test_an_audit_of_a_language_model_names_what_was_not_asked(
    task: str, asked: tuple[str, ...], named: tuple[str, ...]
) -> None:
    audited = membership(0.0, 400)
    more = tuple(Verdict(subject=each, outcome=Outcome.CONSISTENT, reason="nothing came out") for each in asked)
    text = audit_text(replace(audited, parameters={"task": task}, verdicts=(*audited.verdicts, *more)))
    for each in ("extraction", "secrets"):
        assert (f"- {each}: the audit was not asked" in text) is (each in named)


def test_what_holds_of_several_attacks_is_said_once() -> None:
    """As of an audit whose files were swapped: a dozen attacks are below chance, and each was told on its own."""
    seen = made.audited()
    methods = list(dict.fromkeys(item.method for item in seen.evidence))
    below = "the AUC lies below 0.5"
    text = audit_text(replace(seen, warnings=(*(f"{name}: {below}" for name in methods), f"other: {below}", "a: b")))
    shown = " ".join(text.split())
    assert len(methods) > 1
    assert f"- {', '.join(methods)}: {below}" in shown
    assert shown.count(below) == 2, "another word before a colon is no attack"
    assert "- a: b" in shown
