"""How values are printed and shown in notebooks; the Python API registers the functions that do it."""

from __future__ import annotations

from collections.abc import Callable

_IN_HTML: list[Callable[[object], str]] = []
_AS_TEXT: list[Callable[[object], str]] = []


def show_by(in_html: Callable[[object], str], as_text: Callable[[object], str]) -> None:
    """Register the functions that render every ``Shown`` value, as HTML and as text."""
    _IN_HTML[:], _AS_TEXT[:] = [in_html], [as_text]


class Shown:
    """A value that notebooks show as HTML and ``print`` shows in a few lines, once ``show_by`` was called."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook, all text escaped; None before ``show_by`` was called, so notebooks print ``repr``."""
        return _IN_HTML[0](self) if _IN_HTML else None

    def __str__(self) -> str:
        return _AS_TEXT[0](self) if _AS_TEXT else repr(self)
