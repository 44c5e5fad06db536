"""Splits batches into micro-batches, and into smaller ones of the same examples if memory runs out."""

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
from privctl.parallel import ALONE, MemoryElsewhereError, Workers, is_out_of_memory
from privctl.train.network.memory import release_unused
from privctl.train.settings.recipe import TrainingSettings


@dataclass(slots=True, kw_only=True)
class MicroBatches:
    """Splits batches of ``task`` into micro-batches of at most ``examples`` and padded ``tokens``.

    Both limits are lowered permanently if memory runs out. How a batch is split changes only rounding. ``workers`` in
    lockstep all make as many passes as the one with the most. With ``may_pass_twice``, the error for a single record
    that does not fit suggests clipping in two passes.
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
        """Call ``compute`` with every micro-batch of a step's ``units``; returns the examples in the order of use.

        If ``compute`` returns groups of examples, they are computed next, each by itself. Workers in lockstep that have
        nothing left compute [] until all are done. If memory runs out, ``restart`` drops what the step computed so far,
        and the same units are computed again in smaller micro-batches: nothing is drawn twice. In lockstep, all
        processes do so if memory runs out in one. Raises InputError if a single example does not fit.
        """
        while True:
            seen: list[int] = []
            pending = deque(self.task.micro_batches(units, step, self.examples, self.tokens))
            while self.workers.any_in_lockstep(bool(pending)):
                micro = pending.popleft() if pending else []
                regrouped = self._computed(micro, compute)
                if regrouped is None:
                    break
                pending.extendleft(reversed(regrouped))
                seen += [] if regrouped else micro
            else:
                return seen
            # The error's traceback, which holds the tensors of the failed pass, is gone only here.
            restart()
            release_unused(self.device)

    def _computed(
        self, micro: list[int], compute: Callable[[list[int]], Sequence[list[int]] | None]
    ) -> Sequence[list[int]] | None:
        """Compute ``micro``; returns the groups to be computed again, or None after lowering the limits for memory."""
        try:
            if self.workers.lockstep:
                return self.workers.jointly(lambda: compute(micro) or ())
            return compute(micro) or ()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            is_own_error = not isinstance(error, MemoryElsewhereError)
        self._lower(micro if is_own_error else None)
        return None

    def _lower(self, micro: Sequence[int] | None) -> None:
        """Lower the limits to half of ``micro``, which did not fit; None if it failed only in another process."""
        lengths = self.task.length if isinstance(self.task, CorpusTask) else None
        limit = self.examples if lengths is None else self.tokens
        if micro is not None:
            run = run_length(self.task, micro)
            limit = len(micro) // run // 2 * run * (1 if lengths is None else max(map(lengths, micro), default=0))
        if self.workers.lockstep:
            limit = int(self.workers.gather(torch.tensor([limit])).min())
        if not limit:
            raise too_large_error(self.device, self.may_pass_twice)
        self.examples, self.tokens = (limit, self.tokens) if lengths is None else (self.examples, limit)
        self.notify(_lowered_message(self.device, self.examples, None if lengths is None else self.tokens))


def halved(
    recipe: TrainingSettings, length: int | None, device: torch.device, notify: Notify, *, may_pass_twice: bool = False
) -> TrainingSettings:
    """The ``recipe`` with micro-batches half as large, for texts of up to ``length`` tokens, or for images if None.

    Raises InputError if they are single records already; ``may_pass_twice`` is as in ``MicroBatches``.
    """
    release_unused(device)
    if length is None:
        if recipe.micro_examples == 1:
            raise too_large_error(device, may_pass_twice)
        recipe = replace(recipe, micro_examples=recipe.micro_examples // 2)
    else:
        limit = min(recipe.micro_tokens, recipe.micro_examples * length)
        if limit <= length:
            raise too_large_error(device, may_pass_twice)
        recipe = replace(recipe, micro_tokens=limit // 2)
    notify(_lowered_message(device, recipe.micro_examples, None if length is None else recipe.micro_tokens))
    return recipe


def _lowered_message(device: torch.device, examples: int, tokens: int | None) -> str:
    most = counted(examples, "example") if tokens is None else counted(tokens, "token")
    flag = "--micro-examples" if tokens is None else "--micro-tokens"
    return f"the memory of {device} ran out; from now on at most {most} are processed at once ({flag} sets this)"


class TooLargeError(InputError):
    """A single record does not fit into memory."""


def too_large_error(device: torch.device, may_pass_twice: bool) -> TooLargeError:
    """The error for a single record that does not fit; it suggests clipping in two passes if ``may_pass_twice``."""
    passes = "--checkpointing with --clipping-passes 2," if may_pass_twice else "--checkpointing"
    return TooLargeError(
        f"the memory of {device} does not hold one record; add {passes} or --bf16, train fewer numbers with "
        "--lora-rank, lower --max-length, or use a device with more memory"
    )
