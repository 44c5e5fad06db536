"""Finds the first module whose output for a record in a batch differs from that for the record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.use import tensors_in

#: A relative difference that exceeds the rounding error of any output.
_TOLERANCE = 1e-3

#: One row of the first output tensor of each module call, by name and number of the call, in the order they ended.
_Trace = dict[tuple[str, int], Tensor]


def first_differing_module(
    network: nn.Module, alone: Callable[[], Tensor], among: Callable[[], Tensor], row: int
) -> str | None:
    """The module, by name and class, whose output for the record in ``row`` of ``among`` is the first to differ.

    Positions that only one of the two outputs has are ignored. None if no module differs.
    """
    alone_trace, batch_trace = _trace(network, alone, 0), _trace(network, among, row)
    modules = dict(network.named_modules())
    for (name, call), output in alone_trace.items():
        batch_output = batch_trace.get((name, call))
        if batch_output is None or output.dim() != batch_output.dim():
            continue
        common = tuple(slice(0, min(pair)) for pair in zip(output.shape, batch_output.shape, strict=True))
        gap = (output[common] - batch_output[common]).norm()
        if not float(gap) <= _TOLERANCE * float(output[common].norm() + 1e-6):
            return f"{name!r} ({type(modules[name]).__name__})"
    return None


def _trace(network: nn.Module, losses_of: Callable[[], Tensor], row: int) -> _Trace:
    outputs: _Trace = {}
    calls: Counter[str] = Counter()
    rows = [0]

    def count(module: nn.Module, arguments: Any, keywords: Any) -> None:
        rows[0] = next((len(t) for t in tensors_in((arguments, keywords)) if t.dim()), 0)

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        calls[name] += 1
        tensor = next((t for t in tensors_in(output) if t.is_floating_point() and t.dim() > 1), None)
        if tensor is not None and len(tensor) == rows[0]:
            outputs[name, calls[name]] = tensor[row].detach().float().cpu()

    with ExitStack() as stack, torch.no_grad():
        stack.callback(network.register_forward_pre_hook(count, with_kwargs=True).remove)
        for name, module in network.named_modules():
            stack.callback(module.register_forward_hook(partial(note, name)).remove)
        losses_of()
    return outputs
