"""The interface of tasks to training loops.

A *unit* is what is sampled and what the guarantee protects (a record, or all records of one person). An *example* is
what a loss is computed for. A sampled unit contributes one of its examples to a step, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from privctl.models.choices import TaskName
from privctl.parallel import ALONE, Workers

#: Most examples and tokens per batch of ``evaluate``.
EVALUATED_EXAMPLES = 64
EVALUATED_TOKENS = 4096


#: An example, or the examples of a unit.
Item = TypeVar("Item", int, tuple[int, ...])


class Task(Protocol):
    """Data with a loss. All random draws depend only on the task's seed, the step and the example's content.

    So the same batch divided differently, distributed over processes, or computed twice has the same losses, and
    removing one record does not affect the others. None of these draws needs to be secret.
    """

    @property
    def name(self) -> TaskName:
        """The name of the task."""
        ...

    def __len__(self) -> int:
        """The number of units."""
        ...

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """The examples that ``units`` contribute to this step, in groups of similar length for one ``batch`` each."""
        ...

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """The inputs of ``examples`` on ``device``; row i of every tensor belongs to ``examples[i]``."""
        ...

    def keys(self, examples: Sequence[int]) -> list[int]:
        """A 64-bit hash of the content of each of ``examples``."""
        ...

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Each example's loss (n,) in nats, float32.

        Row i must depend on row i of ``batch`` only, whatever its padding: ``contribution.examine`` tests it.
        """
        ...

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """Scores over all examples, without dropout; they always include ``loss`` in nats.

        All ``workers`` must call it; they share the work and get the same result.
        """
        ...


def group_by_length(
    examples: Sequence[Item], length: Callable[[Item], int], max_examples: int, max_tokens: int | None = None
) -> Iterator[list[Item]]:
    """``examples`` sorted by length, longest first, in groups of at most ``max_examples`` and ``max_tokens``.

    Tokens include padding. An example longer than ``max_tokens`` is its own group. Raises ValueError for limits
    below 1.
    """
    if max_examples < 1 or (max_tokens is not None and max_tokens < 1):
        raise ValueError(f"a group of {max_examples} examples and {max_tokens} tokens holds nothing")
    group: list[Item] = []
    longest = 0  # the longest come first, so that what needs the most memory fails at once
    for example in sorted(examples, key=lambda e: (-length(e), e)):
        full = len(group) == max_examples or (max_tokens is not None and longest * (len(group) + 1) > max_tokens)
        if group and full:
            yield group
            group = []
        if not group:
            longest = length(example)
        group.append(example)
    if group:
        yield group


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the copy to a GPU is asynchronous, from pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Within the block, ``network`` is in evaluation mode and gradients are off; its modes are restored afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
