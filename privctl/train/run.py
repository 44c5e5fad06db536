"""Runs a training job with its method."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.runs.dry_run import known_beforehand
from privctl.train.settings.session import Session


def run_training(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Train with the job's method, save the model with its report, and return the report.

    Returns None except in the main process. Warns before training about anything that voids the guarantee. Raises
    PrivctlError if the run cannot continue; its saved state is kept.
    """
    for sentence in known_beforehand(job):
        session.notify(sentence)
    return method_named(job.request.method_name).run(job, session)
