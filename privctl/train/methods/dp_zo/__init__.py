"""DP-ZO (Tang et al. 2024; Zhang et al. 2024): noisy differences of losses along public random directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError
from privctl.domain.mechanism import Optimizer
from privctl.train.methods.dp_sgd import TUNING
from privctl.train.methods.dp_zo.settings import SUFFIX, DpZoSettings
from privctl.train.runs.method import TrainingMethod
from privctl.train.settings.searching import check_search, number_of_runs

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest
    from privctl.train.settings.session import Session


def _check(request: RetrainRequest) -> None:
    """Raise CommandError for settings that cannot be combined with differences of losses."""
    for given, sentence in (
        (
            request.optimizer is not Optimizer.SGD,
            f"dp-zo keeps no state beside the weights; give --optimizer sgd instead of {request.optimizer}",
        ),
        (bool(request.bf16), "dp-zo compares losses in float32, and --bf16 leaves mostly rounding of them; remove it"),
        (
            request.model.dropout,
            "dp-zo compares the losses of one network, and --dropout draws another for each; remove it",
        ),
        (
            request.model.checkpointing,
            "dp-zo goes through the network without keeping anything, so --checkpointing saves nothing; remove it",
        ),
    ):
        if given:
            raise CommandError(sentence)
    check_search(request, request.settings_as(DpZoSettings))


def _search(request: RetrainRequest) -> NumberOfRuns | None:
    return number_of_runs(request.settings_as(DpZoSettings))


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.methods.dp_zo.run import run_dp_zo

    return run_dp_zo(job, session)


def _plan(job: TrainingJob) -> TrainingPlan:
    from privctl.train.methods.dp_zo.run import plan_dp_zo

    return plan_dp_zo(job)


METHOD = TrainingMethod(
    name="dp-zo",
    help="""Train MODEL with an (epsilon, delta) guarantee and no backward pass, in the memory of inference.

    \b
    Example:
      privctl retrain dp-zo model/ --data train.jsonl --held-out test.jsonl --epsilon 8 \\
          --epochs 20 --batch-size 128 --learning-rate 1e-4 -o private/
    \f
    Each step draws a public random direction, and compares each example's loss slightly ahead of the weights with that
    slightly behind. The differences are clipped and summed over a random batch, one Gaussian number is added, and the
    weights move along the direction by the noisy sum. With --directions K, a step has K directions, whose differences
    are clipped together.

    Weights are moved in place and restored exactly, so no copy of them is kept. A step learns a single number of a
    gradient that has as many as there are weights. So runs need many more steps than dp-sgd, at far lower learning
    rates than other methods. If dp-sgd fits into memory, prefer it: it reaches lower losses in less time.

    \b
    More examples:
      privctl retrain dp-zo model/ --data train.jsonl --epsilon 8 --directions 4 \\
          --learning-rate 1e-4 --lora-rank 8 -o private/
    """,
    settings=DpZoSettings,
    takes=("clip-norm", "schedule", "budget", "convert", "adapters"),
    helps={"clip_norm": "L2 norm of each example's clipped differences."},
    without=("optimizer", "momentum", "beta1", "beta2", "bf16", "dropout", "checkpointing", "fsdp"),
    noised=True,
    private=True,
    guaranteed=True,
    optimizer=Optimizer.SGD,
    warning=TUNING,
    sampled=lambda _: True,
    numbers=lambda request: request.settings_as(DpZoSettings).directions,
    needs_float32=lambda _: True,
    files=(SUFFIX,),
    search=_search,
    check=_check,
    run=_run,
    plan=_plan,
)
