"""Squared norms from Gram matrices, |sum_t g_t a_t^T|^2 = sum_st <a_s, a_t> <g_s, g_t>, "ghost clipping".

See Lee and Kifer 2020, and Li et al. 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from privctl.train.clipping.factors import GRAM_ERROR
from privctl.train.clipping.gram_code import gram_sums, suits_code
from privctl.train.clipping.products import batched_product, operand
from privctl.train.clipping.terms import Squares, chunk_bytes, chunks, on_gpu

#: Gram matrices are symmetric, so each of this many blocks of rows is computed only up to the diagonal. Shorter blocks
#: save operations but not time: on a CPU two blocks of 32 rows take 13 % longer than one of 64.
BLOCKS = 4
SHORTEST_BLOCK = 64
LONGEST_BLOCK = 512
#: The smallest normal float32 number. Smaller products lose digits, or vanish where a device does not keep them.
_TINY = 2.0**-126


def outer_squares(inputs: Tensor, gradients: Sequence[Tensor]) -> list[Squares]:
    """Squared norms for the layers that read one input (n, T, d), from their output gradients (n, T, p)."""
    return squares_of_groups([(inputs, gradients)])[0]


def squares_of_groups(groups: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> list[list[Squares]]:
    """As ``outer_squares`` for each of several groups of layers; what follows the sums is done for all at once."""
    if not groups:
        return []
    sums = torch.cat([_all_sums(inputs, gradients) for inputs, gradients in groups], 1)
    sizes = [(*inputs.shape[1:], each.shape[2]) for inputs, gradients in groups for each in gradients]
    square, lengths, of_inputs, of_gradients = sums
    slack = gram_slack(lengths, of_inputs, of_gradients, sums.new_tensor(sizes).T[..., None])
    layers = map(Squares, square.clamp(min=0), slack)
    return [list(islice(layers, len(gradients))) for _, gradients in groups]


def _all_sums(inputs: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """See ``gram_sums``; computed for a few examples at a time."""
    block = _block(inputs)
    parts = [
        _sums(operand(inputs[rows]), [operand(g[rows]) for g in gradients], block)
        for rows in chunks(len(inputs), _bytes_each(inputs, gradients, block), chunk_bytes(inputs))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def gram_slack(lengths: Tensor, inputs: Tensor, gradients: Tensor, sizes: Iterable[Tensor]) -> Tensor:
    """The slack (..., n) float64 of squares from the Gram matrices of a (n, T, d) and g (n, T, p).

    ``lengths`` are the sums over positions of |a_t| |g_t|, ``inputs`` those of |a_t|, ``gradients`` those of |g_t|,
    each (..., n) float64, and ``sizes`` are T, d and p, each (..., 1). Products below the smallest normal float32
    vanish, however large their factor in the other matrix is. An entry of a Gram matrix thus lacks up to k times that
    number, for k features.
    """
    positions, features, outputs = sizes
    size_of_inputs = inputs + positions * (features * _TINY).sqrt()
    size_of_gradients = gradients + positions * (outputs * _TINY).sqrt()
    vanished = outputs * size_of_inputs.square() + features * size_of_gradients.square() + positions**2
    return lengths.square() + _TINY / GRAM_ERROR * vanished


def _block(inputs: Tensor) -> int:
    """How many rows of a Gram matrix are computed at once; more on a GPU, where each launch has a cost."""
    if on_gpu(inputs):
        return LONGEST_BLOCK
    return min(LONGEST_BLOCK, max(SHORTEST_BLOCK, -(-inputs.shape[1] // BLOCKS)))


def _sums(inputs: Tensor, gradients: Sequence[Tensor], block: int) -> Tensor:
    if suits_code(inputs, gradients):
        return gram_sums(inputs, gradients)
    return _sums_by_torch(inputs, gradients, block)


def _sums_by_torch(inputs: Tensor, gradients: Sequence[Tensor], block: int) -> Tensor:
    """As ``gram_sums``, from rows of Gram matrices, ``block`` of them at a time."""
    sums = inputs.new_zeros((4, len(gradients), len(inputs)), dtype=torch.float64)
    square, lengths, of_inputs, of_gradients = sums
    for start in range(0, inputs.shape[1], block):
        stop = min(start + block, inputs.shape[1])
        gram = _gram_rows(inputs, start, stop)
        input_lengths = _lengths(gram, start)
        of_inputs += input_lengths.sum(1)
        if start:
            gram[:, :, :start] *= 2  # stands for the part above the diagonal too, which is not computed
        for i, gradient in enumerate(gradients):
            product = _gram_rows(gradient, start, stop)
            gradient_lengths = _lengths(product, start)
            of_gradients[i] += gradient_lengths.sum(1)
            lengths[i] += (input_lengths * gradient_lengths).sum(1)
            square[i] += product.mul_(gram).sum((1, 2))
    return sums


def _lengths(gram_rows: Tensor, start: int) -> Tensor:
    """The norms (n, positions) of the vectors whose Gram matrix has these rows, from row ``start`` on."""
    return gram_rows[:, :, start:].diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()


def _gram_rows(values: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of the Gram matrix, up to the block on the diagonal: (n, stop - start, stop)."""
    return batched_product(values[:, start:stop], values[:, :stop].mT)


def _bytes_each(inputs: Tensor, gradients: Sequence[Tensor], block: int) -> int:
    grams = 8 * block * inputs.shape[1]
    casts = 4 * inputs.shape[1] * (inputs.shape[2] + sum(g.shape[2] for g in gradients))
    return grams if operand(inputs[:0]).dtype == inputs.dtype else grams + casts
