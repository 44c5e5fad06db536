"""Compares the first batch's gradients with plain autograd's, so that no use of a parameter is missed.

The comparison uses a sum over examples with different weights, so gradients assigned to the wrong example are detected
too. Only sketches of gradients are stored (Johnson and Lindenstrauss 1984): random projections to a 64th of the
dimension, which preserve the distance of two gradients accurately enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.train.clipping.products import full_precision

#: Relative to a parameter's own gradient, and to the whole gradient, for parameters whose gradient is rounding only.
_TOLERANCE = (1e-3, 1e-5)
_TOLERANCE_REDUCED = (0.1, 1e-2)

#: Relative tolerance between the measured norm of a gradient and the norm of what would be added. A gradient longer
#: than its measured norm exceeds the clip norm by the same factor, which must fit into the margin that clipping leaves
#: for rounding: at least 2^-10, most of it for sums. Rounding errors are some 1e-7, in float32 and in bfloat16.
_NORM_TOLERANCE = 2.0**-12

#: Relative tolerance between a norm in two backward passes through one graph: the second adds what the first measured.
_REPEAT_TOLERANCE, _REPEAT_TOLERANCE_REDUCED = 2.0**-12, 2.0**-11

#: Blocks of ``_BLOCK`` entries are projected onto ``_PROJECTED``; all of these being small by chance is negligible.
_BLOCK, _PROJECTED = 512, 8
_SEED = 0  # need not be secret; must not advance the global random state
_PROJECTION = torch.randn(
    _BLOCK, _PROJECTED, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float32, device="cpu"
) / math.sqrt(_PROJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Sketches, by parameter, of autograd's sum of gradients with ``weights`` (n,); unused parameters have none."""

    weights: Tensor
    sketches: dict[str, Tensor]


def reference(losses: Tensor, trainable: Mapping[str, Tensor]) -> Reference:
    """Sketch autograd's gradients for a forward pass with ``losses`` (n,); the graph is retained."""
    sizes, signs = torch.rand(2, len(losses), generator=torch.Generator().manual_seed(_SEED))
    # Weights of both signs cancel what the examples have in common, which would hide their differences.
    weights = ((0.5 + sizes) * (signs - 0.5).sign()).to(losses.device)
    sketches: dict[str, Tensor] = {}
    hooks = [
        p.register_hook(partial(_keep_sketch, sketches, name))  # type: ignore[no-untyped-call]
        for name, p in trainable.items()
    ]
    try:
        torch.autograd.grad((losses * weights).sum(), list(trainable.values()), retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return Reference(weights=weights, sketches=sketches)


def _keep_sketch(sketches: dict[str, Tensor], name: str, gradient: Tensor) -> Tensor:
    """A hook that stores a gradient's sketch and frees the gradient itself."""
    if gradient.is_sparse:  # from an Embedding(sparse=True); small, so there is nothing to free
        sketches[name] = sketch(gradient.to_dense())
        return gradient
    sketches[name] = sketch(gradient)
    return gradient.new_zeros(()).expand_as(gradient)


def sketch(gradient: Tensor) -> Tensor:
    """A random linear projection of ``gradient`` that preserves its norm on average."""
    flat = gradient.detach().flatten()
    full_length = len(flat) // _BLOCK * _BLOCK
    with full_precision(flat.device):
        projected = flat[:full_length].view(-1, _BLOCK) @ _PROJECTION.to(flat)
    return torch.cat([projected.flatten(), flat[full_length:]])


def differing(
    sketches: Mapping[str, Tensor], expected: Reference, used: Collection[str], *, reduced: bool
) -> list[str]:
    """The parameters whose sketch differs from the expected one.

    ``used`` are those that were recorded; any gradient of another one counts, however small: it may grow in training.
    ``reduced`` means that part of the forward pass was in half precision, where autograd itself rounds.
    """
    relative, absolute = _TOLERANCE_REDUCED if reduced else _TOLERANCE
    total_norm = math.hypot(*[float(_length(tensor)) for tensor in expected.sketches.values()])
    rows = []
    for name, gradient in sketches.items():
        other = expected.sketches.get(name, torch.zeros_like(gradient))
        allowed = relative * float(_length(other)) + absolute * total_norm if name in used else 0.0
        if not float(_length(gradient - other)) <= allowed:
            rows.append(name)
    return rows


def gradient_mismatch(name: str) -> str:
    """The error message for a parameter whose sketch differs."""
    return (
        f"parameter {name!r} has another gradient than autograd's, which happens where a parameter is used "
        "outside its own module, or where examples of a batch are mixed; freeze it or call the module that "
        "owns it, and return losses that depend on one row each"
    )


def compared_rows(count: int) -> list[int]:
    """The rows, of ``count``, whose gradients are formed for ``compare_norms``: the first and the last."""
    return sorted({0, count - 1})


def compare_norms(formed: Mapping[int, float], norms: Tensor) -> None:
    """Raise InputError if ``norms`` (n,), as measured, differ from the norms ``formed`` by row from whole gradients."""
    for row, expected in formed.items():
        computed = float(norms[row])
        if not abs(computed - expected) <= _NORM_TOLERANCE * expected:
            raise InputError(
                f"the gradient of row {row} has norm {computed:.6g} as measured and {expected:.6g} as it would be "
                "added; this model cannot be trained privately: please report it"
            )


def compare_passes(first: Tensor, second: Tensor, *, reduced: bool) -> None:
    """Raise InputError if the norms (n,) of two backward passes through one graph differ; see ``differing``."""
    tolerance = _REPEAT_TOLERANCE_REDUCED if reduced else _REPEAT_TOLERANCE
    agree = torch.isclose(first, second, rtol=tolerance, atol=0, equal_nan=True)
    if not bool(agree.all()):
        row = int((~agree).nonzero()[0])
        raise InputError(
            f"the gradient of row {row} has norm {float(first[row]):.6g} in one backward pass and "
            f"{float(second[row]):.6g} in the next, so that it cannot be clipped in two; give --clipping-passes 1"
        )


def _length(values: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return length
