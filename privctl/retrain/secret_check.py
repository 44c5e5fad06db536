"""A plan's numbers, computed again: what each step gives away of each secret at the noise that is used.

The plan is a file that anyone may have written. What a report says of its secrets therefore rests on exact integrals
made here, for all secrets where there are few enough; the plan's own number stands only where it was not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.secrets import binary_kl, information
from privctl.codec import shown
from privctl.domain.errors import InputFault
from privctl.domain.events import SecretMixture
from privctl.progress import Advance
from privctl.retrain.secret_plan import SecretPlan
from privctl.secrets.protection import Form, Protection

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Up to so many secrets, all are computed again; about a millisecond each.
_ALL = 20_000
#: Of more, so many: those whose records are drawn most, for what they may cost,
_SCREENED = 1_000
#: and those the plan itself says are nearest to their bounds.
_NEAREST = 16
#: Relative difference of two computations that is still the same number.
CLOSE = 1e-9

#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedSecrets:
    """What one step gives away of each secret at most: ``per_step`` [secrets], nats, at the run's noise.

    For ``checked`` [secrets] (bool) it was computed here; elsewhere the plan says so.
    """

    per_step: NDArray[np.float64]
    checked: NDArray[np.bool_]

    def spent(self, steps: int) -> NDArray[np.float64]:
        """Nats that ``steps`` steps gave away of each secret at most: adaptive steps add (chain rule)."""
        return steps * self.per_step


def check_secrets(plan: SecretPlan, noise_multiplier: float, progress: Progress) -> CheckedSecrets:
    """The plan's secrets at ``noise_multiplier``, which must be the plan's or more.

    Information falls as noise rises, so what was not computed again is at most what the plan says. Raises InputFault
    where the plan allows a secret more than its posterior does, or says less of it than it gives away.
    """
    protection = plan.protection
    _check_budgets(plan)
    per_step = protection.information / protection.facts.steps
    checked = np.zeros(len(per_step), dtype=bool)
    checked[chosen(protection)] = True
    own = protection.facts.noise_multiplier
    with progress("checking the plan", float(checked.sum()), "secrets") as advance:
        for secret in np.flatnonzero(checked):
            found = one_step(protection, int(secret), own)
            _check_claim(plan, int(secret), found * protection.facts.steps)
            per_step[secret] = found if noise_multiplier == own else one_step(protection, int(secret), noise_multiplier)
            advance(1)
    return CheckedSecrets(per_step=per_step, checked=checked)


def chosen(protection: Protection, limit: int = _ALL) -> NDArray[np.int64]:
    """The secrets to compute again: all up to ``limit`` of them, else those that may be nearest to their bounds."""
    count = len(protection.ids)
    if count <= limit:
        return np.arange(count)
    owners = np.repeat(np.arange(count), np.diff(protection.starts))
    drawn = np.bincount(owners, protection.probabilities[protection.records], count).astype(np.float64)
    crude, stated = (shares(part, protection.budgets) for part in (drawn**2, protection.information))
    return np.union1d(np.argsort(-crude, kind="stable")[:_SCREENED], np.argsort(-stated, kind="stable")[:_NEAREST])


def shares(amounts: NDArray[np.float64], budgets: NDArray[np.float64]) -> NDArray[np.float64]:
    """``amounts`` by ``budgets`` [secrets]; nothing of nothing is nothing, anything of nothing infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = np.where(amounts == 0, 0.0, amounts / budgets)
    return found


def one_step(protection: Protection, secret: int, noise_multiplier: float) -> float:
    """Nats that one step gives away of ``secret``, in the plan's form; 0 where none of its records is ever drawn."""
    rates = protection.of_secret(secret)
    drawn = tuple(rates[rates > 0].tolist())
    if not drawn:
        return 0.0
    event = SecretMixture(probabilities=drawn, noise_multiplier=noise_multiplier)
    return information(event, pairwise=protection.facts.form is Form.PAIRWISE)


def _check_budgets(plan: SecretPlan) -> None:
    """Every secret's nats are those of its posterior, or fewer, and the plan says that they suffice."""
    held = plan.protection
    rows = zip(held.ids, held.priors, held.posteriors, held.budgets, held.information, strict=True)
    for name, prior, posterior, budget, stated in rows:
        if not 0 < prior <= posterior or prior == 1:
            raise InputFault(
                f"{plan.path} allows the secret {shown(name)} a posterior of {posterior:g} at a prior of {prior:g}; "
                "expected 0 < prior <= posterior, and a prior below 1, so plan again"
            )
        allowed = binary_kl(float(posterior), float(prior))
        if budget > allowed * (1 + CLOSE):
            raise InputFault(
                f"{plan.path} contradicts itself: it gives the secret {shown(name)} {budget:.6g} nats where its "
                f"posterior allows {allowed:.6g}; plan again"
            )
        if stated > budget * (1 + CLOSE):
            raise InputFault(
                f"{plan.path} contradicts itself: it says that its run gives away {stated:.6g} nats of the secret "
                f"{shown(name)}, which may lose {budget:.6g}; plan again"
            )


def _check_claim(plan: SecretPlan, secret: int, found: float) -> None:
    stated = float(plan.protection.information[secret])
    if found > stated * (1 + CLOSE):
        raise InputFault(
            f"{plan.path} contradicts itself: it says that its run gives away {stated:.6g} nats of the secret "
            f"{shown(plan.protection.ids[secret])}, and that is {found:.6g}; plan again"
        )
