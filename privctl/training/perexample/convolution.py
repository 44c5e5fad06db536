"""Convolutions: linear layers on patches, with the patches of a few examples at a time in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.training.perexample.linear import forming_is_cheaper, outer_squares
from privctl.training.perexample.products import batched, operand, same_precision
from privctl.training.perexample.terms import Dense, Squares, Term, add_or_write, chunks
from privctl.training.perexample.use import Use

#: With this many positions, a processor's own kernel called once an example beats copying patches for all of them.
LARGE_IMAGE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A two-dimensional convolution; ``weight`` is the shape (p, d / groups, height, width) of its parameter."""

    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True, slots=True)
class Convolved:
    """Gradients of a convolution's weight from its inputs (n, c, h, w) and output gradients (n, p, h', w')."""

    inputs: Tensor
    gradients: Tensor
    geometry: Geometry
    shape: tuple[int, ...]  # the parameter's own: one dimension less for Conv1d

    def example_gradients(self, rows: slice) -> Tensor:
        """Form the gradients of some examples."""
        patches, gradients = self._pair(rows)
        formed = batched(gradients.mT, patches)
        return formed.reshape(-1, *self.shape)

    def squares(self) -> Squares:
        """Measure all gradients."""
        found = []
        for rows in chunks(len(self.inputs), self._patch_bytes()):
            patches, gradients = self._pair(rows)
            found.append(outer_squares(patches, [gradients])[0])
        square, slack = (torch.cat(parts).view(len(self.inputs), -1).sum(1) for parts in zip(*found, strict=True))
        return Squares(square, slack)

    def slack(self) -> Tensor:
        """Bound what was added, as if nothing cancelled."""
        return self.squares().slack

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> None:
        """Add the weighted sum to ``total``."""
        scaled = self.gradients.to(total.dtype) * factors.to(total.dtype)[:, None, None, None]
        add_or_write(total, self._summed(self.inputs.to(total.dtype), scaled), fresh=fresh)

    def _summed(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """The gradient of these examples together."""
        g = self.geometry
        weight = inputs.new_empty(1).expand(g.weight)  # its shape is asked for, its values are not
        found: Tensor = torch.ops.aten.convolution_backward(
            gradients, inputs, weight, None, g.stride, g.padding, g.dilation, False, (0, 0), g.groups,
            (False, True, False),
        )[1]  # fmt: skip
        return found.view(self.shape)

    def _pair(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Patches (r groups, T, d) and gradients (r groups, T, p), with the features of one group each."""
        g = self.geometry
        inputs, gradients = operand(self.inputs[rows]), operand(self.gradients[rows])
        patches = functional.unfold(inputs, g.weight[2:], g.dilation, g.padding, g.stride)
        cut = len(inputs) * g.groups
        return patches.reshape(cut, -1, patches.shape[2]).mT, gradients.reshape(cut, -1, patches.shape[2]).mT

    def _patch_bytes(self) -> int:
        return (
            4 * self.gradients[0, 0].numel() * self.inputs.shape[1] * self.geometry.weight[2] * self.geometry.weight[3]
        )

    def cheapest(self) -> Term:
        """Per-example gradients where they are cheaper than Gram matrices."""
        outputs, inputs = self.geometry.weight[0] // self.geometry.groups, torch.Size(self.geometry.weight[1:]).numel()
        if not forming_is_cheaper(self.gradients[0, 0].numel(), inputs, outputs):
            return self
        if not self.inputs.is_cuda and self.gradients[0, 0].numel() >= LARGE_IMAGE:
            alone = [slice(i, i + 1) for i in range(len(self.inputs))]
            pairs = ((operand(self.inputs[row]), operand(self.gradients[row])) for row in alone)
            return Dense(torch.stack([self._summed(*pair) for pair in pairs]))
        parts = [self.example_gradients(rows) for rows in chunks(len(self.inputs), self._patch_bytes())]
        return Dense(torch.cat(parts))


def convolution(module: nn.Module, use: Use) -> dict[str, Term]:
    """Torch's Conv1d and Conv2d, with any stride, padding, dilation and groups."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    inputs, gradients = same_precision(use.first, use.gradient)
    found: dict[str, Term] = {}
    if "weight" in use.names:
        padding: tuple[int, ...] = (0,) * (inputs.dim() - 2)
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            inputs = functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        else:
            padding = module.padding
        shape = tuple(module.weight.shape)
        geometry = _in_two_dimensions(shape, module.stride, padding, module.dilation, module.groups)
        if inputs.dim() == 3:
            inputs, wide = inputs[:, :, None], gradients[:, :, None]
        else:
            wide = gradients
        found["weight"] = Convolved(inputs, wide, geometry, shape).cheapest()
    if "bias" in use.names:
        found["bias"] = Dense(gradients.flatten(2).sum(2, dtype=torch.promote_types(gradients.dtype, torch.float32)))
    return found


def _in_two_dimensions(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Geometry:
    """A one-dimensional convolution is one of height 1."""
    if len(shape) == 4:
        return Geometry(weight=shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Geometry(
        weight=(*shape[:2], 1, shape[2]),
        stride=(1, *stride),
        padding=(0, *padding),
        dilation=(1, *dilation),
        groups=groups,
    )
