"""Recomputes a plan's numbers: what a run reveals about each secret with the noise multiplier in use.

The plan's file may come from anyone, so reports rely on the bounds computed here for every secret: the nats that a step
reveals, and the posterior by the trade-off curve of all steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.secrets.batched import informations
from privctl.accounting.secrets.fano import binary_kl
from privctl.accounting.secrets.posterior_curves import SecretMemberships, curve_bounds, fano_bounds, sharpen
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, Progress
from privctl.secrets.protection import Form, Protection, ProtectionCalibration
from privctl.storage.json_text import shown
from privctl.train.secrets.read_plan import SecretPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Relative tolerance within which two computations agree.
CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedSecrets:
    """Upper bounds ``per_step`` [secrets], in nats, on what one step reveals of each secret at the run's noise."""

    per_step: NDArray[np.float64]

    def spent(self, steps: int) -> NDArray[np.float64]:
        """Upper bounds in nats on what ``steps`` adaptive steps reveal of each secret, by the chain rule."""
        return steps * self.per_step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posteriors:
    """Upper bounds on the posterior of every secret [secrets], by Fano's inequality and by the trade-off curve.

    ``curve`` is NaN in the pairwise form.
    """

    fano: NDArray[np.float64]
    curve: NDArray[np.float64]

    @property
    def sharper(self) -> NDArray[np.float64]:
        """The smaller of both bounds for each secret."""
        bounds: NDArray[np.float64] = np.fmin(self.fano, self.curve)
        return bounds


def check_secrets(plan: SecretPlan, noise_multiplier: float, progress: Progress) -> CheckedSecrets:
    """Check the plan and return its secrets' bounds at ``noise_multiplier``, which must be at least the plan's.

    Raises InputError if the plan gives a secret a larger budget than its posterior allows, understates what the run
    reveals of it, or lets the run exceed its posterior.
    """
    protection = plan.protection
    _check_budgets(plan)
    planned_noise, steps = protection.facts.noise_multiplier, protection.facts.steps
    with progress("checking the plan", float(len(protection.ids)), "secrets") as advance:
        information = _information(protection, planned_noise, advance)
        _check_claims(plan, information)
        if protection.facts.calibration is ProtectionCalibration.CURVE:
            _check_posteriors(
                plan, posteriors_of(protection, CheckedSecrets(per_step=information / steps), planned_noise, steps)
            )
        if noise_multiplier != planned_noise:
            information = _information(protection, noise_multiplier, lambda _: None)
    return CheckedSecrets(per_step=information / steps)


def posteriors_of(protection: Protection, checked: CheckedSecrets, noise_multiplier: float, steps: int) -> Posteriors:
    """Bounds on the posterior of every secret after ``steps`` steps at ``noise_multiplier``.

    The curve's bounds are tightest for secrets near their limit and for the one with the largest bound.
    """
    by_fano = fano_bounds(checked.spent(steps), protection.priors)
    if protection.facts.form is not Form.REFERENCE:
        return Posteriors(fano=by_fano, curve=np.full(len(by_fano), np.nan))
    memberships = SecretMemberships(
        starts=protection.starts,
        records=protection.records,
        probabilities=protection.probabilities,
        priors=protection.priors,
        steps=max(steps, 1),
    )
    chosen = protection.facts.calibration is ProtectionCalibration.CURVE
    thresholds = np.where(by_fano <= protection.posteriors, 1.0, protection.posteriors) if chosen else None
    curve = curve_bounds(memberships, noise_multiplier, thresholds)
    sharpen(memberships, noise_multiplier, curve, by_fano, protection.posteriors)
    sharpen(memberships, noise_multiplier, curve, by_fano, np.ones(len(curve)))
    return Posteriors(fano=by_fano, curve=curve)


def shares(amounts: NDArray[np.float64], budgets: NDArray[np.float64]) -> NDArray[np.float64]:
    """``amounts`` / ``budgets`` [secrets], where 0 / 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: NDArray[np.float64] = np.where(amounts == 0, 0.0, amounts / budgets)
    return ratios


def _information(protection: Protection, noise_multiplier: float, advance: Advance) -> NDArray[np.float64]:
    """Nats that all planned steps reveal of each secret, in the plan's form."""
    return informations(
        protection.starts,
        protection.records,
        protection.probabilities,
        noise_multiplier,
        protection.facts.steps,
        pairwise=protection.facts.form is Form.PAIRWISE,
        advance=advance,
    )


def _check_budgets(plan: SecretPlan) -> None:
    """Raise InputError if a secret's budget exceeds what its posterior allows, or its stated information the budget.

    The latter only applies to plans calibrated by Fano's inequality.
    """
    protection = plan.protection
    rows = zip(
        protection.ids,
        protection.priors,
        protection.posteriors,
        protection.budgets,
        protection.information,
        strict=True,
    )
    for name, prior, posterior, budget, stated in rows:
        if not 0 < prior <= posterior or prior == 1:
            raise InputError(
                f"{plan.path} allows the secret {shown(name)} a posterior of {posterior:g} at a prior of {prior:g}; "
                "expected 0 < prior <= posterior, and a prior below 1, so plan again"
            )
        allowed = binary_kl(float(posterior), float(prior))
        if budget > allowed * (1 + CLOSE):
            raise InputError(
                f"{plan.path} contradicts itself: it gives the secret {shown(name)} {budget:.6g} nats where its "
                f"posterior allows {allowed:.6g}; plan again"
            )
        if protection.facts.calibration is ProtectionCalibration.FANO and stated > budget * (1 + CLOSE):
            raise InputError(
                f"{plan.path} contradicts itself: it says that its run gives away {stated:.6g} nats of the secret "
                f"{shown(name)}, which may lose {budget:.6g}; plan again"
            )


def _check_claims(plan: SecretPlan, information: NDArray[np.float64]) -> None:
    """Raise InputError if the plan understates what its run reveals of a secret."""
    stated = plan.protection.information
    faulty = np.flatnonzero(information > stated * (1 + CLOSE))
    if len(faulty):
        j = int(faulty[0])
        raise InputError(
            f"{plan.path} contradicts itself: it says that its run gives away {stated[j]:.6g} nats of the secret "
            f"{shown(plan.protection.ids[j])}, and that is {information[j]:.6g}; plan again"
        )


def _check_posteriors(plan: SecretPlan, posteriors: Posteriors) -> None:
    """Raise InputError if a bound on a secret's posterior exceeds the allowed posterior."""
    protection = plan.protection
    faulty = np.flatnonzero(posteriors.sharper > protection.posteriors * (1 + CLOSE))
    if len(faulty):
        j = int(faulty[0])
        raise InputError(
            f"{plan.path} contradicts itself: it allows the secret {shown(protection.ids[j])} a posterior of "
            f"{protection.posteriors[j]:.6g}, and its noise leaves {posteriors.sharper[j]:.6g}; plan again"
        )
