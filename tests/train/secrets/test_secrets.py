"""What a run takes from a plan of protection, what it finds wrong with one, and what it may say afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.secrets.fano import binary_kl
from privctl.domain.errors import CommandError, InputError
from privctl.domain.events import SampledGaussian
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Notion, PrivacyUnit, Status
from privctl.secrets.protection import Form, Protection, ProtectionCalibration
from privctl.show.progress import progress
from privctl.train.methods import method_named
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.ledgers import ledger_of
from privctl.train.secrets.guarantees import plan_premise, secret_guarantees
from privctl.train.secrets.posteriors import CheckedSecrets, check_secrets
from privctl.train.secrets.read_plan import SecretPlan
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest, SecretsRequest
from tests.few import few
from tests.train.preparation.planned import planned

ASSERTED = AssumptionState.ASSERTED


def read(plan: Protection) -> SecretPlan:
    return SecretPlan(path=Path("plan.safetensors"), digest="blake3:22", protection=plan, report=None)


def checked(plan: Protection, noise: float | None = None) -> CheckedSecrets:
    def quiet(label: str, total: float, unit: str) -> Any:
        return progress(label, total, unit, quiet=True)

    return check_secrets(read(plan), plan.facts.noise_multiplier if noise is None else noise, quiet)


def asked(
    plan: Protection, batch_size: int | None = None, budget: BudgetRequest | None = None, **more: Any
) -> TrainingSettings:
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        model=ModelRequest(path=Path("model")),
        data=DataRequest(train=Path("data")),
        output=Path("output"),
        secrets=SecretsRequest(plan=Path("plan"), batch_size=batch_size),
        budget=budget or BudgetRequest(),
        **more,
    )
    recipe, delta = recipe_for(request, plan.facts.examples, plan)
    assert delta is not None
    return recipe


#: (probabilities, steps, prior, posterior, noise multiplier), by an accountant of another make
#: (docs/papers.md#least-noise-by-fano).
CALIBRATED = [
    ((0.01,), 1000, 0.001, 0.1, 0.6643833650),
    ((0.001,) * 50, 2000, 0.001, 0.1, 2.7027260282),
    ((0.001,) * 75, 2000, 0.001, 0.5, 1.5783170245),
    ((0.005,) * 10, 500, 0.01, 0.2, 1.3779436045),
]


@pytest.mark.parametrize(("rates", "steps", "prior", "posterior", "noise"), CALIBRATED)
def test_a_calibrated_plan_spends_what_its_posterior_allows(
    rates: tuple[float, ...], steps: int, prior: float, posterior: float, noise: float
) -> None:
    plan = planned(rates, [range(len(rates))], steps=steps, prior=prior, posterior=posterior)
    assert plan.facts.noise_multiplier == pytest.approx(noise, rel=1e-9)
    found = checked(plan)
    assert found.spent(steps)[0] == pytest.approx(plan.budgets[0], rel=1e-9)
    guarantee = last_guarantee(plan, found, steps)
    assert guarantee.risks[0].bound == pytest.approx(posterior, rel=1e-8)
    assert guarantee.risks[0].at == prior


def test_the_whole_curve_is_said_beside_the_posterior() -> None:
    rates = (0.005,) * 10
    plan = planned(rates, [range(10)], steps=500, prior=0.01, posterior=0.2)
    by_fano, by_curve = rows(plan, checked(plan), 500)
    assert by_fano.name == "secret protection, mutual information"
    assert by_curve.name == "secret protection, trade-off curve"
    assert by_fano.risks[0].bound == pytest.approx(0.2)
    assert 0.0848 < by_curve.risks[0].bound < 0.0852  # 0.0851 by a coarse grid elsewhere
    assert "every" not in by_fano.note
    assert "the one secret stays within its posterior" in by_fano.note


#: (probabilities, steps, prior, posterior, noise multiplier by Fano, least noise multiplier by the curve).
SHARPER = [
    ((0.001,) * 50, 2000, 0.001, 0.1, 2.7027260282, 1.4204),
    ((0.005,) * 10, 500, 0.01, 0.2, 1.3779436045, 0.9956),
]


@pytest.mark.parametrize(("rates", "steps", "prior", "posterior", "fano", "noise"), few(SHARPER, 1))
def test_a_plan_by_the_curve_is_followed(
    rates: tuple[float, ...], steps: int, prior: float, posterior: float, fano: float, noise: float
) -> None:
    """Its nats are beyond the budget; the curve keeps the posterior, and the report says both."""
    plan = by_curve_with(1.0005 * noise, rates, steps, prior, posterior)
    found = checked(plan)
    assert found.spent(steps)[0] > 1.3 * plan.budgets[0]
    by_curve, by_fano = rows(plan, found, steps)
    assert by_curve.name.endswith("trade-off curve")
    assert 0.99 * posterior < by_curve.risks[0].bound <= posterior
    assert by_fano.risks[0].bound > 1.3 * posterior
    assert "the one secret stays within its posterior" in by_curve.note
    assert by_curve.epsilon == by_fano.epsilon == pytest.approx(found.spent(steps)[0])
    # More noise, and fewer steps, are seen by the curve too.
    assert rows(plan, checked(plan, fano), steps, fano)[0].risks[0].bound < posterior / 2
    assert rows(plan, found, steps // 2)[0].risks[0].bound < 0.8 * posterior
    assert "only 0 of 1 secret stay" in rows(plan, found, steps + steps // 50)[0].note


@pytest.mark.parametrize(("rates", "steps", "prior", "posterior", "fano", "noise"), SHARPER)
def test_a_plan_by_the_curve_with_too_little_noise_is_refused(
    rates: tuple[float, ...], steps: int, prior: float, posterior: float, fano: float, noise: float
) -> None:
    with pytest.raises(InputError, match="and its noise leaves"):
        checked(by_curve_with(0.998 * noise, rates, steps, prior, posterior))


def by_curve_with(noise: float, rates: tuple[float, ...], steps: int, prior: float, posterior: float) -> Protection:
    plan = planned(rates, [range(len(rates))], steps=steps, prior=prior, posterior=posterior, noise=noise)
    return replace(plan, facts=replace(plan.facts, calibration=ProtectionCalibration.CURVE))


@pytest.mark.parametrize(("form", "nats"), [(Form.REFERENCE, 0.2330207931), (Form.PAIRWISE, 0.286787688266)])
def test_both_forms_are_computed_as_they_are_named(form: Form, nats: float) -> None:
    plan = planned((0.001,) * 75, [range(75)], steps=1, noise=0.3, form=form)
    assert checked(plan).per_step == pytest.approx(nats, rel=1e-9)
    guarantee = last_guarantee(plan, checked(plan), 1)
    assert guarantee.epsilon == pytest.approx(nats, rel=1e-9)
    assert guarantee.adjacency is (Adjacency.ZERO_OUT if form is Form.REFERENCE else Adjacency.REPLACE_ONE)
    # No proof covers the worst pair of values, so the pairwise form rests on one thing more.
    states = {a.name: a.state for a in guarantee.assumptions}
    assert states.get("pairwise form") is (None if form is Form.REFERENCE else ASSERTED)


RATES = (0.5, 0.5, 0.25, 0.25, 0.0)
SECRETS: tuple[Sequence[int], ...] = ((0, 1), (2,), (4,), (), (2, 3, 4))


def rows(plan: Protection, found: CheckedSecrets, spent: int, noise: float | None = None) -> list[Any]:
    multiplier = plan.facts.noise_multiplier if noise is None else noise
    recipe = replace(asked(plan), noise_multiplier=multiplier)
    return list(secret_guarantees(read(plan), recipe, spent, found, ()))


def last_guarantee(plan: Protection, found: CheckedSecrets, spent: int, noise: float | None = None) -> Any:
    multiplier = plan.facts.noise_multiplier if noise is None else noise
    recipe = replace(asked(plan), noise_multiplier=multiplier)
    premise = Assumption(name="starting weights", statement="random", state=AssumptionState.ENFORCED)
    return next(secret_guarantees(read(plan), recipe, spent, found, (premise,)))


def test_the_guarantee_says_what_it_rests_on() -> None:
    plan = planned(RATES, SECRETS)
    guarantee = last_guarantee(plan, checked(plan), 10)
    assert (guarantee.notion, guarantee.unit) == (Notion.SECRET_PROTECTION, PrivacyUnit.SECRET)
    assert (guarantee.status, guarantee.delta) == (Status.CONDITIONAL, 0)
    assert "every one of 5 secrets stays within its posterior; nearest to its bound is 'word-0'" in guarantee.note
    states = {a.name: a.state for a in guarantee.assumptions}
    assert [name for name, state in states.items() if state is ASSERTED] == ["book of secrets", "priors"]
    assert states["plan's numbers"] is AssumptionState.CHECKED
    assert {"contribution", "poisson batches", "noise", "starting weights", "reference form"} <= states.keys()


def test_fewer_steps_and_more_noise_give_less_away() -> None:
    plan = planned(RATES, SECRETS)
    whole, noise = last_guarantee(plan, checked(plan), 10), plan.facts.noise_multiplier
    half = last_guarantee(plan, checked(plan), 5)
    assert half.epsilon == pytest.approx(whole.epsilon / 2)
    assert half.risks[0].bound < whole.risks[0].bound
    quiet = last_guarantee(plan, checked(plan, 2 * noise), 10, 2 * noise)
    assert quiet.epsilon < whole.epsilon / 3
    assert quiet.noise_multiplier == 2 * noise


def test_more_steps_than_planned_are_not_hidden() -> None:
    """Whoever edits the count of a run that was cut off does not get the plan's promise."""
    plan = planned(RATES, SECRETS)
    guarantee = last_guarantee(plan, checked(plan), 11)
    assert "only 4 of 5 secrets stay within their posteriors" in guarantee.note
    assert guarantee.epsilon == pytest.approx(1.1 * plan.budgets[0])
    assert guarantee.risks[0].bound > 0.2


def test_a_plan_decides_on_steps_batches_and_noise() -> None:
    plan = planned(RATES, SECRETS)
    recipe = asked(plan)
    assert (recipe.steps, recipe.batch_size, recipe.sample_rate) == (10, 1.5, 0.3)
    assert recipe.noise_multiplier == plan.facts.noise_multiplier
    assert asked(plan, steps=10) == asked(plan, epochs=3) == recipe
    whole = planned((0.5,) * 4, [(0,)])
    assert asked(whole, batch_size=2) == asked(whole)
    (event,) = ledger_of(recipe, 7, plan).events
    assert isinstance(event, SampledGaussian)
    assert (event.sample_rate, event.steps) == (0.5, 7)


def test_more_noise_may_be_asked_for() -> None:
    plan = planned(RATES, SECRETS)
    least = plan.facts.noise_multiplier
    assert asked(plan, budget=BudgetRequest(noise_multiplier=least)).noise_multiplier == least
    assert asked(plan, budget=BudgetRequest(noise_multiplier=2 * least)).noise_multiplier == 2 * least
    own = epsilon_bound(ledger_of(asked(plan), 10, plan), 1e-5)
    for epsilon, more in ((2 * own, False), (own, False), (own / 2, True)):
        recipe = asked(plan, budget=BudgetRequest(epsilon=epsilon, delta=1e-5))
        assert (recipe.noise_multiplier > least) == more
        assert epsilon_bound(ledger_of(recipe, 10, plan), 1e-5) <= epsilon
    # Records are drawn as often as the largest probability says, not as often as their mean.
    assert epsilon_bound(ledger_of(recipe, 10), 1e-5) < 0.9 * epsilon


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"steps": 11}, "--steps asks for 11 steps, but the plan of --secrets is for 10"),
        ({"epochs": 1}, "--epochs asks for 4 steps"),
        ({"epochs": 3, "steps": 10}, "--steps and --epochs both set the length"),
        ({"batch_size": 64}, "--batch-size is 64, but the plan of --secrets is for 1.5"),
        ({"budget": BudgetRequest(noise_multiplier=1e-3)}, "--noise-multiplier is 0.001, and the plan's secrets need"),
        ({"budget": BudgetRequest(noise_multiplier=9, epsilon=1)}, "--epsilon and --noise-multiplier both"),
        ({"budget": BudgetRequest(epsilon=-1)}, "--epsilon is -1"),
    ],
)
def test_settings_that_contradict_the_plan(more: dict[str, Any], words: str) -> None:
    plan = planned(RATES, SECRETS)
    with pytest.raises(CommandError) as fault:
        asked(plan, **more)
    assert words in str(fault.value)


def test_the_least_noise_is_named_so_that_it_can_be_given() -> None:
    plan = planned(RATES, SECRETS)
    with pytest.raises(CommandError) as fault:
        asked(plan, budget=BudgetRequest(noise_multiplier=0.1))
    least = float(str(fault.value).split("at least ")[1].split(";")[0])
    assert asked(plan, budget=BudgetRequest(noise_multiplier=least)).noise_multiplier == plan.facts.noise_multiplier


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"information": np.array([0.1, 0.01, 0, 0, 0.01])}, "it says that its run gives away 0.1 nats"),
        ({"budgets": np.full(5, 1e-3)}, "which may lose 0.001"),
        ({"budgets": np.full(5, 2.0)}, "it gives the secret 'word-0' 2 nats where its posterior allows"),
        ({"priors": np.full(5, 0.3)}, "a posterior of 0.2 at a prior of 0.3"),
        ({"priors": np.zeros(5)}, "a prior of 0"),
        ({"probabilities": np.array([0.5, 0.75, 0.25, 0.25, 0.0])}, "of the secret 'word-0', and that is"),
        ({"probabilities": np.array([0.5, 0.5, 0.25, 0.25, 0.5])}, "of the secret 'word-2', and that is"),
        ({"records": np.array([0, 1, 2, 4, 2, 3, 0])}, "of the secret 'word-4', and that is"),
    ],
)
def test_a_plan_whose_numbers_are_not_so_is_refused(changes: dict[str, Any], words: str) -> None:
    good = planned(RATES, SECRETS)
    checked(good)
    with pytest.raises(InputError) as fault:
        checked(replace(good, **changes))
    assert words in str(fault.value)
    assert "plan again" in str(fault.value)


def test_a_plan_for_less_noise_or_more_steps_than_it_was_made_with_is_refused() -> None:
    good = planned(RATES, SECRETS)
    for change in ({"noise_multiplier": good.facts.noise_multiplier * 0.99}, {"steps": 11}):
        with pytest.raises(InputError, match="contradicts itself"):
            checked(replace(good, facts=replace(good.facts, **change)))


def test_the_record_s_guarantee_takes_the_plan_as_known() -> None:
    premise = plan_premise(planned(RATES, SECRETS))
    assert premise.state is ASSERTED
    assert "probability 0.5 at most" in premise.statement
    assert "1 of 5 records are not used at all" in premise.statement


def test_the_largest_posterior_is_said_where_another_secret_has_it() -> None:
    """One secret of a large prior may be told far better than the one that is nearest to its bound."""
    plan = planned((0.05, 0.05, 0.05), [(0, 1), (2,)], prior=0.001, posterior=0.1)
    priors, posteriors = np.array([0.001, 0.4]), np.array([0.1, 0.99])
    budgets = np.array([binary_kl(p, r) for p, r in zip(posteriors, priors, strict=True)])
    plan = replace(plan, priors=priors, posteriors=posteriors, budgets=budgets)
    nearest, largest = last_guarantee(plan, checked(plan), 10).risks
    assert nearest.at == 0.001
    assert largest.at == 0.4
    assert largest.bound > 0.4 > nearest.bound
