"""Networks whose parameters have no memory yet, for processes that receive their shard of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def without_parameters() -> Iterator[None]:
    """Within the block, the parameters of new modules are on the meta device.

    Buffers and other tensors are computed as usual, since no file holds all of them (rotary frequencies, for instance).
    """
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        plain(module, name, param)
        if param is not None and not param.is_meta:  # a meta parameter may be tied, and must stay the same object
            empty = torch.empty_like(param, device="meta")
            module._parameters[name] = nn.Parameter(empty, requires_grad=param.requires_grad)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def layout_of(network: Any) -> bytes:
    """JSON of the names, shapes and types of the network's parameters and buffers, and of which are tied."""
    first: dict[int, str] = {}
    parameters = [
        [name, first.setdefault(id(tensor), name), list(tensor.shape), str(tensor.dtype)]
        for name, tensor in network.named_parameters(remove_duplicate=False)
    ]
    buffers = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in network.named_buffers()]
    return json.dumps([parameters, buffers]).encode()
