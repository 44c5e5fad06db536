"""Held-out records that are trained on too: what is measured on them is an exact function of private records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privctl.models.tasks.corpus import CorpusTask
from privctl.train.logs.withheld import withholds
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.reading import names_private_user

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.models.tasks.base import Task


def shared_warning(job: TrainingJob) -> Iterator[str]:
    """A warning if a run that withholds exact measures of its examples measures one of them, or of a user, as held out.

    Users are compared where they are protected and the held-out records name them in the same field.
    """
    request, held_out = job.request, job.request.data.held_out
    if held_out is not None and withholds(request) and names_private_user(request, held_out):
        yield (
            f"the held-out data hold records of a {request.data.unit!r} whose records are trained on: held-out "
            "measures are then exact measures of protected users, and no guarantee covers them; leave such users out "
            "of --held-out"
        )
    if (place := shared_record(job)) is not None:
        yield (
            f"record {place} of the held-out data stands in the training data too: held-out measures are then exact "
            "measures of private records, and no guarantee covers them; leave what is trained on out of --held-out"
        )


def shared_record(job: TrainingJob) -> int | None:
    """The number, from 1, of the first held-out record that is trained on too; None if there is none.

    Records are compared as the network reads them, texts by their tokens, so another spelling is not found.
    """
    if job.held_out is None or not withholds(job.request):
        return None
    # By sorting, as the table that numpy would otherwise consider overflows for 64-bit numbers in numpy 2.0.
    shared = np.flatnonzero(np.isin(_keys(job.held_out), _keys(job.task), kind="sort"))
    if not len(shared):
        return None
    first = int(shared[0])
    return 1 + (job.held_out.corpus.examples[first].record if isinstance(job.held_out, CorpusTask) else first)


def _keys(task: Task) -> NDArray[np.uint64]:
    """The content key of each example."""
    if isinstance(task, CorpusTask):
        return task.corpus.units.keys
    return np.array(task.keys(range(len(task))), np.uint64)
