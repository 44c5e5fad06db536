"""Runs a training job by its method."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.runs.dry_run import known_beforehand
from privctl.train.settings.session import Session


def run_training(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Train by the job's method, save the model with its report, and return the report.

    Returns None except in the main process. Warns beforehand about what voids the guarantee, while it can still be
    changed. Raises PrivctlError, in one sentence, where the run cannot continue; saved state is kept.
    """
    for sentence in known_beforehand(job):
        session.notify(sentence)
    return method_named(job.request.method_name).run(job, session)
