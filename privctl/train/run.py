"""Runs a training job by its method."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.models.tasks.base import Task
from privctl.train.dry_run import known_beforehand
from privctl.train.prepare import TrainingJob
from privctl.train.session import Session


def truncation(task: Task, source: str) -> str | None:
    """How many of the records of ``source`` were truncated to the model's context; None where none was."""
    corpus = getattr(task, "corpus", None)
    if corpus is None or not corpus.shortened:
        return None
    longest = max(map(corpus.length, range(len(corpus.examples))))
    records = len({example.record for example in corpus.examples})
    return (
        f"{corpus.shortened} of the {counted(records, 'record')} of {source} "
        f"({100 * corpus.shortened / records:.2g} %) have more than {longest} tokens and are truncated to them; "
        "--long split trains on all of a long record, --long refuse stops at it"
    )


def run_training(job: TrainingJob, session: Session) -> PrivacyReport | None:
    """Train by the job's method, save the model with its report, and return the report.

    Returns None except in the main process. Warns beforehand about what voids the guarantee, while it can still be
    changed. Raises PrivctlError, in one sentence, where the run cannot continue; saved state is kept.
    """
    if sentence := truncation(job.task, "--data"):
        session.notify(sentence)
    for sentence in known_beforehand(job):
        session.notify(sentence)
    return job.request.method.run(job, session)
