"""Counts the bytes that a computation's tensors hold: what a GPU would hold, apart from its libraries' workspaces."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from privctl.train.clipping.shards import own_part


class TensorBytes(TorchDispatchMode):
    """Counts the bytes ``held`` by tensors created between ``start`` and ``stop``, and their peak, ``most``.

    Earlier tensors are not counted, and memory shared by several tensors is counted once. Memory that is freed or
    reallocated while its tensor lives is tracked: FSDP keeps the tensors into which it gathers parameters, and empties
    them by ``UntypedStorage.resize_``, which is not dispatched. Of a sharded tensor this process's part is counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0
        self._known: dict[int, int] = {}
        self._running = False
        self._resize: Any = torch.UntypedStorage.resize_

    def start(self) -> None:
        """Begin counting."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self._running = True
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            self._update(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]

    def stop(self) -> None:
        """Stop counting, if it has not been stopped."""
        if self._running:
            self._running = False
            torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def reset_peak(self) -> None:
        """Restart the peak ``most`` from the current ``held``."""
        self.most = self.held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(result, (args, kwargs))
        return result

    def count(self, result: Any, given: Any) -> None:
        """Count the tensors in the ``result`` of an operation, but not those that share memory with one ``given``."""
        shared: set[int] | None = None
        for tensor in _tensors(result):
            if tensor.device.type == "meta":
                continue  # has no memory
            storage = tensor.untyped_storage()
            place = storage._cdata
            if place not in self._known:
                if shared is None:
                    shared = {tensor.untyped_storage()._cdata for tensor in _tensors(given)}
                if place in shared:
                    continue
                self._known[place] = 0
                weakref.finalize(storage, self._drop, place)
            self._update(storage)

    def _update(self, storage: torch.UntypedStorage) -> None:
        """Update the count of a known ``storage``, which may have been resized."""
        place = storage._cdata
        if place in self._known:
            size = storage.nbytes()
            self.held += size - self._known[place]
            self._known[place] = size
            self.most = max(self.most, self.held)

    def _drop(self, place: int) -> None:
        self.held -= self._known.pop(place, 0)


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operation, which only nests them in these containers."""
    if isinstance(values, Tensor):
        yield own_part(values)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def bytes_of(network: nn.Module) -> int:
    """The bytes of the network's parameters and buffers that this process holds, each once."""
    return sum(own_part(tensor).nbytes for tensor in (*network.parameters(), *network.buffers()))
