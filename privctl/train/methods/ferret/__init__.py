"""FERRET: groups of tensors publish the sign of a derivative along a public random direction, in few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.train.methods.ferret.settings import STREAM_SUFFIX, FerretSettings, ReleaseKind
from privctl.train.runs.method import TrainingMethod
from privctl.train.settings.choices import DerivativeMethod

if TYPE_CHECKING:
    from privctl.domain.progress import Progress
    from privctl.domain.report import PrivacyReport
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import ReplayRequest, RetrainRequest
    from privctl.train.settings.session import Session


def _is_sampled(request: RetrainRequest) -> bool:
    settings = request.settings
    return isinstance(settings, FerretSettings) and settings.release is not ReleaseKind.PUBLISHED


def _needs_float32(request: RetrainRequest) -> bool:
    return request.settings_as(FerretSettings).derivatives is DerivativeMethod.DIFFERENCE


def _check(request: RetrainRequest) -> None:
    from privctl.train.methods.ferret.planning import check

    check(request)


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.methods.ferret.run import run_ferret

    return run_ferret(job, session)


def _plan(job: TrainingJob) -> TrainingPlan:
    from privctl.train.methods.ferret.dry_run import plan_ferret

    return plan_ferret(job)


def _replay(request: ReplayRequest, progress: Progress) -> PrivacyReport:
    from privctl.train.methods.ferret.replay import replay

    return replay(request, progress)


METHOD = TrainingMethod(
    name="ferret",
    help="""Train MODEL by published signs: derivatives of groups of tensors along public random directions.

    \b
    Example:
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 2 -o private/
    \f
    In each step, each group publishes with the fire probability, by coins that are independent of the data. Steps in
    which no group publishes cost nothing. With --release published, the method is that of the paper: --epsilon is then
    in nats of mutual information, an average that does not bound the worst case, and it sets the fire probability. With
    --release gaussian or randomized-response, --epsilon at --delta is a guarantee and sets the noise; the fire
    probability is then 1 / groups by default. With --release gaussian, more --directions teach more at the same
    epsilon; each takes as much memory as the weights.

    OUTPUT.updates.safetensors holds everything that the training released, one bit per sign. Together with MODEL, it
    reproduces the weights bit for bit. For an adapter, groups and directions consist only of its own tensors.

    \b
    More examples:
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 8 --directions 16 \\
        --optimizer sgd --publish value --update-scale root-dimension -o more/
      privctl retrain ferret model/ --data train.jsonl --epsilon 0.5 --groups eighth -o signs/
      privctl retrain ferret model/ --replay private.updates.safetensors -o again/
    """,
    settings=FerretSettings,
    takes=("schedule", "budget", "clip-norm", "convert", "adapters"),
    helps={
        "epsilon": "Privacy budget: in nats for published signs, epsilon at --delta for the other releases.",
        "noise_multiplier": "gaussian: noise stddev / clip norm, instead of --epsilon.",
        "delta": "Delta of the guarantee.  [default: the smaller of 1e-5 and 1 / examples^1.1]",
        "clip_norm": "Clip norm of derivatives. For releases with noise.",
    },
    without=("fsdp",),
    private=True,
    guaranteed=True,
    whole_passes="signs as published are",
    sampled=_is_sampled,
    check=_check,
    needs_float32=_needs_float32,
    run=_run,
    plan=_plan,
    replay=_replay,
    files=(STREAM_SUFFIX,),
)
