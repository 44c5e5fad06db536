"""The guarantees for the secrets in the data of a run that followed a plan of protection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.accounting.guarantees import assumptions_of, finite
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
from privctl.domain.shown import counted
from privctl.secrets.protection import Form, Protection, ProtectionCalibration
from privctl.storage.json_text import shown
from privctl.train.secrets.posteriors import CLOSE, CheckedSecrets, Posteriors, posteriors_of, shares
from privctl.train.secrets.read_plan import SecretPlan
from privctl.train.settings.recipe import TrainingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEEP_THE_PLAN = (
    "the plan of protection tells which records hold secrets and how they are called; keep it to yourself like the data"
)

_ACCOUNTANTS = {
    Form.REFERENCE: "KL divergence from the secret's absence, exact integral; Fano's inequality",
    Form.PAIRWISE: "KL divergence between two values with opposite contributions, exact integral; Fano's inequality",
}
_CURVE = "trade-off curve of the privacy loss distribution, from the secret's absence"
_ADJACENCY = {Form.REFERENCE: Adjacency.ZERO_OUT, Form.PAIRWISE: Adjacency.REPLACE_ONE}


def secret_guarantees(
    plan: SecretPlan, recipe: TrainingSettings, spent: int, checked: CheckedSecrets, premises: Sequence[Assumption]
) -> Iterator[Guarantee]:
    """The guarantees of ``spent`` steps for the plan's secrets, with the numbers of the secret closest to its limit.

    The bound by which the plan's noise was calibrated comes first; in the reference form, the other bound follows.
    ``premises`` are the assumptions that all guarantees of these weights share.
    """
    protection = plan.protection
    nats = checked.spent(spent)
    bounds = posteriors_of(protection, checked, recipe.noise_multiplier, spent)
    assumptions = (
        *_enforced_assumptions(protection, recipe),
        *premises,
        *_secret_assumptions(protection),
        _numbers(len(protection.ids)),
    )
    by_curve = protection.facts.calibration is ProtectionCalibration.CURVE

    def row(*, curve: bool) -> Guarantee:
        spent_shares = bounds.sharper / protection.posteriors if curve else shares(nats, protection.budgets)
        nearest = int(np.argmax(spent_shares))
        # Only the bound that the noise was calibrated by states how many secrets stay within theirs.
        within = int((spent_shares <= 1 + CLOSE).sum())
        overall = f"{_overall_text(len(spent_shares), within)}; " if curve == by_curve else ""
        return Guarantee(
            name="secret protection, trade-off curve" if curve else "secret protection, mutual information",
            epsilon=finite(float(nats[nearest])),
            delta=0.0,
            notion=Notion.SECRET_PROTECTION,
            unit=PrivacyUnit.SECRET,
            adjacency=_ADJACENCY[protection.facts.form],
            accountant=_CURVE if curve else _ACCOUNTANTS[protection.facts.form],
            status=status_of(assumptions),
            noise_multiplier=recipe.noise_multiplier,
            assumptions=assumptions,
            note=f"{overall}nearest to its bound is {shown(protection.ids[nearest])}: "
            f"{_bound_note(protection, bounds, nats, nearest, curve=curve)}",
            risks=tuple(_risks(bounds, protection.priors, nearest, curve=curve)),
        )

    rows = [row(curve=False)]
    if protection.facts.form is Form.REFERENCE:
        rows.append(row(curve=True))
    yield from reversed(rows) if by_curve else rows


def secret_parameters(plan: SecretPlan, checked: CheckedSecrets, expected_epochs: float) -> dict[str, Any]:
    """The report's parameters of the plan."""
    protection = plan.protection
    return {
        "secrets": plan.path.name,
        "plan": {
            "digest": plan.digest,
            "book": protection.facts.secrets,
            "secrets": len(protection.ids),
            "secrets_checked": len(checked.per_step),
            "form": protection.facts.form.value,
            "calibration": protection.facts.calibration.value,
            "cap": protection.facts.cap,
            "kept_fraction": kept_fraction(protection),
            "records_never_drawn": int((protection.probabilities == 0).sum()),
            "largest_probability": protection.largest_probability,
            "expected_epochs": expected_epochs,
            "steps": protection.facts.steps,
            "batch_size": protection.facts.batch_size,
            "noise_multiplier": protection.facts.noise_multiplier,
        },
    }


def kept_fraction(plan: Protection) -> float:
    """The mean of the records' weights: the fraction of the data that is learned from."""
    return math.fsum(plan.weights) / plan.facts.examples


def plan_premise(plan: Protection) -> Assumption:
    """The assumption of the guarantee for one record that the plan is public."""
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


def _enforced_assumptions(plan: Protection, recipe: TrainingSettings) -> Iterator[Assumption]:
    """The assumptions on contribution, sampling and noise, which the training enforces."""
    rates = (float(plan.probabilities.min()), plan.largest_probability)
    event = SecretMixture(probabilities=rates, noise_multiplier=recipe.noise_multiplier)
    for assumption in assumptions_of(Ledger(events=(event,)), AssumptionState.ENFORCED):
        stated = "every example enters each batch independently, with the probability that the plan gives it"
        yield replace(assumption, statement=stated) if assumption.name != "contribution" else assumption
    yield Assumption(
        name="noise",
        statement=f"every step has Gaussian noise of {recipe.noise_multiplier:.6g} clip norms on its sum, no less than "
        f"the {plan.facts.noise_multiplier:.6g} that the plan found sufficient",
        state=AssumptionState.ENFORCED,
    )


def _secret_assumptions(plan: Protection) -> Iterator[Assumption]:
    """The assumptions on the secrets, most of which the training cannot check."""
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


def _numbers(secrets: int) -> Assumption:
    return Assumption(
        name="plan's numbers",
        statement=f"what the run gives away was computed again for all {secrets} secrets",
        state=AssumptionState.CHECKED,
    )


def _overall_text(secrets: int, within: int) -> str:
    if within < secrets:
        stay = "stays within its posterior" if within == 1 else "stay within their posteriors"
        return f"only {within} of {counted(secrets, 'secret')} {stay}: more steps were begun than planned"
    if secrets == 1:
        return "the one secret stays within its posterior"
    return f"every one of {secrets} secrets stays within its posterior"


def _bound_note(plan: Protection, bounds: Posteriors, nats: NDArray[np.float64], j: int, *, curve: bool) -> str:
    """A sentence with the bound on secret ``j``."""
    allowed = f"a posterior of {plan.posteriors[j]:.6g}"
    if curve:
        return f"no guess is right with more than {bounds.curve[j]:.6g}, by the whole trade-off curve, of {allowed}"
    lost = f"it gave away at most {nats[j]:.6g} nats, where {plan.budgets[j]:.6g} keep {allowed}"
    if plan.facts.calibration is ProtectionCalibration.FANO:
        return lost
    return f"{lost} by Fano's inequality; the noise was chosen by the trade-off curve, which is sharper"


def _risks(bounds: Posteriors, priors: NDArray[np.float64], nearest: int, *, curve: bool) -> Iterator[Risk]:
    """The posterior of the secret nearest to its bound; then the largest of all, if another secret has it."""
    nearest_posterior = float((bounds.curve if curve else bounds.fano)[nearest])
    bounds_used = bounds.sharper if curve else bounds.fano
    most = int(np.argmax(bounds_used))
    yield Risk(measure=RiskMeasure.POSTERIOR, bound=min(1.0, nearest_posterior), at=float(priors[nearest]))
    if bounds_used[most] > nearest_posterior:
        yield Risk(measure=RiskMeasure.POSTERIOR, bound=min(1.0, float(bounds_used[most])), at=float(priors[most]))
