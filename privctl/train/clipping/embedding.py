"""Embeddings: an example's gradient is nonzero only in the rows of its own tokens, and is never formed whole.

In an embedding bag each id gets its share of the bag's gradient, so a bag is treated as a sequence of look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.train.clipping.linear import Outer
from privctl.train.clipping.products import batched_product
from privctl.train.clipping.shards import own_part
from privctl.train.clipping.terms import (
    GradientTerm,
    Squares,
    at_least_float32,
    by_positions,
    chunk_bytes,
    chunks,
    readable,
    squared_lengths,
)
from privctl.train.clipping.use import Inseparable, ModuleCall

#: Rows longer than the first fraction of ``max_norm`` are scaled to the second, so that rounding of a norm never makes
#: a look-up, or a second call, rescale a row.
_TOO_LONG, _SHORTENED_TO = 1 - 2.0**-14, 1 - 2.0**-13


@dataclass(frozen=True, slots=True)
class Lookup:
    """Gradients that add ``gradients`` h_t (n, T, d) to the rows ``ids`` (n, T) of a (V, d) parameter."""

    ids: Tensor
    gradients: Tensor
    vocabulary: int

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        ids, values = self.ids[rows], at_least_float32(self.gradients[rows])
        gradients = values.new_zeros(len(ids), self.vocabulary, values.shape[2])
        return gradients.scatter_add_(1, ids[..., None].expand_as(values), values)

    def squares(self) -> Squares:
        """Sum the gradients of equal ids of an example, which has at most T different ones, and measure the sums."""
        values = at_least_float32(self.gradients)
        if readable(values) and _all_differ(self.ids):  # as positions do; nothing to sum
            return Squares(squared_lengths(values.flatten(1)), self.slack())
        sums = values.new_zeros(values.shape[:2].numel(), values.shape[2])
        sums.index_add_(0, _slots(self.ids).flatten(), values.flatten(0, 1))
        return Squares(squared_lengths(sums.view(len(values), -1)), self.slack())

    def slack(self) -> Tensor:
        """The squared norms (n,) float64 if nothing cancelled; see ``Squares``."""
        lengths: Tensor = torch.linalg.vector_norm(at_least_float32(self.gradients), dim=-1)
        return lengths.sum(1).double().square()

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        if fresh:
            total.zero_()
        values = self.gradients.to(total.dtype) * factors.to(total.dtype)[:, None, None]
        return total.index_add_(0, self.ids.flatten(), values.flatten(0, 1))


def _all_differ(ids: Tensor) -> bool:
    """Whether no example of ids (n, T) has one twice."""
    ordered = ids.sort(dim=1).values
    return bool((ordered[:, 1:] != ordered[:, :-1]).all())


def _slots(ids: Tensor) -> Tensor:
    """Number the ids (n, T) below n T so that two numbers are equal if and only if example and id are."""
    ordered, order = ids.sort(dim=1)
    changes = torch.zeros_like(ids)
    changes[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    numbers = torch.empty_like(ids).scatter_(1, order, changes)
    return numbers + torch.arange(len(ids), device=ids.device)[:, None] * ids.shape[1]


def cross(product: Outer, lookup: Lookup) -> Tensor:
    """Inner products (n,) of the two parts of a tied weight's gradient: sum_st g_t[id_s] <a_t, h_s>.

    ``product`` is the output layer (p = V), ``lookup`` the embedding; nothing of size V d is formed.
    """
    products = []
    bytes_each = 12 * product.inputs.shape[1] * lookup.ids.shape[1]
    for rows in chunks(len(lookup.ids), bytes_each, chunk_bytes(lookup.ids)):
        ids = lookup.ids[rows, None, :].expand(-1, product.inputs.shape[1], -1)
        picked = product.gradients[rows].gather(2, ids)
        inner_products = batched_product(
            at_least_float32(product.inputs[rows]), at_least_float32(lookup.gradients[rows]).mT
        )
        products.append(inner_products.mul_(picked).sum((1, 2), dtype=torch.float64))
    return torch.cat(products)


def embedding(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's Embedding with weight (V, d). The row at ``padding_idx`` gets no gradient."""
    assert isinstance(module, nn.Embedding)
    gradients = use.gradient
    ids = use.first.reshape(len(gradients), -1)
    gradients = by_positions(gradients)
    if module.padding_idx is not None:
        gradients = gradients.masked_fill((ids == module.padding_idx)[..., None], 0)
    return {"weight": Lookup(ids, gradients, module.num_embeddings)}


def scaled_embedding(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Embeddings of transformers that multiply their output by ``embed_scale``."""
    lookup = embedding(module, use)["weight"]
    assert isinstance(lookup, Lookup)
    scale = torch.as_tensor(module.embed_scale, dtype=lookup.gradients.dtype, device=lookup.gradients.device)
    return {"weight": Lookup(lookup.ids, lookup.gradients * scale, lookup.vocabulary)}


def own_frequency(ids: Tensor) -> Tensor:
    """How often each of ``ids`` (n, ...) occurs in its own example, as (n, ..., 1)."""
    slots = _slots(ids.flatten(1))
    counts = torch.bincount(slots.flatten(), minlength=slots.numel())
    return counts[slots].view(*ids.shape, 1)


def over_examples(ids: Tensor, count: int) -> Tensor:
    """Expand ids that all examples share, (1, T) or (T,), to (count, T), so that gradients do not arrive summed."""
    if count > 1 and ids.dim() > 1 and len(ids) == 1:
        return ids.expand(count, *ids.shape[1:])
    if ids.dim() == 1 and len(ids) != count:
        return ids.expand(count, -1)
    return ids


def embedding_bag(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's EmbeddingBag of any mode; each example has the same number of consecutive bags.

    Raises Inseparable if the number of bags is not a multiple of the number of examples.
    """
    assert isinstance(module, nn.EmbeddingBag)
    gradients = use.gradient
    if not use.count or len(gradients) % use.count:
        raise Inseparable(f"gives {len(gradients)} bags in a batch of {use.count}, so that no example has bags its own")
    ids, weights = _rows(module, use)
    if module.padding_idx is not None:
        weights = weights.masked_fill(ids == module.padding_idx, 0)
    shares = gradients[:, None] * _shares(module, ids, weights)
    by_example = ids.reshape(use.count, -1), shares.reshape(use.count, -1, module.embedding_dim)
    return {"weight": Lookup(*by_example, module.num_embeddings)}


def _rows(module: nn.EmbeddingBag, use: ModuleCall) -> tuple[Tensor, Tensor]:
    """Ids (b, T) and their weights (b, T), which are 0 past a bag's end."""
    named = dict(zip(("input", "offsets", "per_sample_weights"), use.arguments, strict=False)) | dict(use.keywords)
    ids, offsets, weights = named["input"], named.get("offsets"), named.get("per_sample_weights")
    weights = torch.ones_like(ids, dtype=use.gradient.dtype) if weights is None else weights
    if offsets is None:
        return ids, weights
    starts = offsets[: len(use.gradient)]
    ends = torch.cat([starts[1:], starts.new_tensor([len(ids)])])
    if module.include_last_offset:
        ends = offsets[1:]
    indices = starts[:, None] + torch.arange(max(1, int((ends - starts).max())), device=starts.device)
    inside = indices < ends[:, None]
    padded = (functional.pad(t, (0, 1))[indices.clamp(max=len(ids))] for t in (ids, weights))
    ids, weights = (t.masked_fill(~inside, 0) for t in padded)
    return ids, weights


def _shares(module: nn.EmbeddingBag, ids: Tensor, weights: Tensor) -> Tensor:
    """The share of a bag's gradient that each of its ids gets: (b, T, 1), or (b, T, d) for maxima."""
    if module.mode == "sum":
        return weights[..., None]
    if module.mode == "mean":
        return (weights / weights.sum(1, keepdim=True).clamp(min=1))[..., None]
    rows = module.weight.detach()[ids].masked_fill((weights == 0)[..., None], -torch.inf)
    largest = rows.argmax(1, keepdim=True)  # the first of several, as in torch
    return torch.zeros_like(rows).scatter_(1, largest, 1.0) * weights[..., None]


def bounded(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    """The trained embeddings that have a ``max_norm``."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.max_norm is not None
        and module.weight.requires_grad
    ]


@torch.no_grad()
def bound_rows(embeddings: Sequence[nn.Embedding | nn.EmbeddingBag]) -> None:
    """Scale down every row of ``embeddings`` that exceeds ``max_norm``, whether a batch reads it or not.

    Torch's look-up scales down only the rows it reads, so the weights would reveal, without noise, which rows a batch
    read. If all rows are within the bound, no look-up changes any. Projecting released weights is post-processing and
    costs no privacy.
    """
    for module in embeddings:
        assert module.max_norm is not None
        rows = own_part(module.weight)
        lengths = torch.linalg.vector_norm(rows, module.norm_type, dim=1, keepdim=True)
        rows.mul_(torch.where(lengths > _TOO_LONG * module.max_norm, _SHORTENED_TO * module.max_norm / lengths, 1))
