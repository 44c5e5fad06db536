"""How values appear when printed and in notebooks: whoever offers them to users says how."""

from __future__ import annotations

from collections.abc import Callable

_IN_HTML: list[Callable[[object], str]] = []
_AS_TEXT: list[Callable[[object], str]] = []


def show_by(in_html: Callable[[object], str], as_text: Callable[[object], str]) -> None:
    """From now on, these make the HTML of every ``Shown`` value, and what ``print`` says of it."""
    _IN_HTML[:], _AS_TEXT[:] = [in_html], [as_text]


class Shown:
    """A value that notebooks show as HTML and ``print`` in a few lines, once ``show_by`` was told how."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook, all text of it escaped; None, so that the notebook prints the value, before that."""
        return _IN_HTML[0](self) if _IN_HTML else None

    def __str__(self) -> str:
        return _AS_TEXT[0](self) if _AS_TEXT else repr(self)
