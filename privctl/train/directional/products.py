"""Each example's derivatives in any number of groups from one backward pass: products with per-example gradients.

An example's gradient of a layer is a sum of outer products g_t a_t^T, so its product with a direction U is sum_t
<g_t, U a_t>: as much work as the layer itself, and no gradient is formed. For several directions in the same tensor the
gradients are formed once, a few examples at a time, and multiplied by all directions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping.embedding import Lookup
from privctl.train.clipping.engine import PerExample
from privctl.train.clipping.factors import Clipping
from privctl.train.clipping.layouts import Layouts
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.products import operand
from privctl.train.clipping.terms import Dense, GradientTerm, chunk_bytes, chunks
from privctl.train.directional.passes import Losses, check_losses, differentiating
from privctl.train.directional.queries import DirectionalQuery, MethodUnavailableError, device_of, parameters_of

Terms = Mapping[str, Sequence[GradientTerm]]
#: With at least this many directions in a tensor, its gradients are formed.
_SEVERAL = 4
#: Entries whose products are summed in float32.
_BLOCK = 4096


class Products:
    """Computes derivatives of ``network`` by products; compares each parameter's gradients with autograd's once."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._compared: set[str] = set()
        self._layouts = (
            Layouts()
        )  # as compared: in another batch, other dimensions may have as many entries as examples

    def by_example(self, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
        """Derivatives (n, fired) float64 from one backward pass for any number of groups."""
        fired = parameters_of(queries)
        try:
            with differentiating(self._network, fired.values(), alone=True):
                losses, terms = self._terms(losses_of, fired.keys())
        except _UnusedError as found:
            return torch.zeros((found.rows, len(queries)), dtype=torch.float64, device=device_of(queries))
        except InputError as error:
            raise MethodUnavailableError(f"{error}; or take the method partial or difference") from None
        with torch.no_grad():
            return _slopes(terms, queries, losses)

    def _terms(self, losses_of: Losses, fired: Collection[str]) -> tuple[Tensor, Terms]:
        known = self._compared.issuperset(fired)
        with PerExample(
            self._network, Clipping(norm=1.0), may_promote=False, compared=known, layouts=self._layouts
        ) as engine:
            losses, terms = engine.terms(partial(_checked, losses_of))
        if len(losses) > 1:  # comparing a single example shows little
            self._compared |= terms.keys()
        return losses, terms


class _UnusedError(Exception):
    """None of the fired tensors affects the losses of a batch of ``rows`` examples."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def _checked(losses_of: Losses) -> Tensor:
    losses = check_losses(losses_of())
    if not losses.requires_grad:
        raise _UnusedError(len(losses))
    return losses


def _slopes(terms: Terms, queries: Sequence[DirectionalQuery], losses: Tensor) -> Tensor:
    """The derivatives (n, fired) float64, summed over tensors and their uses."""
    total = torch.zeros((len(losses), len(queries)), dtype=torch.float64, device=losses.device)
    columns: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
        for name in query.direction:
            columns.setdefault(name, []).append(index)
    for name, places in columns.items():
        along = [queries[place].direction[name] for place in places]
        for term in terms.get(name, ()):
            if isinstance(term, Outer) and len(places) >= _SEVERAL:
                total[:, places] += _by_gradients(term, along)
                continue
            for index, tangent in zip(places, along, strict=True):
                total[:, index] += product(term, tangent)
    return total


def _by_gradients(term: Outer, along: Sequence[Tensor]) -> Tensor:
    """<gradient, U> (n, k) float64 for each of k directions, by forming the gradients."""
    entries = torch.stack([tangent.flatten() for tangent in along])
    derivatives = []
    for rows in chunks(len(term.inputs), 4 * entries.shape[1], chunk_bytes(term.inputs)):
        gradients = term.example_gradients(rows).to(entries.dtype).flatten(1)
        pairs = zip(torch.split(gradients, _BLOCK, 1), torch.split(entries, _BLOCK, 1), strict=True)
        # Products of opposite sign nearly cancel, so long sums are in float64.
        derivatives.append(torch.stack([(part @ block.mT).double() for part, block in pairs]).sum(0))
    return torch.cat(derivatives)


def product(term: GradientTerm, along: Tensor) -> Tensor:
    """<gradient, ``along``> (n,) float64 for each example's gradient in ``term``."""
    match term:
        case Outer(inputs=inputs, gradients=gradients, transposed=transposed):
            projected = operand(inputs) @ (along if transposed else along.mT)
            return _inner(projected, operand(gradients))
        case Lookup(ids=ids, gradients=gradients):
            return _inner(along[ids], gradients.to(along.dtype))
        case Dense(gradients=gradients):
            return _inner(gradients.to(along.dtype), along[None])
    count = len(term.slack())
    parts = [term.example_gradients(rows) for rows in chunks(count, 4 * along.numel())]
    return torch.cat([_inner(part.to(along.dtype), along[None]) for part in parts])


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """Inner products over all but the first dimension, in float64, as products of opposite sign nearly cancel."""
    return (left * right).flatten(1).sum(1, dtype=torch.float64)
