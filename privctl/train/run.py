"""The one door to every training."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.train.prepare import TrainingJob
from privctl.train.released_names import voiding
from privctl.train.session import Session


def run_training(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Train by the job's method, save the model with its report, and return that (None but in the main process).

    Says beforehand what voids the guarantee, while there is time to mend it. Raises PrivctlError in one sentence for
    what cannot go on; what was saved before stays.
    """
    for sentence in voiding(job):
        session.notify(sentence)
    if job.delta is not None and job.delta >= 1 / len(job.task):
        session.notify(f"delta {job.delta:g} is no less than 1 / examples: one may be published whole")
    return job.request.way.run(job, session)
