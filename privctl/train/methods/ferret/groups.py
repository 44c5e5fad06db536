"""Groups of consecutive tensors that publish together.

The order is that of the network's parameters; tied weights count once, frozen ones are left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError, InputError

if TYPE_CHECKING:
    from torch import nn

#: The number of tensors in a group of FERRET-EIGHTH.
_BUCKET = 8

Groups = tuple[tuple[str, ...], ...]


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name, tied ones once. Raises InputError if there are none."""
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
    return parameters


def group_tensors(sizes: Mapping[str, int], choice: str) -> Groups:
    """The tensors in ``sizes`` (name to number of weights, in order), divided into groups by ``--groups``, ``choice``.

    ``max`` makes every tensor a group (FERRET-MAX), ``eighth`` makes groups of eight consecutive tensors, with the
    remainder in the last (FERRET-EIGHTH), and a number N makes N groups of consecutive tensors with the smallest
    possible size of the largest group (FERRET-2 is N = 2). Raises CommandError for anything else, and for more groups
    than tensors.
    """
    names = tuple(sizes)
    if choice == "max":
        return tuple((name,) for name in names)
    if choice == "eighth":
        return tuple(names[start : start + _BUCKET] for start in range(0, len(names), _BUCKET))
    if not choice.isdecimal() or not 1 <= int(choice) <= len(names):
        raise CommandError(
            f"--groups is {choice!r}; it must be max, eighth, or a number of groups from 1 to {len(names)}, the number "
            "of tensors that are trained"
        )
    least, count = max(sizes.values()), int(choice)
    capacities = range(least, sum(sizes.values()))
    larger = bisect_left(capacities, True, key=lambda capacity: len(tuple(_filled(sizes, capacity, count))) <= count)
    return tuple(_filled(sizes, least + larger, count))


def _filled(sizes: Mapping[str, int], capacity: int, count: int) -> Iterator[tuple[str, ...]]:
    """Consecutive groups of at most ``capacity`` weights, filled greedily, and at least ``count`` of them."""
    group: list[str] = []
    size_so_far, group_count = 0, 0
    for index, (name, size) in enumerate(sizes.items()):
        # If only as many tensors as groups remain, each of them must be its own group.
        scarce = len(sizes) - index <= count - group_count - 1
        if group and (size_so_far + size > capacity or scarce):
            yield tuple(group)
            group, size_so_far, group_count = [], 0, group_count + 1
        group.append(name)
        size_so_far += size
    yield tuple(group)


def repeat_groups(groups: Groups, directions: int) -> Groups:
    """Each group ``directions`` times in a row, once for each direction that it can publish along."""
    return tuple(group for group in groups for _ in range(directions))


def group_sizes(groups: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> list[int]:
    """The number of weights in each group."""
    return [sum(sizes[name] for name in group) for group in groups]
