"""Recomputes a plan's numbers: what a run reveals about each secret at the noise in use.

Anyone may have written the plan's file, so a report relies on bounds computed here for every secret: the nats that a
step reveals, and the posterior by the trade-off curve of all steps.
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
from privctl.train.secret_plan import SecretPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Relative difference of two computations that is still the same number.
CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedSecrets:
    """What one step gives away of each secret at most: ``per_step`` [secrets], nats, at the run's noise."""

    per_step: NDArray[np.float64]

    def spent(self, steps: int) -> NDArray[np.float64]:
        """Nats that ``steps`` steps gave away of each secret at most: adaptive steps add (chain rule)."""
        return steps * self.per_step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posteriors:
    """Bounds on the posterior of every secret [secrets]: by Fano's inequality, and by the curve (NaN without one)."""

    fano: NDArray[np.float64]
    curve: NDArray[np.float64]

    @property
    def sharper(self) -> NDArray[np.float64]:
        """The lower of both for each secret."""
        bounds: NDArray[np.float64] = np.fmin(self.fano, self.curve)
        return bounds


def check_secrets(plan: SecretPlan, noise_multiplier: float, progress: Progress) -> CheckedSecrets:
    """The plan's secrets at ``noise_multiplier``, which must be the plan's or more.

    Raises InputError where the plan allows a secret more than its posterior does, says less of it than it gives away,
    or lets its posterior be exceeded.
    """
    held = plan.protection
    _check_budgets(plan)
    own, steps = held.facts.noise_multiplier, held.facts.steps
    with progress("checking the plan", float(len(held.ids)), "secrets") as advance:
        found = _information(held, own, advance)
        _check_claims(plan, found)
        if held.facts.calibration is ProtectionCalibration.CURVE:
            _check_posteriors(plan, posteriors_of(held, CheckedSecrets(per_step=found / steps), own, steps))
        if noise_multiplier != own:
            found = _information(held, noise_multiplier, lambda _: None)
    return CheckedSecrets(per_step=found / steps)


def posteriors_of(held: Protection, found: CheckedSecrets, noise_multiplier: float, steps: int) -> Posteriors:
    """What ``steps`` steps at ``noise_multiplier`` leave of every secret.

    Curves are sharp for secrets near what they may have, and for the one with the largest bound of all.
    """
    by_fano = fano_bounds(found.spent(steps), held.priors)
    if held.facts.form is not Form.REFERENCE:
        return Posteriors(fano=by_fano, curve=np.full(len(by_fano), np.nan))
    book = SecretMemberships(
        starts=held.starts,
        records=held.records,
        probabilities=held.probabilities,
        priors=held.priors,
        steps=max(steps, 1),
    )
    chosen = held.facts.calibration is ProtectionCalibration.CURVE
    needed = np.where(by_fano <= held.posteriors, 1.0, held.posteriors) if chosen else None
    curve = curve_bounds(book, noise_multiplier, needed)
    sharpen(book, noise_multiplier, curve, by_fano, held.posteriors)
    sharpen(book, noise_multiplier, curve, by_fano, np.ones(len(curve)))
    return Posteriors(fano=by_fano, curve=curve)


def shares(amounts: NDArray[np.float64], budgets: NDArray[np.float64]) -> NDArray[np.float64]:
    """``amounts`` by ``budgets`` [secrets]; nothing of nothing is nothing, anything of nothing infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: NDArray[np.float64] = np.where(amounts == 0, 0.0, amounts / budgets)
    return ratios


def _information(held: Protection, noise_multiplier: float, advance: Advance) -> NDArray[np.float64]:
    """Nats that all planned steps give away of each secret, in the plan's form."""
    return informations(
        held.starts,
        held.records,
        held.probabilities,
        noise_multiplier,
        held.facts.steps,
        pairwise=held.facts.form is Form.PAIRWISE,
        advance=advance,
    )


def _check_budgets(plan: SecretPlan) -> None:
    """Every secret's budget is that of its posterior, or less; a plan by Fano's inequality says that it suffices."""
    held = plan.protection
    rows = zip(held.ids, held.priors, held.posteriors, held.budgets, held.information, strict=True)
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
        if held.facts.calibration is ProtectionCalibration.FANO and stated > budget * (1 + CLOSE):
            raise InputError(
                f"{plan.path} contradicts itself: it says that its run gives away {stated:.6g} nats of the secret "
                f"{shown(name)}, which may lose {budget:.6g}; plan again"
            )


def _check_claims(plan: SecretPlan, information: NDArray[np.float64]) -> None:
    """What the plan says is given away is no less than what is."""
    stated = plan.protection.information
    wrong = np.flatnonzero(information > stated * (1 + CLOSE))
    if len(wrong):
        j = int(wrong[0])
        raise InputError(
            f"{plan.path} contradicts itself: it says that its run gives away {stated[j]:.6g} nats of the secret "
            f"{shown(plan.protection.ids[j])}, and that is {information[j]:.6g}; plan again"
        )


def _check_posteriors(plan: SecretPlan, posteriors: Posteriors) -> None:
    """Every secret stays within its posterior."""
    held = plan.protection
    wrong = np.flatnonzero(posteriors.sharper > held.posteriors * (1 + CLOSE))
    if len(wrong):
        j = int(wrong[0])
        raise InputError(
            f"{plan.path} contradicts itself: it allows the secret {shown(held.ids[j])} a posterior of "
            f"{held.posteriors[j]:.6g}, and its noise leaves {posteriors.sharper[j]:.6g}; plan again"
        )
