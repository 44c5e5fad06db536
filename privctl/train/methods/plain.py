"""Training without any protection, as a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.train.runs.method import TrainingMethod

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.session import Session

UNPROTECTED = (
    "no noise was added to these weights: nothing bounds what they give away about the examples; do not hand them out"
)


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.runs.gradient_training import train_by_gradients

    return train_by_gradients(job, session)


METHOD = TrainingMethod(
    name="plain",
    help="""Train MODEL without any protection, as a baseline.

    \b
    Example:
      privctl retrain plain model/ --data train.jsonl --held-out test.jsonl -o plain/
    """,
    takes=("schedule", "convert", "adapters"),
    shards=True,
    clips=False,
    voided="",
    warning=UNPROTECTED,
    sampled=lambda _: False,
    run=_run,
)
