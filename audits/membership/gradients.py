"""Membership attacks on the gradient of a record's loss, for whoever has the weights.

``gradient-norm``: training ends where the gradients of its records are small (Nasr, Shokri and Houmansadr 2019).
``gradient-alignment``: every step moved along the gradients of its records (clipped to equal norm in private training),
so the total update retains a component along each record's gradient (after Li, Li and Ribeiro 2023). The score is the
mean of the cosines at the initial and the final weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.queries import asking
from audits.scores.gradients import Weights, gradients, update_between, why_no_gradients, why_no_update
from privctl.domain.progress import Progress, unseen
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.membership.workload import Workload
    from audits.scores.subject import AuditedModel

NORM, ALIGNMENT = "gradient-norm", "gradient-alignment"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientScores:
    """The scores [records] of gradient attacks, and the reasons why others are not possible."""

    found: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    unasked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differentiator:
    """Computes gradients of records at the audited model, ``subject``, and at the ``reference`` model, if any."""

    subject: AuditedModel
    reference: AuditedModel | None = None
    workers: Workers = ALONE
    progress: Progress = unseen

    def why_not(self, names: Collection[str]) -> dict[str, str]:
        """The gradient attacks among ``names`` that are not possible, each with the reason."""
        if NORM not in names and ALIGNMENT not in names:
            return {}
        reasons = {name: why_no_gradients(self.subject) for name in (NORM, ALIGNMENT)}
        if not reasons[ALIGNMENT]:
            reasons[ALIGNMENT] = (
                "it needs the model that training began with, given by --reference"
                if self.reference is None
                else why_no_update(self.subject, self.reference)
            )
        return {name: reason for name, reason in reasons.items() if reason and name in names}

    def cost(self, names: Collection[str]) -> str:
        """The cost of the possible gradient attacks among ``names``, in words; empty if there are none."""
        requested = self._requested_names(names)
        times = "twice" if ALIGNMENT in requested else "once"
        return f"differentiating each record {times}, for {', '.join(requested)}" if requested else ""

    def scores(self, names: Collection[str], work: Workload) -> GradientScores:
        """The scores of the gradient attacks among ``names``; not finite where the gradients are not."""
        requested, not_requested = self._requested_names(names), self.why_not(names)
        if not requested:
            return GradientScores(unasked=not_requested)
        models: list[tuple[AuditedModel, Sequence[NDArray[Any]]]] = [(self.subject, work.rows)]
        update: Weights | None = None
        if ALIGNMENT in requested and self.reference is not None:
            models.append((self.reference, self.reference.rows(work.records).rows))
            update = update_between(self.reference, self.subject)
        size = len(models) * len(work.rows) / self.workers.size
        with self.progress("differentiating", size, "records") as advance:
            by_model = [gradients(*model, update, self.workers, advance) for model in models]
        by_attack = {NORM: -by_model[0][:, 0], ALIGNMENT: np.mean(by_model, axis=0)[:, 1]}
        return GradientScores(found={name: by_attack[name] for name in requested}, unasked=not_requested)

    def _requested_names(self, names: Collection[str]) -> list[str]:
        reasons = self.why_not(names)
        return [name for name in (NORM, ALIGNMENT) if name in names and name not in reasons]


GRADIENT_NORM, GRADIENT_ALIGNMENT = asking(NORM), asking(ALIGNMENT)
