"""The processes of a training run, and the callbacks of its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from privctl.domain.progress import DetailedProgress, Notify, Progress, unseen
from privctl.parallel import Workers

#: Called with each epoch's metrics.
EpochCallback = Callable[[Mapping[str, float]], None]
#: A context manager that yields a function, which returns whether to stop after the current step.
Interrupts = AbstractContextManager[Callable[[], bool]]

NO_INTERRUPT_HANDLING: Interrupts = nullcontext(lambda: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The processes that train, and the callbacks that observe and stop them.

    ``detailed``, if set, shows the training loop instead of ``progress``. ``interrupts`` is entered for the training
    loop only. ``notify`` receives what the user should know before training starts.
    """

    workers: Workers = field(default_factory=Workers)
    progress: Progress = unseen
    detailed: DetailedProgress | None = None
    on_epoch: EpochCallback = lambda _: None
    interrupts: Interrupts = NO_INTERRUPT_HANDLING
    notify: Notify = lambda _: None
