"""Plans of protection computed again: a genuine one passes, and edited ones name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.accounting.secrets import binary_kl, information, noise_multiplier_for, posterior
from privctl.domain.events import SecretMixture
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports import file_artifact
from privctl.secrets.protection import Form, PlanFacts, Protection, write_protection
from verify.run import verify

STEPS, BATCH = 200, 5.0


def genuine() -> Protection:
    weights = np.linspace(0.2, 1, 100)
    chances = BATCH * weights / weights.sum()
    held = [[0, 1, 2], [5], list(range(10, 30))]
    prior, allowed = 0.01, 0.2
    sigma = max(noise_multiplier_for(tuple(chances[records]), STEPS, prior, allowed) for records in held)
    events = [SecretMixture(probabilities=tuple(chances[r]), noise_multiplier=sigma, steps=STEPS) for r in held]
    nats = [information(event) for event in events]
    return Protection(
        facts=PlanFacts(
            data="blake3:" + "0" * 64, data_name="data.jsonl", examples=100, secrets="blake3:" + "1" * 64, steps=STEPS,
            batch_size=BATCH, noise_multiplier=sigma, form=Form.REFERENCE, cap=None,
        ),
        ids=("a", "b", "c"), kinds=("x", "x", "y"), weights=weights, probabilities=chances,
        starts=np.array([0, *np.cumsum([len(r) for r in held])]), records=np.concatenate(held),
        priors=np.full(3, prior), posteriors=np.full(3, allowed), budgets=np.full(3, binary_kl(allowed, prior)),
        information=np.array(nats), posterior_bounds=np.array([posterior(n, prior) for n in nats]),
        curve_bounds=np.full(3, np.nan),
    )  # fmt: skip


def verdicts(plan: Protection, folder: Path) -> list[tuple[Outcome, str]]:
    path, place = folder / "p.plan.safetensors", folder / "p.report.json"
    write_protection(path, plan, place, replace=True)
    artifact = file_artifact("plan", path, place)
    report = PrivacyReport(step="secrets-plan", created="", versions={}, outputs=(artifact,))
    place.write_text("{}")
    return [(v.outcome, v.reason) for v in verify(place, report).integrity if v.subject == path.name]


def test_a_genuine_plan_is_proved(tmp_path: Path) -> None:
    assert (Outcome.PROVED, "the nats of 3 of 3 secrets are within their budgets, computed again") in verdicts(
        genuine(), tmp_path
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: replace(p, information=p.information * 0.9), "nats are given away, and the plan says"),
        (lambda p: replace(p, posterior_bounds=p.posterior_bounds * 0.9), "follows from its nats"),
        (lambda p: replace(p, budgets=p.budgets * 1.5), "its prior and posterior allow"),
        (lambda p: replace(p, priors=p.priors / 2), "its prior and posterior allow"),
        (lambda p: replace(p, probabilities=p.probabilities * 0.9), "not batch_size times the weights' shares"),
        (lambda p: replace(p, facts=replace(p.facts, noise_multiplier=p.facts.noise_multiplier / 2)), "given away"),
        (lambda p: replace(p, facts=replace(p.facts, steps=400)), "given away"),
        (lambda p: replace(p, starts=np.array([0, 3, 3, 24])), "given away"),
        (lambda p: replace(p, information=p.information * np.nan), "more than its budget"),
        (lambda p: replace(p, posterior_bounds=p.posterior_bounds * np.nan), "follows from its nats"),
        (lambda p: replace(p, starts=p.starts[:-1]), "do not fit together"),
        (lambda p: replace(p, records=p.records + 95), "do not fit together"),
    ],
)
def test_an_edited_plan_is_refuted(change: Callable[[Protection], Protection], says: str, tmp_path: Path) -> None:
    found = verdicts(change(genuine()), tmp_path)
    assert any(outcome is Outcome.REFUTED and says in reason for outcome, reason in found), found
