"""FERRET: one bit a group, the sign of a derivative along a public random direction, mostly not even asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.train.method import Method
from privctl.train.methods.ferret.settings import FerretSettings, ReleaseKind

if TYPE_CHECKING:
    from privctl.domain.progress import Progress
    from privctl.domain.report import PrivacyReport
    from privctl.train.prepare import TrainingJob
    from privctl.train.request import ReplayRequest, RetrainRequest
    from privctl.train.session import Session

#: Of the stream of updates, which lies beside the model.
STREAM_SUFFIX = ".updates.safetensors"


def _sampled(request: RetrainRequest) -> bool:
    settings = request.settings
    return isinstance(settings, FerretSettings) and settings.release is not ReleaseKind.PUBLISHED


def _check(request: RetrainRequest) -> None:
    from privctl.train.methods.ferret.planning import check

    check(request)


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.methods.ferret.run import run_ferret

    return run_ferret(job, session)


def _replay(request: ReplayRequest, progress: Progress) -> PrivacyReport:
    from privctl.train.methods.ferret.replay import replay

    return replay(request, progress)


METHOD = Method(
    name="ferret",
    help="""Train MODEL by one bit a group: the sign of a derivative along a public random direction, mostly not asked.

    Each group of tensors publishes in each step with the fire probability, by coins that never look at the data. Steps
    in which none does cost nothing. With --release published it is the method as its paper has it: --epsilon is then
    in nats of mutual information, an average that bounds no worst case, and sets the fire probability. With --release
    gaussian or randomized-response, --epsilon at --delta is a guarantee and sets the noise; the fire probability is
    then 1 / groups unless given.

    OUTPUT.updates.safetensors is all that the training let out, a bit a sign: with MODEL it makes the same weights
    again, to the last bit.

    \b
    Example:
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 2 -o private/
      privctl retrain ferret model/ --data train.jsonl --epsilon 0.5 --groups eighth -o signs/
      privctl retrain ferret model/ --replay private.updates.safetensors -o again/
    """,
    settings=FerretSettings,
    takes=("schedule", "budget", "clip-norm"),
    helps={
        "epsilon": "Budget: nats for published signs, epsilon at --delta for the releases.",
        "noise_multiplier": "gaussian: noise stddev / clip norm, instead of --epsilon.",
        "delta": "Delta of the guarantee, of releases.  [default: the lesser of 1e-5 and 1 / examples^1.1]",
        "clip_norm": "Bound of derivatives, where noise is.",
    },
    private=True,
    guaranteed=True,
    whole_passes="signs as published are",
    sampled=_sampled,
    check=_check,
    run=_run,
    replay=_replay,
    files=(STREAM_SUFFIX,),
)
