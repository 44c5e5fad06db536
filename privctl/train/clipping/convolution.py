"""Convolutions: linear layers applied to patches, with the patches of only a few examples in memory at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.train.clipping.gram import gram_slack, outer_squares
from privctl.train.clipping.linear import forming_is_cheaper
from privctl.train.clipping.products import batched_product, operand
from privctl.train.clipping.terms import (
    CACHED_BYTES,
    CHUNK_BYTES,
    Dense,
    GradientTerm,
    Squares,
    add_or_take,
    chunk_bytes,
    chunks,
)
from privctl.train.clipping.use import ModuleCall

#: On a CPU, bytes for the patches of a chunk of examples: small chunks need less memory and take no longer.
CACHED_PATCHES = 4 << 20

#: Up to this many weights, torch's CPU kernel forms gradients fastest with the examples as groups of one convolution,
#: which beats Gram matrices from a number of positions on that is lower by this factor than for the other methods.
MANY_WEIGHTS, FEWER_POSITIONS = 100_000, 3

#: With more weights, calling the kernel once per example beats copying patches from this many positions on.
LARGE_IMAGE = 256

#: Operations for which the sums of a pixel's Gram matrix over the kernel count, in addition to one for each channel.
SHIFTED_SUM = 20

#: With up to this many input channels per group, copying patches is fastest, except for depthwise convolutions.
FEW_CHANNELS = 4


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
    shape: tuple[int, ...]  # of the parameter: one dimension less for Conv1d

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        patches, gradients = self._pair(rows)
        if patches.shape[2] < gradients.shape[2]:  # faster in this order for few input channels
            return batched_product(patches.mT, gradients).mT.reshape(-1, *self.shape)
        return batched_product(gradients.mT, patches).reshape(-1, *self.shape)

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        limit = chunk_bytes(self.inputs) if self.inputs.is_cuda else CACHED_PATCHES
        positions = self.gradients[0, 0].numel()
        if self.pixels_are_cheaper():
            bytes_each = 4 * self.geometry.groups * (self._pixel_pairs() + 3 * positions**2)
            measure = self._pixel_squares
        else:
            measure, bytes_each = self._patch_squares, self._patch_bytes()
        measured_parts = [measure(rows) for rows in chunks(len(self.inputs), bytes_each, limit)]
        square, slack = (
            torch.cat(parts).view(len(self.inputs), -1).sum(1) for parts in zip(*measured_parts, strict=True)
        )
        return Squares(square, slack)

    def pixels_are_cheaper(self) -> bool:
        """Whether Gram matrices of pixels are estimated to take less time than those of patches.

        Patches hold a pixel once for each kernel position that reads it; they are better for kernels that do not
        overlap, as in the patch embedding of a vision transformer, and for few channels.
        """
        positions, (_, channels, height, width) = self.gradients[0, 0].numel(), self.geometry.weight
        by_pixels = self._pixel_pairs() * (channels + SHIFTED_SUM)
        return positions > 1 and by_pixels < height * width * positions**2 * channels

    def _patch_squares(self, rows: slice) -> Squares:
        """Squares (r groups,) from Gram matrices of patches."""
        patches, gradients = self._pair(rows)
        return outer_squares(patches, [gradients])[0]

    def _pixel_squares(self, rows: slice) -> Squares:
        """The same from Gram matrices of pixels, which are shifted over the kernel and summed to those of patches."""
        gradients = operand(self.gradients[rows])
        gradients = gradients.reshape(len(gradients) * self.geometry.groups, -1, gradients[0, 0].numel())
        gram = self._gram_of_patches(operand(self.inputs[rows]))
        gram = gram.flatten(3).flatten(1, 2)
        product = batched_product(gradients.mT, gradients)
        of_inputs, of_gradients = (
            each.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt().double() for each in (gram, product)
        )
        sizes = of_inputs.new_tensor((gram.shape[1], math.prod(self.geometry.weight[1:]), gradients.shape[1]))
        lengths = (of_inputs * of_gradients).sum(1)
        slack = gram_slack(lengths, of_inputs.sum(1), of_gradients.sum(1), sizes)
        return Squares(product.mul_(gram).sum((1, 2), dtype=torch.float64).clamp(min=0), slack)

    def _gram_of_patches(self, inputs: Tensor) -> Tensor:
        """Inner products of patches, (r groups, h', w', h', w').

        Pixels whose distance is a multiple of the stride form one lattice; only pixels of the same lattice are
        multiplied with each other. Shifts are summed over rows first, then over columns.
        """
        g, (height, width) = self.geometry, self.gradients.shape[2:]
        batch = len(inputs) * g.groups
        total = inputs.new_zeros((batch, height, width, height, width), dtype=torch.float32)
        for first_column, right in self._lattices(1):
            columns = inputs[..., first_column :: g.stride[1]]
            across = columns.shape[3]
            summed = total.new_zeros((batch, height, across, height, across))
            for first_row, down in self._lattices(0):
                pixels = columns[:, :, first_row :: g.stride[0]]
                high = pixels.shape[2]
                pixels = pixels.reshape(batch, pixels.shape[1] // g.groups, -1)
                gram = batched_product(pixels.mT, pixels).view(batch, high, across, high, across)
                for shift in down:
                    target, source = _overlap(shift, height, high)
                    summed[:, target, :, target] += gram[:, source, :, source]
            for shift in right:
                target, source = _overlap(shift, width, across)
                total[:, :, target, :, target] += summed[:, :, source, :, source]
        return total

    def _lattices(self, axis: int) -> list[tuple[int, list[int]]]:
        """The first pixel of each lattice along an axis (0: rows), and its kernel shifts in units of the stride."""
        g = self.geometry
        stride, shifts = g.stride[axis], dict[int, list[int]]()
        for tap in range(g.weight[2 + axis]):
            shift, first = divmod(tap * g.dilation[axis] - g.padding[axis], stride)
            shifts.setdefault(first, []).append(shift)
        return [(first, lattice) for first, lattice in shifts.items() if first < self.inputs.shape[2 + axis]]

    def _pixel_pairs(self) -> int:
        """How many products of two pixels ``_gram_of_patches`` forms per channel."""
        sizes = [
            [len(range(first, pixels, stride)) for first, _ in self._lattices(axis)]
            for axis, (pixels, stride) in enumerate(zip(self.inputs.shape[2:], self.geometry.stride, strict=True))
        ]
        return sum((high * across) ** 2 for high, across in itertools.product(*sizes))

    def slack(self) -> Tensor:
        """The squared norms (n,) float64 if nothing cancelled; see ``Squares``."""
        return self.squares().slack

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        scaled = self.gradients.to(total.dtype) * factors.to(total.dtype)[:, None, None, None]
        return add_or_take(total, self._sum_of(self.inputs.to(total.dtype), scaled), fresh=fresh)

    def _formed_by_kernel(self) -> Tensor:
        """All gradients (n, *shape), by whichever of torch's kernels is fastest on a CPU."""
        inputs, gradients, count = operand(self.inputs), operand(self.gradients), len(self.inputs)
        if self._is_pointwise():
            return self.example_gradients(slice(None))
        depthwise = self.geometry.weight[1] == 1 < self.geometry.groups
        if self.geometry.weight[1] <= FEW_CHANNELS and not depthwise:
            return self._formed_from_patches(CACHED_BYTES)
        if math.prod(self.shape) > MANY_WEIGHTS and not depthwise:
            formed = torch.empty((count, *self.shape), dtype=gradients.dtype, device=gradients.device)
            for i in range(count):
                formed[i] = self._sum_of(inputs[i : i + 1], gradients[i : i + 1])
            return formed
        gradients_of_groups = self._weight_gradient(inputs.flatten(0, 1)[None], gradients.flatten(0, 1)[None], count)
        return gradients_of_groups.view(count, *self.shape)

    def _formed_from_patches(self, limit: int) -> Tensor:
        """All gradients, from patches of about ``limit`` bytes at a time."""
        return torch.cat([self.example_gradients(r) for r in chunks(len(self.inputs), self._patch_bytes(), limit)])

    def _sum_of(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """The gradient summed over these examples."""
        return self._weight_gradient(inputs, gradients, 1).view(self.shape)

    def _weight_gradient(self, inputs: Tensor, gradients: Tensor, times: int) -> Tensor:
        """The weight gradient of this convolution with ``times`` as many groups."""
        g = self.geometry
        shape = (times * g.weight[0], *g.weight[1:])
        weight = inputs.new_empty(shape)  # only its shape matters; an expanded tensor would be copied
        gradient: Tensor = torch.ops.aten.convolution_backward(
            gradients, inputs, weight, None, g.stride, g.padding, g.dilation, False, (0, 0), times * g.groups,
            (False, True, False),
        )[1]  # fmt: skip
        return gradient

    def _is_pointwise(self) -> bool:
        """Whether a patch is one pixel."""
        return math.prod(self.geometry.weight[2:]) == 1 and not any(self.geometry.padding)

    def _pair(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Patches (r groups, T, d) and gradients (r groups, T, p), with the features of one group each."""
        g = self.geometry
        inputs, gradients = operand(self.inputs[rows]), operand(self.gradients[rows])
        if self._is_pointwise():
            patches = inputs[:, :, :: g.stride[0], :: g.stride[1]].flatten(2)
        else:
            patches = self._patches(inputs)
        batch = len(inputs) * g.groups
        return patches.reshape(batch, -1, patches.shape[2]).mT, gradients.reshape(batch, -1, patches.shape[2]).mT

    def _patches(self, inputs: Tensor) -> Tensor:
        """Patches (r, d height width, T), as ``unfold`` gives them; faster on a CPU."""
        g = self.geometry
        padded = functional.pad(inputs, (g.padding[1], g.padding[1], g.padding[0], g.padding[0]))
        row, channel, down, right = padded.stride()
        shape = (len(padded), padded.shape[1], *g.weight[2:], *self.gradients.shape[2:])
        steps = (g.dilation[0] * down, g.dilation[1] * right, g.stride[0] * down, g.stride[1] * right)
        view = padded.as_strided(shape, (row, channel, *steps), padded.storage_offset())
        return view.flatten(4).flatten(1, 3)

    def _patch_bytes(self) -> int:
        return (
            4 * self.gradients[0, 0].numel() * self.inputs.shape[1] * self.geometry.weight[2] * self.geometry.weight[3]
        )

    def cheapest(self) -> GradientTerm:
        """Per-example gradients if forming them is cheaper than Gram matrices; otherwise the term itself."""
        outputs, inputs = self.geometry.weight[0] // self.geometry.groups, torch.Size(self.geometry.weight[1:]).numel()
        positions, few = self.gradients[0, 0].numel(), math.prod(self.shape) <= MANY_WEIGHTS
        by_groups = few and not self.inputs.is_cuda
        if not forming_is_cheaper(positions * FEWER_POSITIONS if by_groups else positions, inputs, outputs):
            return self
        if by_groups or (not self.inputs.is_cuda and positions >= LARGE_IMAGE):
            return Dense(self._formed_by_kernel())
        return Dense(self._formed_from_patches(CHUNK_BYTES))


def _overlap(shift: int, outputs: int, pixels: int) -> tuple[slice, slice]:
    """The range of outputs i for which pixel i + ``shift`` exists, and the range of those pixels."""
    start, stop = max(0, -shift), min(outputs, pixels - shift)
    return slice(start, max(start, stop)), slice(start + shift, max(start, stop) + shift)


def convolution(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's Conv1d and Conv2d, with any stride, padding, dilation and groups."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    inputs, gradients = use.in_one_precision()
    terms: dict[str, GradientTerm] = {}
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
        terms["weight"] = Convolved(inputs, wide, geometry, shape).cheapest()
    if "bias" in use.names:
        terms["bias"] = Dense(gradients.flatten(2).sum(2, dtype=torch.promote_types(gradients.dtype, torch.float32)))
    return terms


def _in_two_dimensions(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Geometry:
    """The geometry in two dimensions; a one-dimensional convolution gets height 1."""
    if len(shape) == 4:
        return Geometry(weight=shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Geometry(
        weight=(*shape[:2], 1, shape[2]),
        stride=(1, *stride),
        padding=(0, *padding),
        dilation=(1, *dilation),
        groups=groups,
    )
