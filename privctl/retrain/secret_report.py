"""What a run that followed a plan of protection may say of the secrets in its data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.accounting import ledger, risk
from privctl.accounting.guarantees import assumptions_of, finite
from privctl.accounting.secrets import posterior
from privctl.codec import shown
from privctl.domain.events import Ledger, SecretMixture
from privctl.domain.guarantee import (
    Adjacency,
    Assumption,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    Risk,
    RiskMeasure,
    status_of,
)
from privctl.retrain.secret_check import CLOSE, CheckedSecrets, shares
from privctl.retrain.secret_plan import SecretPlan
from privctl.secrets.protection import Form, Protection
from privctl.training.recipe import Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEEP_THE_PLAN = (
    "the plan of protection tells which records hold secrets and how they are called; keep it to yourself like the data"
)

_ACCOUNTANTS = {
    Form.REFERENCE: "KL divergence from the secret's absence, exact integral; Fano's inequality",
    Form.PAIRWISE: "KL divergence between two values with opposite contributions, exact integral; Fano's inequality",
}
_ADJACENCY = {Form.REFERENCE: Adjacency.ZERO_OUT, Form.PAIRWISE: Adjacency.REPLACE_ONE}


def secret_guarantee(
    plan: SecretPlan, recipe: Recipe, spent: int, found: CheckedSecrets, premises: Sequence[Assumption]
) -> Guarantee:
    """What ``spent`` steps leave of the plan's secrets; its numbers are those of the one nearest to its bound.

    ``premises`` are what any guarantee of these weights rests on.
    """
    held = plan.protection
    nats = found.spent(spent)
    parts = shares(nats, held.budgets)
    nearest = int(np.argmax(parts))
    within = int((parts <= 1 + CLOSE).sum())
    lost = float(nats[nearest])
    assumptions = (*_enforced(held, recipe), *premises, *_of_secrets(held), _numbers(found))
    curve = _curve_bound(held, nearest, recipe.noise_multiplier, spent)
    return Guarantee(
        name="secret protection",
        epsilon=finite(lost),
        delta=0.0,
        notion=Notion.SECRET_PROTECTION,
        unit=PrivacyUnit.SECRET,
        adjacency=_ADJACENCY[held.facts.form],
        accountant=_ACCOUNTANTS[held.facts.form],
        status=status_of(assumptions),
        noise_multiplier=recipe.noise_multiplier,
        assumptions=assumptions,
        note=f"{_overall(len(parts), within)}; nearest to its bound is {shown(held.ids[nearest])}: it gave away at "
        f"most {lost:.6g} of the {held.budgets[nearest]:.6g} nats that a posterior of {held.posteriors[nearest]:.6g} "
        f"allows{curve}",
        risks=tuple(_risks(nats, held.priors, nearest)),
    )


def secret_parameters(plan: SecretPlan, found: CheckedSecrets, expected_epochs: float) -> dict[str, Any]:
    """What the report says of the plan that was followed."""
    held = plan.protection
    return {
        "secrets": plan.path.name,
        "plan": {
            "digest": plan.digest,
            "book": held.facts.secrets,
            "secrets": len(held.ids),
            "secrets_checked": int(found.checked.sum()),
            "form": held.facts.form.value,
            "cap": held.facts.cap,
            "kept_fraction": kept_fraction(held),
            "records_never_drawn": int((held.probabilities == 0).sum()),
            "largest_probability": held.largest_probability,
            "expected_epochs": expected_epochs,
            "steps": held.facts.steps,
            "batch_size": held.facts.batch_size,
            "noise_multiplier": held.facts.noise_multiplier,
        },
    }


def kept_fraction(plan: Protection) -> float:
    """The sum of the records' weights by their number: how much of the data is learned from."""
    return math.fsum(plan.weights) / plan.facts.examples


def plan_premise(plan: Protection) -> Assumption:
    """What the guarantee for one record takes as known."""
    unused = int((plan.probabilities == 0).sum())
    never = f"; {unused} of {plan.facts.examples} records are not used at all" if unused else ""
    return Assumption(
        name="plan",
        statement="the plan is public and the same with and without the record: neighbours are compared at the same "
        "probabilities of the other records, number of steps and noise, though these were computed from all records; "
        f"the record itself is drawn with probability {plan.largest_probability:.6g} at most, and less tells less"
        + never,
        state=AssumptionState.ASSERTED,
    )


def _enforced(plan: Protection, recipe: Recipe) -> Iterator[Assumption]:
    """Contribution, sampling and noise, which the training sees to."""
    rates = (float(plan.probabilities.min()), plan.largest_probability)
    event = SecretMixture(probabilities=rates, noise_multiplier=recipe.noise_multiplier)
    for found in assumptions_of(Ledger(events=(event,)), AssumptionState.ENFORCED):
        stated = "every example enters each batch independently, with the probability that the plan gives it"
        yield replace(found, statement=stated) if found.name != "contribution" else found
    yield Assumption(
        name="noise",
        statement=f"every step has Gaussian noise of {recipe.noise_multiplier:.6g} clip norms on its sum, no less than "
        f"the {plan.facts.noise_multiplier:.6g} that the plan found sufficient",
        state=AssumptionState.ENFORCED,
    )


def _of_secrets(plan: Protection) -> Iterator[Assumption]:
    """What nothing here can see to."""
    yield Assumption(
        name="book of secrets",
        statement="each secret lies in the records that the book names and in no others: where the scan missed one, it "
        "is not protected",
        state=AssumptionState.ASSERTED,
    )
    yield Assumption(
        name="priors",
        statement="whoever attacks knows all other records at most, and then gives no value of a secret more than its "
        "prior; a secret's value decides about nothing but what stands in its records",
        state=AssumptionState.ASSERTED,
    )
    if plan.facts.form is Form.REFERENCE:
        yield Assumption(
            name="reference form",
            statement="the run is compared with one to which the secret's records contribute nothing, which bounds "
            "guessing among any values",
            state=AssumptionState.ENFORCED,
        )
    else:
        yield Assumption(
            name="pairwise form",
            statement="no two values of a secret are told apart better than two with opposite contributions, as all "
            "cases tried show and no proof does",
            state=AssumptionState.ASSERTED,
        )


def _numbers(found: CheckedSecrets) -> Assumption:
    count, checked = len(found.checked), int(found.checked.sum())
    if checked == count:
        said, state = f"what a step gives away was computed again for all {count} secrets", AssumptionState.CHECKED
    else:
        said = (
            f"the plan's numbers are right for {count - checked} of its {count} secrets; for the {checked} that seemed "
            "nearest to their bounds they were computed again"
        )
        state = AssumptionState.ASSERTED
    return Assumption(name="plan's numbers", statement=said, state=state)


def _overall(secrets: int, within: int) -> str:
    if within < secrets:
        return f"only {within} of {secrets} secrets stay within their posteriors: more steps were begun than planned"
    if secrets == 1:
        return "the one secret stays within its posterior"
    return f"every one of {secrets} secrets stays within its posterior"


def _risks(nats: NDArray[np.float64], priors: NDArray[np.float64], nearest: int) -> Iterator[Risk]:
    """The posterior of the secret nearest to its bound; then the largest of all, where another secret has it."""

    def risk_of(secret: int) -> Risk:
        prior = float(priors[secret])
        return Risk(measure=RiskMeasure.POSTERIOR, bound=_posterior(float(nats[secret]), prior), at=prior)

    first = risk_of(nearest)
    yield first
    # A posterior rises with nats and prior: only a secret with more nats than all of larger priors can have the most.
    order = np.lexsort((-nats, -priors))
    before = np.maximum.accumulate(np.concatenate([[-1.0], nats[order][:-1]]))
    most = max((risk_of(int(j)) for j in order[nats[order] > before]), key=lambda found: found.bound)
    if most.bound > first.bound:
        yield most


def _posterior(nats: float, prior: float) -> float:
    return min(1.0, posterior(nats, prior)) if math.isfinite(nats) else 1.0


def _curve_bound(plan: Protection, secret: int, noise: float, spent: int) -> str:
    """What the whole trade-off curve says of the posterior, in the one order that the reference form needs."""
    rates = plan.of_secret(secret)
    drawn = tuple(rates[rates > 0].tolist())
    if plan.facts.form is not Form.REFERENCE or not drawn:
        return ""
    whole = Ledger(events=(SecretMixture(probabilities=drawn, noise_multiplier=noise, steps=spent),))
    curve = risk.Lines(*ledger.composed(whole, None, order=0)[0].profile())
    bound = curve.true_positive_rate(float(plan.priors[secret]))
    return f", and the whole trade-off curve leaves a posterior of {bound:.6g} at most"
