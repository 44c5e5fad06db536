"""Where the terms of a backward pass go: kept until the norms are known, or measured and dropped, and added later.

One pass keeps every layer's inputs and output gradients until the norms of all layers are known (Bu et al. 2022,
"book-keeping"). Two passes keep none of them: the first measures each parameter as soon as the term of its last use
arrives, and the second, through the same graph, adds each layer's clipped sum as it arrives (Li et al. 2022, "ghost
clipping").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import check
from privctl.train.clipping.measure import example_norm, gram_inputs, squares_by_parameter
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.shards import Leaves, blank_like
from privctl.train.clipping.sums import add, of_row, weighted_sum
from privctl.train.clipping.terms import GradientTerm, Squares

Terms = Mapping[str, list[GradientTerm]]
#: Rows of a batch, and the function applied to each of their gradients.
RowRequest = tuple[Sequence[int], Callable[[Tensor], Tensor]]


class Sink(Protocol):
    """Takes the terms of a backward pass."""

    def receive(self, names: Collection[str], terms: Terms) -> None:
        """Take the ``terms`` of one use of a module that has the parameters ``names``; some may have no term."""


class Measurer(Sink, Protocol):
    """A sink that, after the pass, gives squared norms and what the comparison with autograd needs.

    ``used`` holds the parameters that had terms.
    """

    used: set[str]

    def squares(self) -> dict[str, Squares]:
        """The squares of each parameter's gradients."""

    def sketches(self, trainable: Mapping[str, nn.Parameter], weights: Tensor) -> dict[str, Tensor]:
        """A sketch of each parameter's sum of gradients weighted by ``weights`` (n,)."""

    def row_norms(self, rows: Collection[int]) -> dict[int, float]:
        """The norms of the gradients of ``rows``, formed as they would be added."""

    def rows(self, wanted: RowRequest) -> list[dict[str, Tensor]]:
        """For each of the ``wanted`` rows, the function's results on its gradients, by parameter."""


class KeepingSink:
    """Keeps all terms."""

    def __init__(self) -> None:
        self.terms: dict[str, list[GradientTerm]] = {}
        self.used: set[str] = set()

    def receive(self, names: Collection[str], terms: Terms) -> None:
        """See ``Sink``."""
        self.used |= terms.keys()
        for name, uses in terms.items():
            self.terms.setdefault(name, []).extend(uses)

    def squares(self) -> dict[str, Squares]:
        """See ``Measurer``."""
        return squares_by_parameter(self.terms)

    def sketches(self, trainable: Mapping[str, nn.Parameter], weights: Tensor) -> dict[str, Tensor]:
        """See ``Measurer``."""
        return {name: check.sketch(weighted_sum(p, self.terms.get(name, []), weights)) for name, p in trainable.items()}

    def row_norms(self, rows: Collection[int]) -> dict[int, float]:
        """See ``Measurer``."""
        return {row: example_norm(self.terms, row) for row in rows}

    def rows(self, wanted: RowRequest) -> list[dict[str, Tensor]]:
        """See ``Measurer``."""
        rows, make = wanted
        return [{name: make(of_row(uses, row)) for name, uses in self.terms.items()} for row in rows]


class MeasuringSink:
    """Measures a parameter when all of its ``uses`` in the forward pass have received a gradient, then drops its terms.

    Consecutive layers that read the same tensor (query, key and value) share its Gram matrix. Only their terms, and
    those of parameters with uses still to come (tied weights), are held. ``weights`` (n,) and the ``checked`` rows are
    for the comparison with autograd; the ``wanted`` rows' gradients are formed one parameter at a time.
    """

    def __init__(
        self,
        uses: Mapping[str, int],
        trainable: Mapping[str, nn.Parameter],
        device: torch.device,
        *,
        weights: Tensor | None = None,
        checked: Collection[int] = (),
        wanted: RowRequest | None = None,
    ) -> None:
        self.used: set[str] = set()
        self._uses_left, self._trainable, self._device = dict(uses), trainable, device
        self._weights, self._wanted = weights, wanted
        self._terms: dict[str, list[GradientTerm]] = {}
        #: Complete terms of layers that read one tensor, whose memory key is ``_shared_key``.
        self._waiting: dict[str, list[GradientTerm]] = {}
        self._shared_key: object = None
        self._squares: dict[str, Squares] = {}
        self._sketches: dict[str, Tensor] = {}
        self._row_squares = dict.fromkeys(checked, 0.0)
        self._rows: list[dict[str, Tensor]] = [{} for _ in (wanted[0] if wanted else ())]

    def receive(self, names: Collection[str], terms: Terms) -> None:
        """See ``Sink``."""
        self.used |= terms.keys()
        with torch.no_grad(), full_precision(self._device):
            for name, uses in terms.items():
                self._terms.setdefault(name, []).extend(uses)
            for name in names:
                self._uses_left[name] = self._uses_left.get(name, 1) - 1
                if self._uses_left[name] <= 0 and name in self._terms:
                    self._complete(name)

    def _complete(self, name: str) -> None:
        uses = self._terms.pop(name)
        if name in self._squares or name in self._waiting:
            raise InputError(
                f"gradients of parameter {name!r} came of more uses than the forward pass made, so that they cannot be "
                "measured use by use; give --clipping-passes 1"
            )
        key = gram_inputs(uses)
        if key is None:
            self._measure({name: uses})
            return
        if key != self._shared_key:
            self._measure(self._waiting)
            self._waiting = {}
        self._shared_key = key
        self._waiting[name] = uses

    def _measure(self, terms: Terms) -> None:
        self._squares |= squares_by_parameter(terms)
        if self._weights is not None:
            for name, uses in terms.items():
                self._sketches[name] = check.sketch(weighted_sum(self._trainable[name], uses, self._weights))
        for row in self._row_squares:
            self._row_squares[row] += example_norm(terms, row) ** 2
        if self._wanted is not None:
            for row, by_name in zip(self._wanted[0], self._rows, strict=True):
                by_name |= {name: self._wanted[1](of_row(uses, row)) for name, uses in terms.items()}

    def squares(self) -> dict[str, Squares]:
        """See ``Measurer``; measures now the parameters with uses that no gradient reached."""
        for name in list(self._terms):
            self._complete(name)
        self._measure(self._waiting)
        self._waiting = {}
        return self._squares

    def sketches(self, trainable: Mapping[str, nn.Parameter], weights: Tensor) -> dict[str, Tensor]:
        """See ``Measurer``; ``weights`` must be those given to the constructor."""
        assert weights is self._weights
        missing = trainable.keys() - self._sketches.keys()
        return self._sketches | {name: check.sketch(blank_like(trainable[name], zeros=True)) for name in missing}

    def row_norms(self, rows: Collection[int]) -> dict[int, float]:
        """See ``Measurer``; ``rows`` must be among the ``checked`` ones."""
        return {row: self._row_squares[row] ** 0.5 for row in rows}

    def rows(self, wanted: RowRequest) -> list[dict[str, Tensor]]:
        """See ``Measurer``; returns the rows given to the constructor."""
        return self._rows


class AddingSink:
    """Adds to each parameter's ``grad`` the sum over examples of its ``scales`` (n,) times gradient, use by use.

    If processes share the parameters, ``leaves`` sums over them, block by block. With ``scales`` None this process adds
    nothing of its own.
    """

    def __init__(
        self,
        trainable: Mapping[str, nn.Parameter],
        scales: Mapping[str, Tensor] | None,
        device: torch.device,
        leaves: Leaves,
    ) -> None:
        self._trainable, self._scales, self._device, self._leaves = trainable, scales, device, leaves

    def receive(self, names: Collection[str], terms: Terms) -> None:
        """See ``Sink``."""
        if self._scales is None:
            return
        with torch.no_grad(), full_precision(self._device):
            for name, uses in terms.items():
                parameter, scale = self._trainable[name], self._scales[name]
                if self._leaves.shared:
                    self._leaves.hold(name, uses, scale)
                else:
                    add(parameter, uses, scale)
