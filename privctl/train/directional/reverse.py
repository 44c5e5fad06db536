"""Reverse mode: gradients of the fired tensors, and their inner products with the directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from privctl.train.directional.passes import Losses, check_losses, differentiating, inner_product
from privctl.train.directional.queries import DirectionalQuery, MethodUnavailableError, parameters_of


def backward(network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
    """Sums over the batch (fired,) float64 from the whole gradient, computed as in a training step."""
    fired = parameters_of(queries)
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    return _batch_slopes(network, losses_of, queries, {**trained, **fired}, alone=False)


def partial(network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
    """Sums over the batch (fired,) float64 from one backward pass that ends at the first fired tensor.

    The forward pass saves nothing before that tensor, and after it only what the gradients need.
    """
    return _batch_slopes(network, losses_of, queries, parameters_of(queries), alone=True)


def _batch_slopes(
    network: nn.Module,
    losses_of: Losses,
    queries: Sequence[DirectionalQuery],
    parameters: dict[str, nn.Parameter],
    *,
    alone: bool,
) -> Tensor:
    with differentiating(network, parameters.values(), alone=alone):
        losses = check_losses(losses_of())
        gradients = _gradients(losses.sum(), parameters)
    with torch.no_grad():
        return torch.stack([inner_product(gradients, query.direction) for query in queries])


def _gradients(loss: Tensor, parameters: dict[str, nn.Parameter], *, keep: bool = False) -> dict[str, Tensor | None]:
    if not loss.requires_grad:
        return dict.fromkeys(parameters)
    gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=keep, allow_unused=True)
    return dict(zip(parameters, gradients, strict=True))


def backward_by_example(network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
    """Derivatives (n, fired) float64 from one backward pass per example: slow, but correct for every network.

    This is the reference with which other methods are compared.
    """
    parameters = parameters_of(queries)
    with differentiating(network, parameters.values(), alone=True):
        losses = check_losses(losses_of())
        rows = []
        for loss in losses:
            gradients = _gradients(loss, parameters, keep=True)
            rows.append(torch.stack([inner_product(gradients, query.direction) for query in queries]))
    return torch.stack(rows) if rows else losses.detach().new_zeros((0, len(queries)), dtype=torch.float64)


def partial_by_example(network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
    """Derivatives (n, fired) float64 by differentiating the partial backward pass.

    With weights w (n,) on the losses, s(w) = <grad of sum w_i losses_i, u> is linear in w, and its derivative in w_i is
    that of example i ("double backward", which also works for models without forward mode).
    """
    parameters = parameters_of(queries)
    with differentiating(network, parameters.values(), alone=True), sdpa_kernel(SDPBackend.MATH):
        losses = check_losses(losses_of())
        weights = torch.ones_like(losses, requires_grad=True)
        if not losses.requires_grad:
            return torch.zeros((len(losses), len(queries)), dtype=torch.float64, device=losses.device)
        try:
            by_tensor = torch.autograd.grad(
                losses @ weights, list(parameters.values()), create_graph=True, allow_unused=True
            )
            gradients = dict(zip(parameters, by_tensor, strict=True))
            columns = [_slopes(gradients, query, weights) for query in queries]
        except RuntimeError as error:
            if not any(words in str(error) for words in ("not implemented", "once_differentiable", "differentiated")):
                raise
            raise MethodUnavailableError(
                "the model has an operation that cannot be differentiated twice "
                f"({str(error).splitlines()[0]}); take the method difference, which differentiates nothing"
            ) from None
    return torch.stack(columns, 1).double()


def _slopes(gradients: Mapping[str, Tensor | None], query: DirectionalQuery, weights: Tensor) -> Tensor:
    parts = [
        (gradient * along.to(gradient.dtype)).sum()
        for name, along in query.direction.items()
        if (gradient := gradients[name]) is not None and gradient.requires_grad
    ]
    if not parts:
        return torch.zeros_like(weights)
    (slopes,) = torch.autograd.grad(torch.stack(parts).sum(), weights, retain_graph=True)
    return slopes
