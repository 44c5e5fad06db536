"""The first batch's gradients are compared with plain autograd's, so that no use of a parameter goes unseen.

Compared is a sum over examples in which each has a weight of its own, so that gradients given to a wrong example show
as well. No gradient is kept for it, only a sketch (Johnson and Lindenstrauss 1984): a random projection to a 64th of
the numbers, by which the distance of two gradients is known within a factor that is small beside what is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping.measure import example_norm
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.terms import GradientTerm

#: Relative to a parameter's own gradient, and to the whole one's: what is zero but for rounding has no own scale.
_TOLERANCE = (1e-3, 1e-5)
_TOLERANCE_REDUCED = (0.1, 1e-2)

#: A stretch of ``_CUT`` numbers is projected onto ``_KEPT``; that all eight are small by chance is negligibly likely.
_CUT, _KEPT = 512, 8
_SEED = 0  # of deviates that need not be secret, and must not be drawn from the model's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Autograd's sum of gradients with ``weights`` (n,), as a sketch by parameter; unused ones have none."""

    weights: Tensor
    sketches: dict[str, Tensor]


def reference(losses: Tensor, trainable: Mapping[str, nn.Parameter]) -> Reference:
    """What autograd finds for a forward pass with ``losses`` (n,); its graph is kept."""
    sizes, signs = torch.rand(2, len(losses), generator=torch.Generator().manual_seed(_SEED))
    # Of either sign, for what examples have in common would hide how they differ.
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
    """A hook that leaves nothing of a gradient to be kept but its shape."""
    sketches[name] = sketch(gradient)
    return gradient.new_zeros(()).expand_as(gradient)


def sketch(gradient: Tensor) -> Tensor:
    """A random projection of it: of the same length on average, and linear."""
    deviates = torch.randn(_CUT, _KEPT, generator=torch.Generator().manual_seed(_SEED)) / _KEPT**0.5
    flat = gradient.detach().flatten()
    whole = len(flat) // _CUT * _CUT
    with full_precision(flat.device):
        projected = flat[:whole].view(-1, _CUT) @ deviates.to(flat)
    return torch.cat([projected.flatten(), flat[whole:]])


def compare(sketches: Mapping[str, Tensor], expected: Reference, *, reduced: bool) -> None:
    """Raise InputError for a parameter whose sketch is another than expected.

    ``reduced`` says that some of the forward pass was in half precision, where autograd itself rounds.
    """
    relative, absolute = _TOLERANCE_REDUCED if reduced else _TOLERANCE
    whole = math.hypot(*[float(_length(each)) for each in expected.sketches.values()])
    for name, gradient in sketches.items():
        other = expected.sketches.get(name, torch.zeros_like(gradient))
        if not float(_length(gradient - other)) <= relative * float(_length(other)) + absolute * whole:
            raise InputError(
                f"parameter {name!r} has another gradient than autograd's, which happens where a parameter is used "
                "outside its own module, or where examples of a batch are mixed; freeze it or call the module that "
                "owns it, and return losses that depend on one row each"
            )


def compare_norms(terms: Mapping[str, Sequence[GradientTerm]], norms: Tensor) -> None:
    """Raise InputError for a first or last row whose norm, of ``norms`` (n,), is not that of what is added for it."""
    for row in sorted({0, len(norms) - 1}):
        measured, expected = float(norms[row]), example_norm(terms, row)
        if not abs(measured - expected) <= _TOLERANCE[0] * expected:
            raise InputError(
                f"the gradient of row {row} has norm {measured:.6g} as measured and {expected:.6g} as it would be "
                "added; this model cannot be trained privately: please report it"
            )


def _length(values: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return length
