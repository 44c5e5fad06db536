"""Plans of protection computed again: a genuine one passes, and edited ones name what is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from privctl.accounting import ledger, risk
from privctl.accounting.secrets.batched import informations
from privctl.accounting.secrets.fano import (
    binary_kl,
    curve_posterior,
    information,
    noise_multiplier_for,
    posterior,
)
from privctl.accounting.secrets.posterior_curves import SecretMemberships, least_noise_by_curve
from privctl.domain.events import Ledger, SecretMixture
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import file_artifact
from privctl.secrets.protection import Form, PlanFacts, Protection, ProtectionCalibration, staged_protection
from tests import remembered
from tests.few import few
from verify.recompute.curve_posteriors import largest_success
from verify.run import verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: One step, two values alike: what the best guess has, by mpmath. (probabilities, sigma, success)
GUESSES = [([1.0], 1, 0.8413447461), ([0.3], 0.7, 0.6270308822), ([0.3, 0.3, 0.3], 1, 0.7541968105),
           ([0.01], 0.5, 0.5047724987)]  # fmt: skip
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
    path, report_path = folder / "p.plan.safetensors", folder / "p.report.json"
    with staged_protection(path, plan, report_path) as pending:
        pending.commit()
    artifact = file_artifact("plan", path, report_path)
    report = PrivacyReport(step="secrets-plan", created="", versions={}, outputs=(artifact,))
    report_path.write_text("{}")
    return [(v.outcome, v.reason) for v in verify(report_path, report).integrity if v.subject == path.name]


@pytest.fixture(scope="module", autouse=True)
def _remembered() -> Iterator[None]:
    """Most changes leave the laws of most secrets as they were."""
    with remembered.bounds():
        yield


def test_a_genuine_plan_is_proved(tmp_path: Path) -> None:
    assert (Outcome.PROVED, "the nats of 3 of 3 secrets are within their budgets, computed again") in verdicts(
        genuine(), tmp_path
    )


@functools.cache
def by_curve() -> Protection:
    """The same records and targets; the noise, and every posterior, by the trade-off curve."""
    plan = genuine()
    chances, steps = plan.probabilities, plan.facts.steps
    book = SecretMemberships(
        starts=plan.starts, records=plan.records, probabilities=chances, priors=plan.priors, steps=steps
    )
    memberships = (plan.starts, plan.records, chances)
    found = least_noise_by_curve(
        book, plan.posteriors, plan.budgets, lambda sigma: informations(*memberships, sigma, steps)
    )
    facts = replace(
        plan.facts,
        noise_multiplier=found.noise_multiplier,
        calibration=ProtectionCalibration.CURVE,
        fano_noise_multiplier=found.fano_noise,
    )
    assert found.noise_multiplier < 0.8 * plan.facts.noise_multiplier
    return replace(
        plan,
        facts=facts,
        information=found.informations,
        posterior_bounds=np.array([posterior(n, 0.01) for n in found.informations]),
        curve_bounds=found.curve_bounds,
    )


def test_a_genuine_plan_by_the_curve_is_proved(tmp_path: Path) -> None:
    found = verdicts(by_curve(), tmp_path)
    assert (Outcome.PROVED, "the nats of 3 of 3 secrets are as the plan says, computed again") in found
    assert any(o is Outcome.PROVED and "no guess of 3 of 3 secrets is better than the plan says" in r for o, r in found)
    assert all(outcome is Outcome.PROVED for outcome, _ in found)


def lied(plan: Protection, **facts: Any) -> Protection:
    """``plan`` with other facts and the nats that belong to them: only its curve is wrong."""
    plan = replace(plan, facts=replace(plan.facts, **facts))
    noise, steps = plan.facts.noise_multiplier, plan.facts.steps
    nats = informations(plan.starts, plan.records, plan.probabilities, noise, steps)
    return replace(plan, information=nats, posterior_bounds=np.array([posterior(n, 0.01) for n in nats]))


def without_a_record(plan: Protection) -> Protection:
    """Bounds of every secret as if one of its records did not hold it, where it has several."""
    held = [plan.records[a:b] for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True)]
    fewer = [tuple(plan.probabilities[r[1:] if len(r) > 1 else r]) for r in held]
    noise, steps = plan.facts.noise_multiplier, plan.facts.steps
    events = [SecretMixture(probabilities=law, noise_multiplier=noise, steps=steps) for law in fewer]
    return replace(plan, curve_bounds=np.array([curve_posterior(event, 0.01) for event in events]))


def wrong_way_round(plan: Protection) -> Protection:
    """The best test in the other order: the run without the secret as the one to be told."""
    found = []
    for j in range(3):
        law = tuple(plan.of_secret(j).tolist())
        noise, steps = plan.facts.noise_multiplier, plan.facts.steps
        event = SecretMixture(probabilities=law, noise_multiplier=noise, steps=steps)
        (other,) = ledger.composed(Ledger(events=(event,)), None, order=1)
        found.append(risk.PiecewiseTradeOff(*other.profile()).true_positive_rate(0.01))
    return replace(plan, curve_bounds=np.array(found))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: lied(p, noise_multiplier=p.facts.noise_multiplier / 2), "a test of whether its records were used"),
        (lambda p: lied(p, noise_multiplier=p.facts.noise_multiplier * 0.998), "a test of whether its records"),
        (lambda p: lied(p, steps=p.facts.steps + 2), "a test of whether its records were used"),
        (without_a_record, "a test of whether its records were used"),
        (wrong_way_round, "a test of whether its records were used"),
        (lambda p: replace(p, curve_bounds=p.curve_bounds * 0.999), "a test of whether its records were used"),
        (lambda p: replace(p, curve_bounds=p.curve_bounds * 1.1), "more than the 0.2 that it is allowed"),
        (lambda p: replace(p, curve_bounds=p.curve_bounds * np.nan), "more than the 0.2 that it is allowed"),
        (lambda p: replace(p, information=p.information * 0.9), "nats are given away, and the plan says"),
        (lambda p: replace(p, priors=p.priors / 2), "its prior and posterior allow"),
        (lambda p: replace(p, facts=replace(p.facts, calibration=ProtectionCalibration.FANO)), "more than its budget"),
        (lambda p: replace(p, curve_bounds=p.curve_bounds[:-1]), "do not fit together"),
    ],
)
def test_an_edited_plan_by_the_curve_is_refuted(
    change: Callable[[Protection], Protection], says: str, tmp_path: Path
) -> None:
    found = verdicts(change(by_curve()), tmp_path)
    assert any(outcome is Outcome.REFUTED and says in reason for outcome, reason in found), found


@pytest.mark.parametrize(("probabilities", "sigma", "success"), GUESSES)
def test_one_step_s_best_test_lies_between_both_sides(probabilities: list[float], sigma: float, success: float) -> None:
    """One step, two values alike: known to mpmath. What is told decides how sharply it is looked at."""
    for stated in (success * (1 - 1e-4), success * (1 + 2e-4)):
        found = largest_success(np.array(probabilities), sigma, 1, 0.5, stated)
        assert found.lower - 1e-10 <= success <= found.upper + 1e-10
        assert (found.upper <= stated * (1 + 1e-4)) is (stated > success)


@pytest.mark.parametrize(("steps", "prior"), few([(1, 0.05), (10, 0.02)], 0))
def test_the_best_test_among_samples_lies_between_both_sides(steps: int, prior: float) -> None:
    """Likelihood ratios of sampled runs, and the share of them beyond what a run without the secret exceeds."""
    random, rates, sigma, runs = np.random.default_rng(steps), np.array([0.3, 0.2]), 0.8, 200_000
    weights = np.array([0.56, 0.38, 0.06])
    found = largest_success(rates, sigma, steps, prior, 1.0)

    def ratios(*, used: bool) -> NDArray[np.float64]:
        noisy = random.normal(0, sigma, (runs, steps))
        noisy += random.choice(3, (runs, steps), p=weights) if used else 0
        k = np.arange(3.0)[:, None, None]
        each = np.tensordot(weights, np.exp((k * noisy - k * k / 2) / sigma**2), 1)
        return np.asarray(np.log(each).sum(axis=1))

    threshold = np.quantile(ratios(used=False), 1 - prior)
    power = float((ratios(used=True) > threshold).mean())
    # Four deviations of the share, and of the threshold through the curve's slope, here below 12.
    slack = 4 * np.sqrt(power * (1 - power) / runs) + 4 * 12 * np.sqrt(prior / runs)
    assert found.lower - slack <= power <= found.upper + slack
    fewer = largest_success(rates, 2 * sigma, steps, prior, 1.0)
    assert power > fewer.upper + slack, "at twice the noise no test would do as well"


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
