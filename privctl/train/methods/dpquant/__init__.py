"""DPQuant: DP-SGD with some layers in low precision, chosen by how much quantizing each raises the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.train.methods.dp_sgd import LEARNING_RATE, TUNING
from privctl.train.methods.dpquant.settings import DpquantSettings
from privctl.train.runs.method import TrainingMethod

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest, SideReleases
    from privctl.train.settings.session import Session


def _check(request: RetrainRequest) -> None:
    from privctl.train.methods.dpquant.choice import check

    check(request)


def _measurements(request: RetrainRequest, examples: int, steps: int, rate: float) -> SideReleases | None:
    from privctl.train.methods.dpquant.measurements import measurements_of

    return measurements_of(request, examples, steps, rate)


def _canaries(request: RetrainRequest) -> int | None:
    return request.settings_as(DpquantSettings).gradient_canaries


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.methods.dpquant.run import run_dpquant

    return run_dpquant(job, session)


def _plan(job: TrainingJob) -> TrainingPlan:
    from privctl.train.methods.dpquant.run import plan_dpquant

    return plan_dpquant(job)


METHOD = TrainingMethod(
    name="dpquant",
    help="""Train MODEL like dp-sgd, with most layers in few bits (simulated).

    \b
    Example:
      privctl retrain dpquant model/ --data train.jsonl --epsilon 8 --format luq-fp4 \\
          --quantized-fraction 0.75 --epochs 20 --batch-size 512 -o private/
    \f
    Every epoch, some layers are drawn to be quantized. With --layers dpquant, layers whose quantization hurts less,
    according to their scores, are more likely to be drawn. These scores are measured every few epochs on synthetic
    inputs: no record is read, and no epsilon is spent. With --sensitivity private, they are measured on a few private
    examples, as in the method's paper: each example's loss differences are clipped, and noise is added to their sum.
    These releases are in the same ledger as the steps, and --epsilon covers all of them. The report states what they
    cost, and what the paper would have claimed.

    Passes are in float32, also on a GPU, and FP8 is simulated. With --bf16, a GPU that has FP8 products computes in
    them, but rounding then moves the values of other records by whole levels where a record is added: by more than the
    margin that clipping leaves, unless batches are small. The run says by how much.

    With adapters, all layers that a pass goes through can be quantized, including those of the frozen base, which need
    most of the multiply-adds.

    With --gradient-canaries, the run is an audit of its steps: `privctl audit canaries` bounds epsilon from below by
    what was observed of the canaries, and tests the noise that the report states. The canaries take part in no
    measurement. Not with --secrets.

    \b
    More examples:
      privctl retrain dpquant resnet/ --data images/ --task image-classification \\
          --labels dark,light --norm frozen --epsilon 8 --format fp8 --layers random \\
          --compute-target 0.9 -o private/
      privctl retrain dpquant model/ --data train.jsonl --epsilon 8 --format int4 \\
          --sensitivity private --measure-every 4 -o private/
      privctl retrain dpquant model/ --data train.jsonl --epsilon 8 --format luq-fp4 \\
          --gradient-canaries 5001 -o audited/
    """,
    settings=DpquantSettings,
    takes=("clipping", "schedule", "budget", "secrets", "convert", "adapters"),
    helps={
        "learning_rate": LEARNING_RATE,
        "epsilon": "Privacy budget of steps and measurements together, from which the noise is computed.",
        "secrets": "Plan of protection; not with --sensitivity private.",
    },
    noised=True,
    private=True,
    guaranteed=True,
    shards=True,
    sums_losses=True,
    # In bfloat16 another batch moves many values to another level, and sums by more than the margin for rounding.
    needs_float32=lambda _: True,
    warning=TUNING,
    sampled=lambda _: True,
    canaries=_canaries,
    check=_check,
    side_releases=_measurements,
    run=_run,
    plan=_plan,
)
