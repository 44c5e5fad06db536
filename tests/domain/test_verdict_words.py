"""The one word for each outcome of an audit, which the terminal, the page and the gate print."""

from __future__ import annotations

import pytest

from privctl.domain.verdict import Outcome, Verdict
from privctl.show.summary import word_of


@pytest.mark.parametrize(
    ("subject", "outcome", "word"),
    [
        ("members cannot be told from non-members", Outcome.REFUTED, "rejected"),
        ("members cannot be told from non-members", Outcome.CONSISTENT, "not rejected"),
        ("(1, 1e-05)-DP", Outcome.REFUTED, "refuted"),
        ("(1, 1e-05)-DP", Outcome.CONSISTENT, "not refuted"),
        ("(1, 1e-05)-DP", Outcome.INCONCLUSIVE, "inconclusive"),
    ],
)
def test_claims_are_refuted_and_hypotheses_rejected(subject: str, outcome: Outcome, word: str) -> None:
    verdict = Verdict(subject=subject, outcome=outcome, reason="")
    assert verdict.audit_word == word
    assert word_of(verdict, "audit") == word
    assert word_of(verdict, "verify") == str(outcome).lower()
