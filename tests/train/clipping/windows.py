"""Layers that compute on windows of each example, which are rows to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Positions of an example, and features of a position.
PLACES, WIDTH = 8, 8


class Windows(nn.Module):
    """A convolution over windows of each example, which are rows to it, in an order of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (2, -1)).transpose(0, 1)  # (2, n, T / 2, d)
        mixed = self.mix(windows.flatten(0, 1).mT).mT.unflatten(0, windows.shape[:2])
        return mixed.transpose(0, 1).flatten(1, 2)


class WindowBias(nn.Module):
    """A trained bias for the pairs of positions in a window, with a first dimension of one for all windows."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(PLACES, PLACES))

    def forward(self, size: int) -> Tensor:
        return self.bias[:size, :size].tanh()[None]


class WindowAttention(nn.Module):
    """Attention within windows, which are the rows of its input, (n W, T / W, d)."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.bias = nn.Linear(WIDTH, WIDTH), WindowBias()

    def forward(self, windows: Tensor) -> Tensor:
        return (windows @ windows.mT + self.bias(windows.shape[1])).softmax(-1) @ self.values(windows)


class ShiftedWindows(nn.Module):
    """Attention within two windows of each example; the windows of an example are consecutive rows, or not."""

    def __init__(self, *, consecutive: bool = True) -> None:
        super().__init__()
        self.attention, self.consecutive = WindowAttention(), consecutive

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (2, -1))  # (n, 2, T / 2, d)
        if self.consecutive:
            return self.attention(windows.flatten(0, 1)).view_as(x)
        mixed = self.attention(windows.transpose(0, 1).flatten(0, 1))
        return mixed.unflatten(0, (2, len(x))).transpose(0, 1).flatten(1, 2)
