"""A GPU's way through the code on a processor: counts what one would be asked for, and computes the real numbers.

Tensors say that they are on a GPU, so that the code takes the way that it takes there; products of half precision with
a float32 result, which processors lack, are computed in float32. Kernels are counted as PyTorch's operations, of which
a GPU may start more than one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from privctl.models.tasks import language
from privctl.models.tasks.base import moved
from privctl.train.clipping import terms
from privctl.train.network.tensor_bytes import TensorBytes
from tests.launches import Launches

_ATEN: Any = torch.ops.aten
_WIDENED = {_ATEN.bmm.dtype: torch.bmm, _ATEN.mm.dtype: torch.mm}
_GIB = 2**30


class Emulated(Launches):
    """Inside also counts the bytes ``copied`` to the device, and those of the ``tensors`` that are made there."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0
        self.tensors = TensorBytes()

    def forget(self) -> None:
        """Count from now on; what is held stays so."""
        self.kernels.clear()
        self.syncs.clear()
        self.copied = 0
        self.tensors.reset_peak()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WIDENED:
            self.kernels[str(func)] += 1
            result = _WIDENED[func](args[0].float(), args[1].float())
        else:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        self.tensors.count(result, (args, kwargs))
        return result

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """In place of ``moved``."""
        self.copied += tensor.nbytes
        return moved(tensor, device)


@contextmanager
def emulated(card_gib: int = 80) -> Iterator[Emulated]:
    """Inside, the code takes a GPU's way, of a card of that memory, and is counted."""
    counted = Emulated()
    card = SimpleNamespace(total_memory=card_gib * _GIB)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True), create=True))
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", return_value=card))
        stack.enter_context(mock.patch.object(language, "moved", counted.copy))
        stack.callback(terms._of_card.cache_clear)
        terms._of_card.cache_clear()
        stack.enter_context(counted)
        yield counted
