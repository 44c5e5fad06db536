"""What every task offers to a training loop.

A *unit* is what is sampled and what the guarantee protects (a record, or all records of one person). An *example* is
what a loss is computed for. A unit takes part in a step with one of its examples, or with several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from privctl.models.choices import TaskName
from privctl.parallel import ALONE, Workers

#: What ``evaluate`` runs at a time by default.
EVALUATED_EXAMPLES = 64
EVALUATED_TOKENS = 4096


#: An example, or the examples of a unit.
Item = TypeVar("Item", int, tuple[int, ...])


class Task(Protocol):
    """Data with a loss. Everything drawn depends on the task's seed, the step and the example's content alone.

    So the same batch cut otherwise, shared among processes, or computed twice gives the same losses, and taking one
    record away changes nothing for the others. None of these draws has to stay secret.
    """

    @property
    def name(self) -> TaskName:
        """Which task it is."""
        ...

    def __len__(self) -> int:
        """Units that are sampled."""
        ...

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """One example of each of ``units``, in groups that fit together; each group is for one ``batch``."""
        ...

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """The inputs of ``examples`` on ``device``; row i of every tensor is that of ``examples[i]``."""
        ...

    def keys(self, examples: Sequence[int]) -> list[int]:
        """A number of 64 bits for each of ``examples``, made from its content alone."""
        ...

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Each example's loss (n,) in nats, float32.

        Row i must depend on row i of ``batch`` only, whatever its padding: ``contribution.examine`` tests it.
        """
        ...

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """Measures over all examples, without dropout; ``loss`` in nats is always among them.

        All ``workers`` must ask, share the work, and get the same.
        """
        ...


def group_by_length(
    examples: Sequence[Item], length: Callable[[Item], int], max_examples: int, max_tokens: int | None = None
) -> Iterator[list[Item]]:
    """``examples`` ordered by length, longest first, in groups of at most ``max_examples`` and ``max_tokens`` padded.

    An example longer than ``max_tokens`` is a group of its own. Raises ValueError for limits below 1.
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
    """``tensor`` on ``device``; a GPU copies it from pinned memory, for which the processor does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """The network without dropout and without gradients, and afterwards as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
