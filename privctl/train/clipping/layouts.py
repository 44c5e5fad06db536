"""How the examples of a batch are laid out in a layer's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from privctl.train.clipping.generic import generic
from privctl.train.clipping.rules import BY_POSITION, Rule
from privctl.train.clipping.use import Inseparable

if TYPE_CHECKING:
    from torch import Tensor, nn


class Layout(Enum):
    """How the examples are laid out in a layer's output."""

    ROWS = "a row each"
    FOLDED = "their positions in rows, example by example"
    SECOND = "in the second dimension"


class Layouts:
    """The layout of each module's outputs: that of the first batch of several examples, which is then fixed.

    Where an output of that batch may be either FOLDED or SECOND, SECOND is taken until ``reconsider``.
    """

    def __init__(self) -> None:
        self._known: dict[nn.Module, Layout] = {}
        self._ambiguous: set[nn.Module] = set()
        self._folded: set[nn.Module] = set()  # of the ambiguous ones, those for which SECOND was wrong
        self._repeats: dict[nn.Module, dict[tuple[str, int], bool]] = {}

    def reconsider(self, modules: Iterable[nn.Module]) -> bool:
        """Take FOLDED for those of ``modules`` for which SECOND was one of two choices; whether there are any."""
        wrong = self._ambiguous.intersection(modules)
        self._ambiguous -= wrong
        self._folded |= wrong
        for module in wrong:
            self._known.pop(module, None)
        return bool(wrong)

    @property
    def by_rows(self) -> bool:
        """Whether no output is known to have its examples in the second dimension."""
        return Layout.SECOND not in self._known.values()

    def forget(self) -> None:
        """Find the layouts anew in the next batch."""
        self._known.clear()
        self._ambiguous.clear()
        self._repeats.clear()

    def repeats(self, module: nn.Module) -> dict[tuple[str, int], bool]:
        """What is remembered of how ``module`` repeats expanded parameters; see ``expanded.Reading``."""
        return self._repeats.setdefault(module, {})

    def find(self, module: nn.Module, rule: Rule, gradients: tuple[Tensor | None, ...], rows: int) -> Layout:
        """The layout of the outputs that received ``gradients`` in a batch of ``rows`` examples.

        Raises Inseparable if it is unknown. If the guess is wrong, because positions are in another order or rows are
        not the examples, the comparison with autograd fails.
        """
        layout = Layout.ROWS
        for gradient in gradients:
            if gradient is None:
                continue
            found = self._layout_of(module, rule, gradient, rows)
            if found is None:
                raise Inseparable(
                    f"gives an output of shape {tuple(gradient.shape)} in a batch of {rows}, so that its examples "
                    "cannot be told apart; freeze its parameters, or have it return one row an example",
                    shared=gradient.dim() > 1 and len(gradient) == 1,
                )
            if rows != 1:
                self._known.setdefault(module, found)
            layout = found
        return layout

    def _layout_of(self, module: nn.Module, rule: Rule, output: Tensor, rows: int) -> Layout | None:
        """The layout of one output, or None; a known one is kept, as T may equal n by coincidence later."""
        known, by_position = self._known.get(module), rule in BY_POSITION
        second = by_position and output.dim() > 2 and output.shape[1] == rows
        if known is Layout.SECOND:
            return Layout.SECOND if second else None
        if output.dim() > 0 and len(output) == rows:
            return Layout.ROWS
        if output.dim() == 0 or not rows:
            return None
        foldable = len(output) % rows == 0 and (by_position or rule is generic)
        if second and known is None and not (foldable and module in self._folded):
            if foldable:
                self._ambiguous.add(module)
            return Layout.SECOND
        return Layout.FOLDED if foldable else None


def with_rows(tensors: tuple[Any, ...], layout: Layout, rows: int) -> tuple[Any, ...]:
    """Rearrange each tensor (n T, ...) or (T, n, ...) to (n, T, ...), where n is ``rows``."""
    if layout is Layout.SECOND:
        return tuple(t if t is None else t.transpose(0, 1) for t in tensors)
    return tuple(t if t is None else t.unflatten(0, (rows, -1)) for t in tensors)
