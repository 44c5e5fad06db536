"""Shows the progress of a running training on the terminal and writes its logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from privctl.domain.progress import Advance
from privctl.train.logs.live import SHOWN, WITHHELD, EpsilonSoFar, LiveMeasures, Spent
from privctl.train.logs.withheld import withholds
from privctl.train.logs.writers import opened_logs
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.log_places import private_log_warning
from privctl.train.settings.session import Session
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.watch import SeveralWatches, Unwatched, Watch

if TYPE_CHECKING:
    import torch


@contextmanager
def observed(
    job: TrainingJob,
    session: Session,
    *,
    device: torch.device,
    spent: Spent,
    done: int,
    folder: RunFolder | None,
    trained: int = 0,
) -> Iterator[tuple[Advance, Watch]]:
    """The function that advances the progress bar, and the ``Watch`` of the training loop.

    ``done`` steps were made before; ``spent`` gives the ledger of begun steps; ``trained`` numbers are released per
    step.
    """
    with ExitStack() as stack:
        watched = partial(_watch_main, job, session, stack, device=device, spent=spent, done=done, folder=folder)
        yield session.workers.in_main(partial(watched, trained=trained)) or ((lambda _: None), Unwatched())


def _watch_main(
    job: TrainingJob,
    session: Session,
    stack: ExitStack,
    *,
    device: torch.device,
    spent: Spent,
    done: int,
    folder: RunFolder | None,
    trained: int,
) -> tuple[Advance, Watch]:
    """What ``observed`` yields in the main process; ``stack`` closes it."""
    epsilon = EpsilonSoFar(job=job, spent=spent, trained=trained)
    live = LiveMeasures(job=job, device=device, epsilon=epsilon)
    label, left = f"training ({job.request.method_name})", job.recipe.steps - done
    shown = session.progress(label, left, "steps")
    if session.detailed is not None:
        shown = session.detailed(label, left, "steps", live.now)
    if withholds(job.request) and (session.detailed is not None or job.request.logs):
        session.notify(SHOWN if live.shown else WITHHELD)
    if warning := private_log_warning(job.request):
        session.notify(warning)
    own = LiveMeasures(job=job, device=device, epsilon=epsilon)
    state = None if folder is None else folder.path
    log = stack.enter_context(opened_logs(job.request, own, steps=job.recipe.steps, after=done, state=state))
    return stack.enter_context(shown), live if log is None else SeveralWatches((live, log))
