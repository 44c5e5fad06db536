"""Convolutions: each way to measure and to form gradients against autograd, one example at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privctl.train.clipping.convolution import FEW_CHANNELS, Convolved, Geometry

COUNT = 3
#: Shape of the weight, of the images, stride, padding, dilation and groups.
GEOMETRIES = {
    "plain": ((4, 2, 3, 3), (5, 6), (1, 1), (0, 0), (1, 1), 1),
    "padded": ((4, 2, 3, 3), (5, 4), (1, 1), (1, 1), (1, 1), 1),
    "padded beyond the kernel": ((2, 2, 1, 2), (3, 4), (1, 1), (2, 3), (1, 1), 1),
    "strided": ((4, 2, 3, 3), (8, 7), (2, 2), (1, 1), (1, 1), 1),
    "strides past the kernel": ((4, 6, 2, 1), (9, 8), (3, 2), (0, 0), (1, 1), 1),
    "strides unlike": ((4, 2, 5, 3), (9, 7), (2, 3), (2, 1), (1, 1), 1),
    "dilated over a stride": ((4, 6, 3, 2), (11, 9), (2, 2), (2, 1), (3, 2), 1),
    "grouped": ((6, 2, 3, 3), (5, 5), (1, 2), (1, 0), (1, 1), 2),
    "depthwise": ((8, 1, 3, 3), (5, 6), (1, 1), (1, 1), (1, 1), 4),
    "many channels": ((3, 6, 3, 3), (6, 5), (1, 1), (1, 1), (1, 1), 1),
    "row": ((4, 3, 1, 4), (1, 12), (1, 2), (0, 1), (1, 1), 1),
}


def convolution_case(name: str) -> tuple[Convolved, Tensor]:
    """Random inputs and gradients, and each example's gradient as autograd has it, in double precision."""
    shape, size, stride, padding, dilation, groups = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(len(name))
    inputs = torch.randn(COUNT, shape[1] * groups, *size, generator=generator)
    weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    output = functional.conv2d(inputs.double(), weight, None, stride, padding, dilation, groups)
    gradients = torch.randn(output.shape, generator=generator)
    expected = [
        torch.autograd.grad(each, weight, gradient.double(), retain_graph=True)[0]
        for each, gradient in zip(output, gradients, strict=True)
    ]
    geometry = Geometry(weight=shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Convolved(inputs, gradients, geometry, shape), torch.stack(expected)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_norms_by_pixels_and_by_patches(name: str) -> None:
    term, expected = convolution_case(name)
    squares = expected.flatten(1).square().sum(1)
    for found in (term._pixel_squares(slice(None)), term._patch_squares(slice(None))):
        torch.testing.assert_close(found.square.view(COUNT, -1).sum(1), squares, rtol=1e-5, atol=0)
    slacks = [squared_norms(slice(None)).slack for squared_norms in (term._pixel_squares, term._patch_squares)]
    torch.testing.assert_close(*slacks, rtol=1e-5, atol=0)
    torch.testing.assert_close(term.squares().square, squares, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradients_by_the_kernel_and_from_patches(name: str) -> None:
    term, expected = convolution_case(name)
    for found in (term._formed_by_kernel(), term._formed_from_patches(1), term._formed_from_patches(1 << 20)):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    factors = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    summed = (factors[:, None] * expected.flatten(1)).sum(0).view(expected.shape[1:])
    found = term.add_weighted(torch.empty(expected.shape[1:]), factors, fresh=True)
    torch.testing.assert_close(found.double(), summed, rtol=1e-4, atol=1e-4)


def test_the_cases_have_few_channels_and_many() -> None:
    channels = [shape[1] for shape, *_ in GEOMETRIES.values()]
    assert min(channels) <= FEW_CHANNELS < max(channels)


def test_products_of_pixels_are_counted() -> None:
    term, _ = convolution_case("strides past the kernel")  # of 3 rows by 2 columns of lattices, the kernel meets 2 by 1
    assert term._pixel_pairs() == 2 * (3 * 4) ** 2
    assert convolution_case("padded")[0]._pixel_pairs() == 20**2


@pytest.mark.parametrize(
    ("weight", "size", "stride", "padding", "by_pixels"),
    [
        ((32, 3, 8, 8), 32, 8, 0, False),  # the patch embedding of a vision transformer: no pixel is in two patches
        ((192, 3, 16, 16), 112, 16, 0, False),
        ((32, 3, 7, 7), 64, 4, 3, False),  # overlapping patches of few channels
        ((128, 64, 3, 3), 16, 2, 1, True),  # measured: 0.56 of the time, and 0.30 for the next one
        ((256, 128, 3, 3), 8, 2, 1, True),
    ],
)
def test_pixels_are_used_where_patches_repeat_many_of_them(
    weight: tuple[int, ...], size: int, stride: int, padding: int, by_pixels: bool
) -> None:
    outputs = (size + 2 * padding - weight[2]) // stride + 1
    geometry = Geometry(weight=weight, stride=(stride,) * 2, padding=(padding,) * 2, dilation=(1, 1), groups=1)
    inputs, gradients = torch.empty(1, weight[1], size, size), torch.empty(1, weight[0], outputs, outputs)
    assert Convolved(inputs, gradients, geometry, weight).pixels_are_cheaper() == by_pixels
