"""Weights that move along a direction and back without rounding, so that no copy of them is needed.

Each tensor's weights are multiples of a power of two, its spacing, by factors of at most 2^22, and they move by a
multiple of it too. A float32 holds every multiple up to 2^24, so the moved weights are exact, and moving back restores
the same bits. Rounding onto the grid changes a weight by at most 2^-23 of the tensor's largest, and depends only on the
weights, which are released anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privctl.domain.errors import DivergedError, InputError
from privctl.train.directional.directions import sign_pieces

#: The number of binary digits of the largest weight, two fewer than in a float32.
_DIGITS = 22
#: A perturbation of fewer spacings would be rounded too coarsely.
_LEAST = 4


class MovableWeights:
    """The trained tensors of a network, by name; each is float32 and contiguous."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], seed: bytes, perturbation: float) -> None:
        """``seed`` generates the directions. Raises InputError for other tensors, and if there are none."""
        for name, parameter in parameters.items():
            if parameter.dtype is not torch.float32 or not parameter.is_contiguous():
                raise InputError(
                    f"tensor {name!r} is not float32 in one piece, in which weights move and come back exactly; load "
                    "the model as float32"
                )
        if not parameters:
            raise InputError("no weight is trained; check --train")
        self._flat = {name: parameter.detach().view(-1) for name, parameter in parameters.items()}
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._device = next(iter(parameters.values())).device
        self._seed, self._perturbation = seed, perturbation
        self._distances = dict.fromkeys(parameters, perturbation)

    @property
    def numbers(self) -> int:
        """The number of weights."""
        return sum(flat.numel() for flat in self._flat.values())

    def onto_grid(self) -> None:
        """Round each tensor onto the finest grid on which its largest weight moves exactly.

        Raises DivergedError for weights that are not finite, InputError for weights so large that the perturbation is
        only a few grid spacings.
        """
        for name, flat in self._flat.items():
            largest = max((abs(float(end)) for end in torch.aminmax(flat)), default=0.0) if flat.numel() else 0.0
            if not math.isfinite(largest):
                raise DivergedError(
                    f"parameter {name!r} holds NaN or infinity; the training diverged: lower --learning-rate, or raise "
                    "--batch-size"
                )
            spacing = math.ldexp(1.0, math.frexp(max(largest, self._perturbation))[1] - _DIGITS)
            steps = round(self._perturbation / spacing)
            if steps < _LEAST:
                raise InputError(
                    f"--perturbation {self._perturbation:g} is lost beside the weights of {name!r}, which reach "
                    f"{largest:.3g}; raise it to {2 * _LEAST * spacing:.2g} at least"
                )
            flat.div_(spacing).round_().mul_(spacing).add_(0.0)  # moving back would lose the sign of a negative zero
            self._distances[name] = steps * spacing

    def move(self, step: int, direction: int, times: int) -> None:
        """Move the weights, which are on their grids, exactly by ``times`` perturbations along a step's direction."""
        for name, begin, signs in self._pieces(step, direction):
            self._flat[name][begin : begin + len(signs)].add_(signs, alpha=times * self._distances[name])

    @contextmanager
    def moved(self, step: int, direction: int) -> Iterator[Iterator[int]]:
        """Yield an iterator over the signs 1 and -1 that moves the weights by each; restores every bit at the end."""
        offset = 0

        def signs() -> Iterator[int]:
            nonlocal offset
            for sign in (1, -1):
                self.move(step, direction, sign - offset)
                offset = sign
                yield sign

        try:
            yield signs()
        finally:
            if offset:
                self.move(step, direction, -offset)

    def descend(self, step: int, amounts: Tensor, decay: float) -> None:
        """Decay the weights by ``decay`` and subtract ``amounts`` (directions,) float64 times the step's directions.

        A sign times an amount is exact, so each weight is rounded once per direction, identically on every machine.
        """
        for flat in self._flat.values():
            if decay:
                flat.mul_(1 - decay)
        for direction, amount in enumerate(amounts.tolist()):
            for name, begin, signs in self._pieces(step, direction):
                self._flat[name][begin : begin + len(signs)].add_(signs, alpha=-amount)

    def _pieces(self, step: int, direction: int) -> Iterator[tuple[str, int, Tensor]]:
        return sign_pieces(self._seed, step, direction, self._shapes, self._device)
