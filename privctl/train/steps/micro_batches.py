"""What goes through the network at once, and less of it where memory runs out: of the same examples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from privctl.domain.errors import InputError
from privctl.domain.progress import Notify
from privctl.domain.shown import counted
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import CorpusTask, run_length
from privctl.parallel import ALONE, MemoryElsewhereError, Workers, short_of_memory
from privctl.train.network.memory import release_unused
from privctl.train.settings.recipe import TrainingSettings


@dataclass(slots=True, kw_only=True)
class MicroBatches:
    """Cuts batches of ``task`` into what goes through the network at once: at most ``examples`` and padded ``tokens``.

    Both are lowered for good where memory runs out. How a batch is cut changes nothing but rounding. Where ``workers``
    make every pass together, each makes as many as the one with the most. ``may_pass_twice``: where one record is too
    much, the user is told of clipping in two passes.
    """

    task: Task
    examples: int
    tokens: int
    device: torch.device
    notify: Notify = lambda _: None
    workers: Workers = ALONE
    may_pass_twice: bool = False

    def each(
        self,
        units: Sequence[int],
        step: int,
        compute: Callable[[list[int]], Sequence[list[int]] | None],
        *,
        restart: Callable[[], object],
    ) -> list[int]:
        """Call ``compute`` with every micro-batch of a step's ``units``; returns the examples.

        What it returns is computed next, in the groups that it gives. Of workers in lockstep, those that have nothing
        left compute [] until none has. Where memory runs out, ``restart`` forgets what the step computed so far, and
        the same units are gone through again, less at a time: nothing is drawn twice. In lockstep, all do so where it
        runs out in one. Raises InputError where a single example is too much.
        """
        while True:
            seen: list[int] = []
            pending = deque(self.task.micro_batches(units, step, self.examples, self.tokens))
            while self.workers.any_in_lockstep(bool(pending)):
                micro = pending.popleft() if pending else []
                again = self._computed(micro, compute)
                if again is None:
                    break
                pending.extendleft(reversed(again))
                seen += [] if again else micro
            else:
                return seen
            # Only here are the tensors of the failed pass gone, which the error's traceback held.
            restart()
            release_unused(self.device)

    def _computed(
        self, micro: list[int], compute: Callable[[list[int]], Sequence[list[int]] | None]
    ) -> Sequence[list[int]] | None:
        """What must be computed again of ``micro``; None where memory ran out, and less is allowed from now on."""
        try:
            if self.workers.lockstep:
                return self.workers.jointly(lambda: compute(micro) or ())
            return compute(micro) or ()
        except (RuntimeError, MemoryError) as error:
            if not short_of_memory(error):
                raise
            here = not isinstance(error, MemoryElsewhereError)
        self._lower(micro if here else None)
        return None

    def _lower(self, micro: Sequence[int] | None) -> None:
        """Allow half of ``micro``, which was too much; None where it was too much for another process alone."""
        lengths = self.task.length if isinstance(self.task, CorpusTask) else None
        most = self.examples if lengths is None else self.tokens
        if micro is not None:
            run = run_length(self.task, micro)
            most = len(micro) // run // 2 * run * (1 if lengths is None else max(map(lengths, micro), default=0))
        if self.workers.lockstep:
            most = int(self.workers.gather(torch.tensor([most])).min())
        if not most:
            raise too_large(self.device, self.may_pass_twice)
        self.examples, self.tokens = (most, self.tokens) if lengths is None else (self.examples, most)
        self.notify(_lowered(self.device, self.examples, None if lengths is None else self.tokens))


def halved(
    recipe: TrainingSettings, length: int | None, device: torch.device, notify: Notify, *, may_pass_twice: bool = False
) -> TrainingSettings:
    """The ``recipe`` with half as much at once of texts up to ``length`` tokens, or of images where that is None.

    Raises InputError where it is one record already, with what is left to be tried as ``MicroBatches`` says.
    """
    release_unused(device)
    if length is None:
        if recipe.micro_examples == 1:
            raise too_large(device, may_pass_twice)
        recipe = replace(recipe, micro_examples=recipe.micro_examples // 2)
    else:
        most = min(recipe.micro_tokens, recipe.micro_examples * length)
        if most <= length:
            raise too_large(device, may_pass_twice)
        recipe = replace(recipe, micro_tokens=most // 2)
    notify(_lowered(device, recipe.micro_examples, None if length is None else recipe.micro_tokens))
    return recipe


def _lowered(device: torch.device, examples: int, tokens: int | None) -> str:
    most = counted(examples, "example") if tokens is None else counted(tokens, "token")
    flag = "--micro-examples" if tokens is None else "--micro-tokens"
    return f"the memory of {device} ran out; from now on at most {most} are processed at once ({flag} sets this)"


class TooLargeError(InputError):
    """One record is too much for the memory."""


def too_large(device: torch.device, may_pass_twice: bool) -> TooLargeError:
    """What to tell where not even one record fits, and clipping in two passes is left to be tried or not."""
    passes = "--checkpointing with --clipping-passes 2," if may_pass_twice else "--checkpointing"
    return TooLargeError(
        f"the memory of {device} does not hold one record; add {passes} or --bf16, train fewer numbers with "
        "--lora-rank, lower --max-length, or use a device with more memory"
    )
