"""A test that no record of a data set is part of several of its items, as in a data set that mixes records itself.

Batches draw items. If item i is made of records i and j, as by mixup in ``__getitem__``, a record changes its own item
and those that it is mixed into. So a few items are read from a copy of the data set whose attributes note which of
their positions were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from privctl.domain.errors import CommandError
from privctl.integrations.neighbours import same_draws
from privctl.train.contribution.network_state import secret_seed

#: How many items are read first, and how often each, as mixing may be drawn with a probability.
_ITEMS, _TIMES = 4, 3
#: Methods of tensors and arrays that compute from all entries.
_STATISTICS = frozenset(("mean", "std", "var", "sum", "min", "max", "median", "norm"))
_CPU = torch.device("cpu")


def require_own_items(dataset: Any, users: Sequence[Any] | None) -> None:
    """Raise CommandError where items are seen to be made of one record, unless they are one user's of the ``users``.

    What cannot be read in this way is not judged.
    """
    while users is None and isinstance(dataset, Subset):
        dataset = dataset.dataset
    try:
        found = _shared(dataset, range(len(dataset)) if users is None else users)
    except Exception:  # of the user's code, which may not work with a copy
        return
    if found is not None:
        one, other, name = found
        raise CommandError(
            f"items {one} and {other} of the data set are made of the same record of its {name!r}, so that one record "
            "changes several examples, and no guarantee for one record follows; mix no records in __getitem__ (as "
            "mixup does), or make the mixed ones beforehand, if each of them is what you protect"
        )


def _shared(dataset: Any, owners: Sequence[Any]) -> tuple[int, int, str] | None:
    """Two items that read one position of an attribute, and its name."""
    count = len(dataset)
    reads = _Reads(dataset, count)
    if not reads.names:
        return None
    for item in sorted({count * place // _ITEMS for place in range(_ITEMS)}):
        for name, positions in reads.of(item).items():
            if len(positions) < 2:
                continue
            for other in sorted(positions - {item})[:_ITEMS]:
                if owners[other] != owners[item] and positions & reads.of(other).get(name, set()):
                    return item, other, name
    return None


class _Reads:
    """Notes which positions of attributes of ``dataset`` are read for an item.

    These are the attributes with ``count`` entries, as many as there are items.
    """

    def __init__(self, dataset: Any, count: int) -> None:
        self._copy, self._count, self._positions = copy(dataset), count, dict[str, set[int]]()
        self.names = [name for name, value in vars(dataset).items() if _has_entries(value, count)]
        for name in self.names:
            self._positions[name] = set()
            vars(self._copy)[name] = _Noting(vars(dataset)[name], self._noting(name))

    def of(self, item: int) -> dict[str, set[int]]:
        """The positions read for ``item``, by the name of the attribute."""
        for positions in self._positions.values():
            positions.clear()
        with same_draws(_CPU, secret_seed()):
            for _ in range(_TIMES):
                self._copy[item]
        return {name: set(positions) for name, positions in self._positions.items()}

    def _noting(self, name: str) -> Callable[[Any], None]:
        def note(key: Any) -> None:
            first = key[0] if isinstance(key, tuple) else key
            self._positions[name].update(np.arange(self._count)[np.asarray(first)].reshape(-1).tolist())

        return note


class _Noting(Dataset[Any]):
    """Stands for ``value`` and calls ``note`` with each key that is read."""

    def __init__(self, value: Any, note: Callable[[Any], None]) -> None:
        self._value, self._note = value, note

    def __getitem__(self, key: Any) -> Any:
        """The entry of the value."""
        if not isinstance(key, slice):  # a slice is rather a window of a series than several records
            self._note(key)
        return self._value[key]

    def __iter__(self) -> Iterator[Any]:
        """The entries of the value."""
        return iter(self._value)

    def __len__(self) -> int:
        """The length of the value."""
        return len(self._value)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the value; a statistic reads all of its entries."""
        if name in _STATISTICS:
            self._note(np.arange(len(self)))
        return getattr(self._value, name)


def _has_entries(value: Any, count: int) -> bool:
    if isinstance(value, str | bytes | tuple | range | Mapping) or (isinstance(value, Tensor) and not value.dim()):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and len(value) == count
