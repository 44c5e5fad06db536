"""Plans in the pairwise form, computed again: the integral, a genuine plan, and one that understates its nats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.accounting.secrets.fano import information, noise_multiplier_for, posterior
from privctl.domain.events import Ledger, SecretMixture
from privctl.domain.verdict import Outcome
from privctl.secrets.protection import Form, Protection
from tests.accounting.test_mixtures import TABLE
from tests.verify.recompute.test_protection import STEPS, genuine, verdicts
from verify.recompute import opposite_secret
from verify.recompute.ledger import epsilon_of, exact_shift
from verify.recompute.opposite_secret import opposite_information


@pytest.mark.parametrize(("probabilities", "sigma", "_forward", "replaced", "_square"), TABLE)
def test_nats_are_those_of_mpmath(
    probabilities: list[float], sigma: float, _forward: float, replaced: float, _square: float
) -> None:
    found = opposite_information(probabilities, sigma, 3)
    assert found.lower <= 3 * replaced * (1 + 1e-11)
    assert found.upper == pytest.approx(3 * replaced, rel=2e-9)


def test_closed_bounds_hold_the_integral(monkeypatch: pytest.MonkeyPatch) -> None:
    for probabilities, sigma in (([0.3, 0.3], 0.2), ([1.0], 0.5), ([0.01] * 5, 1.0)):
        exact = opposite_information(probabilities, sigma, 1)
        with monkeypatch.context() as patched:
            patched.setattr(opposite_secret, "_MOST_POINTS", 0)
            wide = opposite_information(probabilities, sigma, 1)
        assert wide.lower <= exact.lower
        assert exact.upper <= wide.upper * (1 + 1e-8)


def pairwise() -> Protection:
    plan = genuine()
    held = [plan.records[a:b] for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True)]
    chances = [tuple(plan.probabilities[records].tolist()) for records in held]
    sigma = max(noise_multiplier_for(chance, STEPS, 0.01, 0.2, pairwise=True) for chance in chances)
    events = [SecretMixture(probabilities=chance, noise_multiplier=sigma, steps=STEPS) for chance in chances]
    nats = np.array([information(event, pairwise=True) for event in events])
    return replace(
        plan,
        facts=replace(plan.facts, form=Form.PAIRWISE, noise_multiplier=sigma),
        information=nats,
        posterior_bounds=np.array([posterior(n, 0.01) for n in nats]),
    )


def test_a_genuine_plan_is_proved(tmp_path: Path) -> None:
    assert (Outcome.PROVED, "the nats of 3 of 3 secrets are within their budgets, computed again") in verdicts(
        pairwise(), tmp_path
    )


def test_nats_of_the_other_form_are_refuted(tmp_path: Path) -> None:
    """Less is given away against the secret's absence, so such a plan promises too much."""
    plan = pairwise()
    understated = plan.information.copy()
    understated[1] *= 1 - 1e-6
    for nats in (understated, plan.information / 2):
        bounds = np.array([posterior(n, 0.01) for n in nats])
        found = verdicts(replace(plan, information=nats, posterior_bounds=bounds), tmp_path)
        assert any(outcome is Outcome.REFUTED and "nats are given away" in why for outcome, why in found)


def test_records_that_are_always_drawn_are_one_gaussian() -> None:
    """However little noise there is: epsilon is about mu^2 / 2, some 1.4 million, and no grid is that fine."""
    event = SecretMixture(probabilities=(1.0,) * 5, noise_multiplier=0.3, steps=10_000)
    mu = exact_shift(Ledger(events=(event,)))
    assert mu == pytest.approx(100 * 5 / 0.3)
    found = epsilon_of(Ledger(events=(event,)), 1e-6)
    assert found.lower == pytest.approx(found.upper, rel=1e-9)
    assert mu * mu / 2 < found.upper < mu * mu / 2 + 5 * mu
    mixed = SecretMixture(probabilities=(1.0, 0.5), noise_multiplier=0.3, steps=10)
    assert exact_shift(Ledger(events=(mixed,))) is None
