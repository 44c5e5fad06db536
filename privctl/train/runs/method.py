"""A training method with its implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.train.settings.request import Method

if TYPE_CHECKING:
    from privctl.domain.progress import Progress
    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import ReplayRequest
    from privctl.train.settings.session import Session


def _plan_gradients(job: TrainingJob) -> TrainingPlan:
    from privctl.train.runs.dry_run import plan_gradients

    return plan_gradients(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMethod(Method):
    """A method that ``privctl retrain NAME`` runs.

    ``run`` trains and saves; ``plan`` makes the plan for a dry run, by default that of a training by gradients in full
    precision; ``replay`` repeats a recorded run without data.
    """

    run: Callable[[TrainingJob, Session], PrivacyReport | None]
    plan: Callable[[TrainingJob], TrainingPlan] = _plan_gradients
    replay: Callable[[ReplayRequest, Progress], PrivacyReport] | None = None
