"""Which tensors publish together: groups of consecutive parameters.

Order is that in which the network names its parameters; a tied weight counts once, a frozen one not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError, InputError

if TYPE_CHECKING:
    from torch import nn

#: Tensors in a bucket of FERRET-EIGHTH.
_BUCKET = 8

Groups = tuple[tuple[str, ...], ...]


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name, tied ones once. Raises InputError where there is none."""
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
    return parameters


def cut(sizes: Mapping[str, int], asked: str) -> Groups:
    """``sizes`` (numbers a tensor, in order) in groups as ``asked``.

    ``max`` makes every tensor a group (FERRET-MAX), ``eighth`` takes eight consecutive ones at a time, the last group
    what is left (FERRET-EIGHTH), and a number N makes N groups of consecutive tensors of which the largest holds as few
    numbers as it can (FERRET-2 is N = 2). Raises CommandError for anything else, and for more groups than tensors.
    """
    names = tuple(sizes)
    if asked == "max":
        return tuple((name,) for name in names)
    if asked == "eighth":
        return tuple(names[start : start + _BUCKET] for start in range(0, len(names), _BUCKET))
    if not asked.isdecimal() or not 1 <= int(asked) <= len(names):
        raise CommandError(
            f"--groups is {asked!r}; it must be max, eighth, or a number of groups from 1 to {len(names)}, the number "
            "of tensors that are trained"
        )
    least, count = max(sizes.values()), int(asked)
    capacities = range(least, sum(sizes.values()))
    larger = bisect_left(capacities, True, key=lambda capacity: len(tuple(_filled(sizes, capacity, count))) <= count)
    return tuple(_filled(sizes, least + larger, count))


def _filled(sizes: Mapping[str, int], capacity: int, count: int) -> Iterator[tuple[str, ...]]:
    """Consecutive groups of at most ``capacity`` numbers, each as full as can be, and ``count`` at least."""
    group: list[str] = []
    held, made = 0, 0
    for place, (name, size) in enumerate(sizes.items()):
        # Each tensor left must be a group of its own where only as many are left as groups are.
        scarce = len(sizes) - place <= count - made - 1
        if group and (held + size > capacity or scarce):
            yield tuple(group)
            group, held, made = [], 0, made + 1
        group.append(name)
        held += size
    yield tuple(group)


def repeated(groups: Groups, directions: int) -> Groups:
    """Each group ``directions`` times, its copies one after another: what publishes along as many directions."""
    return tuple(group for group in groups for _ in range(directions))


def numbers(groups: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> list[int]:
    """How many numbers each group holds."""
    return [sum(sizes[name] for name in group) for group in groups]
