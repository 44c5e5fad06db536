"""Weighted sums of per-example gradients, from their terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from privctl.train.clipping.shards import add_sum, blank_like, is_shard
from privctl.train.clipping.terms import GradientTerm

if TYPE_CHECKING:
    from torch import Tensor, nn


def of_row(terms: Sequence[GradientTerm], row: int) -> Tensor:
    """The gradient of one example."""
    total = terms[0].example_gradients(slice(row, row + 1))[0]
    for term in terms[1:]:
        total = total + term.example_gradients(slice(row, row + 1))[0]
    return total


def add(parameter: nn.Parameter, terms: Sequence[GradientTerm], factors: Tensor) -> None:
    """Add the sum of gradients weighted by ``factors`` (n,) to the parameter's ``grad``, which may be None."""
    if is_shard(parameter):
        add_sum(parameter, weighted_sum(parameter, terms, factors))
        return
    if parameter.grad is None:
        parameter.grad = weighted_sum(parameter, terms, factors)
        return
    for term in terms:
        term.add_weighted(parameter.grad, factors)


def weighted_sum(parameter: nn.Parameter, terms: Sequence[GradientTerm], factors: Tensor) -> Tensor:
    """The sum over examples of factor (n,) times gradient, with the parameter's shape."""
    total = blank_like(parameter, zeros=not terms)
    for i, term in enumerate(terms):
        total = term.add_weighted(total, factors, fresh=i == 0)
    return total
