"""The first batch's gradients are compared with plain autograd's, so that no use of a parameter goes unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputFault

#: Relative to a parameter's own gradient, and to the whole one's: what is zero but for rounding has no own scale.
_TOLERANCE = (1e-3, 1e-5)
_TOLERANCE_REDUCED = (0.1, 1e-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Plain gradients: of the summed losses by parameter (None where unused), and the norms of some rows' alone."""

    gradients: dict[str, Tensor | None]
    norms: dict[int, Tensor]


def reference(losses: Tensor, trainable: Mapping[str, nn.Parameter]) -> Reference:
    """What autograd finds for a forward pass with ``losses`` (n,); its graph is kept."""
    gradients = torch.autograd.grad(losses.sum(), list(trainable.values()), retain_graph=True, allow_unused=True)
    norms = {}
    for row in {0, len(losses) - 1}:
        own = torch.autograd.grad(losses[row], list(trainable.values()), retain_graph=True, allow_unused=True)
        norms[row] = _norm([g for g in own if g is not None])
    return Reference(gradients=dict(zip(trainable, gradients, strict=True)), norms=norms)


def compare(found: Mapping[str, Tensor], norms: Tensor, expected: Reference, *, reduced: bool) -> None:
    """Raise InputFault for a parameter whose summed gradient, or for a row whose norm (n,), is another than expected.

    ``reduced`` says that some of the forward pass was in half precision, where autograd itself rounds.
    """
    relative, absolute = _TOLERANCE_REDUCED if reduced else _TOLERANCE
    whole = float(_norm([g for g in expected.gradients.values() if g is not None]))
    for name, gradient in found.items():
        other = expected.gradients[name]
        difference = float(_norm([gradient if other is None else gradient - other]))
        size = 0.0 if other is None else float(_norm([other]))
        if not difference <= relative * size + absolute * whole:
            raise InputFault(
                f"parameter {name!r} has another gradient than autograd's, which happens where a parameter is used "
                "outside its own module; freeze it, or call the module that owns it"
            )
    for row, norm in expected.norms.items():
        if not abs(float(norms[row]) - float(norm)) <= relative * float(norm):
            raise InputFault(
                f"the gradient of row {row} has norm {float(norms[row]):.6g} and not autograd's {float(norm):.6g}, "
                "which happens where examples of a batch are mixed; return losses that depend on one row each"
            )


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    lengths: list[Tensor] = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
    return torch.stack(lengths).square().sum().sqrt()
