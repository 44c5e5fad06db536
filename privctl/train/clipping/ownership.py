"""Checks in a pass that every row of a layer's output affects the loss of one example alone, the one whose row it is.

Whose a row is follows from shapes, and the comparison with autograd shows that it does so in the first batches. Code
that selects, sorts or groups rows by their content may do otherwise in a later one. So the losses are differentiated
once more with weights w (n,): the gradient of a row of example i must then be w_i times what it was. The weights are
powers of two, by which autograd's results are multiplied without rounding. Of each row's gradient a random projection
is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from privctl.train.clipping.blocks import operations
from privctl.train.clipping.generic import attention
from privctl.train.clipping.layouts import Layout, Layouts
from privctl.train.clipping.recurrent import recurrent
from privctl.train.clipping.rules import OWN_LAYOUT
from privctl.train.clipping.site import Site
from privctl.train.clipping.use import Inseparable

#: What a projection may differ by, relative to the row's gradient and to the layer's longest, as kernels may sum in
#: another order; more where the pass is in half precision.
_TOLERANCE, _TOLERANCE_REDUCED = (1e-4, 1e-6), (2.0**-5, 2.0**-8)
#: The largest exponent of a weight; smaller where gradients may be in float16, which has fewer.
_EXPONENT, _EXPONENT_REDUCED = 60, 8
_FAULT = "has rows that affect the loss of another example than the one they were taken to be of"


class OwnedRows(NamedTuple):
    """Gradients of rows (m, ...), and the example of each (m,); None if all have the same number, one after another."""

    gradients: Tensor
    owners: Tensor | None = None


def rows_of(
    site: Site, gradients: tuple[Tensor | None, ...], owners: Tensor | None, layouts: Layouts, count: int
) -> list[OwnedRows]:
    """The rows of a layer's outputs, from their ``gradients``; none if the layer's examples cannot be told apart.

    ``owners`` (m,) are those of the rows of the first output, if that is a packed sequence.
    """
    first, others = Layout.ROWS, Layout.ROWS
    if site.rule is attention:
        first = Layout.SECOND
    elif site.rule is recurrent:
        first = Layout.ROWS if owners is not None or site.module.batch_first else Layout.SECOND
        others = Layout.SECOND
    elif site.rule not in OWN_LAYOUT:
        try:
            first = others = layouts.find(site.module, site.rule, gradients, count)
        except Inseparable:
            return []
    found = []
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            rows = gradient.transpose(0, 1) if (others if place else first) is Layout.SECOND else gradient
            found.append(OwnedRows(rows, None if place else owners))
    return found


class Ownership:
    """The check of each pass, if ``enabled``: first of a ``weighing`` backward pass, then of the one recorded.

    Of ``trusted`` code, only passes with operations are checked that no earlier one had.
    """

    def __init__(self, *, enabled: bool, trusted: bool = False) -> None:
        self.enabled, self._trusted, self._graphs = enabled, trusted, set[int]()
        self._comparing = self._weighing = False
        self._weights = torch.empty(0)
        self._projected: dict[object, list[Tensor]] = {}
        self._wrong: list[tuple[str, Tensor]] = []
        self._direction = torch.empty(0)
        self._draws = torch.Generator().manual_seed(0)

    def owners_of(self, arguments: Iterable[object]) -> Tensor | None:
        """The example of each row (m,) of a packed sequence among a call's ``arguments``; None if there is none."""
        packed = next((each for each in arguments if isinstance(each, PackedSequence)), None)
        if packed is None or not self.enabled:
            return None
        places = torch.cat([torch.arange(size) for size in packed.batch_sizes.tolist()]).to(packed.data.device)
        return places if packed.sorted_indices is None else packed.sorted_indices[places]

    def wanted(self, losses: Tensor, *, compared: bool) -> bool:
        """Whether to check a pass with ``losses`` (n,); one that is ``compared`` with autograd always is."""
        if not self.enabled or len(losses) == 1:
            return False
        if not self._trusted:
            return True
        graph = operations(losses)
        known = graph in self._graphs and not compared
        self._graphs.add(graph)
        return not known

    @contextmanager
    def weighing(self, losses: Tensor, run: int, *, reduced: bool) -> Iterator[Tensor]:
        """Yields the weighted sum of ``losses`` (n,) to differentiate inside; every example has ``run`` rows.

        ``reduced`` means that something in the pass is in half precision.
        """
        weights = self._weights_for(len(losses), _EXPONENT_REDUCED if reduced else _EXPONENT).to(losses)
        self._weights, self._projected, self._wrong = weights.repeat_interleave(run), {}, []
        self._comparing = self._weighing = True
        try:
            yield (losses * weights).sum()
        finally:
            self._weighing = False

    def stop(self) -> None:
        """End the comparison of this pass."""
        self._comparing, self._projected = False, {}

    def seen(self, site: str, key: object, rows: Callable[[], Sequence[OwnedRows]], *, reduced: bool) -> bool:
        """Keep or compare the gradients ``rows`` of one use of a layer; whether they are those to record."""
        if not self._comparing:
            return True
        owned = rows()
        projected = [self._projection(each.gradients) for each in owned]
        if self._weighing:
            self._projected[key] = projected
            return False
        for each, weighted, alone in zip(owned, self._projected.pop(key, ()), projected, strict=False):
            self._wrong.append((site, self._differs(each, weighted, alone, reduced=reduced)))
        return True

    def faults(self) -> dict[str, str]:
        """The layers of which some row was another example's in the latest pass, with the fault; waits for a device."""
        waiting, self._wrong = self._wrong, []
        found = torch.stack([wrong for _, wrong in waiting]).tolist() if waiting else []
        return {site: _FAULT for (site, _), is_wrong in zip(waiting, found, strict=True) if is_wrong}

    def _weights_for(self, count: int, most: int) -> Tensor:
        """Weights (count,) of both signs, all different if exponents up to ``most`` suffice."""
        largest = min(most, -(-count // 4))
        sizes = torch.arange(-largest, largest + 1, dtype=torch.float64).exp2()
        each = torch.cat([sizes, -sizes])
        places = torch.cat([torch.randperm(len(each), generator=self._draws) for _ in range(-(-count // len(each)))])
        return each[places[:count]]

    def _projection(self, gradients: Tensor) -> Tensor:
        """The products (m,) of the rows with a random direction, and their norms (m,), as (2, m)."""
        flat = gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        missing = flat.shape[1] - len(self._direction)
        if missing > 0:  # what is there stays, as it may be that of the pass before
            drawn = torch.randn(missing, generator=self._draws)
            self._direction = torch.cat([self._direction.to(flat.device), drawn.to(flat.device)])
        norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
        return torch.stack([(flat @ self._direction[: flat.shape[1]].to(flat)).double(), norms])

    def _differs(self, rows: OwnedRows, weighted: Tensor, alone: Tensor, *, reduced: bool) -> Tensor:
        """Whether the product of a row with ``weighted`` losses is not its weight times that ``alone``, as a tensor."""
        count = len(rows.gradients)
        if rows.owners is not None:
            weights = self._weights[rows.owners]
        elif count % len(self._weights):
            return torch.ones((), dtype=torch.bool, device=alone.device)
        else:
            weights = self._weights.repeat_interleave(count // len(self._weights))
        products, norms = alone
        own, of_longest = _TOLERANCE_REDUCED if reduced else _TOLERANCE
        allowed = own * norms + of_longest * norms.amax()
        agrees = (weighted[0] / weights.to(products) - products).abs() <= allowed
        differs: Tensor = (~agrees & products.isfinite()).any()  # examples that are not finite are found by their norms
        return differs
