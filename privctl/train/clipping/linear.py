"""Linear layers: per-example gradients are sums of outer products, and are formed only if that is cheaper.

Squared norms come from Gram matrices, |sum_t g_t a_t^T|^2 = sum_st <a_s, a_t> <g_s, g_t> (Lee and Kifer 2020; Li et
al. 2022, "ghost clipping"), and the weighted sum of gradients is one matrix product of the kept tensors (Bu et al.
2022, "book-keeping").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privctl.train.clipping.gram import outer_squares
from privctl.train.clipping.products import add_product, batched_product, operand
from privctl.train.clipping.terms import Dense, GradientTerm, Squares, by_positions, readable
from privctl.train.clipping.use import ModuleCall


@dataclass(frozen=True, slots=True)
class Outer:
    """Gradients sum_t g_t a_t^T, (p, d) each, from ``inputs`` a (n, T, d) and ``gradients`` g (n, T, p)."""

    inputs: Tensor
    gradients: Tensor
    transposed: bool = False  # the parameter is (d, p)

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        left, right = operand(self.gradients[rows]), operand(self.inputs[rows])
        return batched_product(right.mT, left) if self.transposed else batched_product(left.mT, right)

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        return outer_squares(self.inputs, [self.gradients])[0]

    def slack(self) -> Tensor:
        """The squared norms (n,) float64 if nothing cancelled; see ``Squares``."""
        sizes = [torch.linalg.vector_norm(values.float(), dim=-1) for values in (self.inputs, self.gradients)]
        lengths: Tensor = (sizes[0] * sizes[1]).sum(1)
        return lengths.double().square()

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        inputs, gradients = operand(self.inputs), operand(self.gradients)
        left, right = (inputs, gradients) if self.transposed else (gradients, inputs)
        smaller, scale = left.shape[2] < right.shape[2], factors[:, None, None]
        return add_product(total, left, right, left_scaled=smaller, scale=scale, fresh=fresh)


def forming_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether per-example gradients cost less work and less memory than Gram matrices and the tensors they need.

    Gram matrices take T^2 (d + p) / 2 operations and keep T (d + p) numbers. Gradients take T d p operations, which the
    sum then does not need, and keep d p numbers.
    """
    return inputs * outputs <= positions * (inputs + outputs) // 2


def outer(inputs: Tensor, gradients: Tensor, *, transposed: bool = False) -> GradientTerm:
    """The weight's term for ``inputs`` (n, ..., d) and output ``gradients`` (n, ..., p) of the same dtype."""
    inputs, gradients = without_zeros(by_positions(inputs), by_positions(gradients))
    term = Outer(inputs, gradients, transposed)
    if forming_is_cheaper(inputs.shape[1], inputs.shape[2], gradients.shape[2]):
        return Dense(term.example_gradients(slice(None)))
    return term


def without_zeros(inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Drop positions of inputs (n, T, d) and gradients (n, T, p) if every example's gradients are mostly zero.

    This happens in the last layers of a classifier that reads one token. Dropped positions add nothing to any gradient.
    Only on a CPU, as counting zeros on a GPU waits for it.
    """
    positions = gradients.shape[1]
    if not readable(gradients) or gradients.numel() == 0:
        return inputs, gradients
    middle = positions // 2
    if gradients[0, middle, 0].item() and gradients[-1, middle, 0].item():
        return inputs, gradients  # a guess, at next to no cost: most gradients are zero nowhere
    if 2 * int(torch.count_nonzero(gradients[..., 0])) > gradients[..., 0].numel():  # a quick test on one feature
        return inputs, gradients
    used = (gradients.amax(2) != 0) | (gradients.amin(2) != 0)
    kept = max(1, int(used.sum(1).max()))
    if 2 * kept > positions:
        return inputs, gradients
    places = used.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :kept, None]
    return inputs.take_along_dim(places, 1), gradients.take_along_dim(places, 1)


def bias(gradients: Tensor) -> Dense:
    """The bias's term, from output ``gradients`` (n, ..., p)."""
    return Dense(by_positions(gradients).sum(1, dtype=torch.promote_types(gradients.dtype, torch.float32)))


def linear(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's Linear, with weight (p, d)."""
    return _terms(use, transposed=False)


def linear_transposed(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Transformers' Conv1D, with weight (d, p)."""
    return _terms(use, transposed=True)


def _terms(use: ModuleCall, *, transposed: bool) -> dict[str, GradientTerm]:
    gradient = use.gradient
    terms: dict[str, GradientTerm] = {}
    if "weight" in use.names:
        terms["weight"] = outer(*use.in_one_precision(), transposed=transposed)
    if "bias" in use.names:
        terms["bias"] = bias(gradient)
    return terms
