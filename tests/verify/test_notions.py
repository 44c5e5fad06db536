"""Ledgers whose events protect against different changes of the data: no one number is proved for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.events import Batches, Event, LaplaceNoise, Ledger, SampledGaussian, SecretMixture
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from verify.guarantees import ledger_guarantee

FIXED = SampledGaussian(noise_multiplier=100, sample_rate=0.01, batches=Batches.FIXED_SIZE)
POISSON = SampledGaussian(noise_multiplier=1, sample_rate=0.5)
SECRET = SecretMixture(probabilities=(0.01, 0.02), noise_multiplier=5)


@pytest.mark.parametrize(
    ("steps", "adjacency"),
    [
        # A Poisson step is bounded for a record more or less, and costs more where one is replaced.
        ((FIXED, POISSON), Adjacency.REPLACE_ONE),
        ((FIXED, LaplaceNoise(scale=1)), Adjacency.REPLACE_ONE),
        # A secret lies in two records, and the other step speaks of one.
        ((SECRET, POISSON), Adjacency.ZERO_OUT),
    ],
)
def test_events_of_different_neighbours_are_left_open(steps: tuple[Event, ...], adjacency: Adjacency) -> None:
    claim = Guarantee(
        name="claim", epsilon=50.0, delta=1e-5, notion=Notion.APPROXIMATE_DP, unit=PrivacyUnit.EXAMPLE,
        adjacency=adjacency, accountant="", status=Status.CONDITIONAL,
    )  # fmt: skip
    report = PrivacyReport(step="account", created="", versions={}, mechanism=Ledger(events=steps), guarantees=(claim,))
    outcome, reason = ledger_guarantee(report, claim)
    assert outcome is Outcome.INCONCLUSIVE
    assert "neighbours" in reason


def test_no_allowance_is_told_of_an_epsilon_that_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a row said "0 of missing was subtracted"."""
    from types import SimpleNamespace

    from tests.show.made import trained
    from verify import guarantees

    report = trained()
    monkeypatch.setattr(guarantees.gridded, "objection", lambda *_: None)
    monkeypatch.setattr(
        guarantees.gridded, "ideal_guarantee", lambda _, bound: SimpleNamespace(guarantee=bound, epsilon=0.0)
    )
    for epsilon, reason in ((None, "why"), (2.0, "why; 0 of 2 was subtracted for floating-point noise")):
        bound = replace(report.guarantees[0], epsilon=epsilon)
        answer = guarantees._without_float_allowance(lambda *_: (Outcome.CONSISTENT, "why"), report, bound)
        assert answer == (Outcome.CONSISTENT, reason)
