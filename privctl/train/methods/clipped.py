"""Training with clipped gradients and without noise, which records the facts for noise on finished weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError
from privctl.train.methods.plain import UNPROTECTED
from privctl.train.runs.method import TrainingMethod
from privctl.train.settings.choices import ClippingStyle, Schedule

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest
    from privctl.train.settings.session import Session


def check(request: RetrainRequest) -> None:
    """Raise CommandError for settings that the recorded facts cannot describe or for which bounds would be wrong."""
    if request.steps is not None:
        raise CommandError("clipped records the facts of whole epochs; give --epochs instead of --steps")
    if request.schedule is not Schedule.CONSTANT or request.warmup_steps:
        raise CommandError(
            "clipped records the facts of a constant learning rate; remove --schedule and --warmup-steps"
        )
    if request.clipping is not ClippingStyle.FLAT:
        raise CommandError(
            f"clipped records the facts of flat clipping, and the bounds of privctl noise do not hold for --clipping "
            f"{request.clipping}; remove --clipping"
        )
    if request.model.lora_rank is not None and not request.model.save_adapter:
        raise CommandError(
            "clipped records how far the trained weights can move, which gives no bound for merged adapters; add "
            "--save-adapter, or remove --lora-rank"
        )
    rate = request.rate_for(request.batch_size)
    if rate * request.weight_decay >= 1:
        raise CommandError(f"--weight-decay {request.weight_decay:g} times --learning-rate {rate:g} must be below 1")


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.runs.gradient_training import train_by_gradients

    return train_by_gradients(job, session)


METHOD = TrainingMethod(
    name="clipped",
    help="""Train MODEL with clipped gradients and no noise, and record the facts that `privctl noise` needs.

    Each example is visited once an epoch, in an order that does not depend on the data, at a constant learning rate.

    \b
    Example:
      privctl retrain clipped model/ --data train.jsonl --epochs 2 --batch-size 32 \\
          --optimizer sgd --learning-rate 0.1 -o clipped/
      privctl noise clipped/ --epsilon 1
    """,
    takes=("clipping", "passes", "convert", "adapters"),
    shards=True,
    voided="every guarantee of privctl noise for them",
    warning=f"{UNPROTECTED}; privctl noise makes a release of them",
    sampled=lambda _: False,
    check=check,
    run=_run,
)
