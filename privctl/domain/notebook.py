"""How values appear in notebooks: they know that they can be shown, and whoever offers them to notebooks says how."""

from __future__ import annotations

from collections.abc import Callable

_RENDER: list[Callable[[object], str]] = []


def show_by(render: Callable[[object], str]) -> None:
    """From now on, ``render`` makes the HTML of every ``Shown`` value."""
    _RENDER[:] = [render]


class Shown:
    """A value that notebooks show as HTML, once ``show_by`` was told how."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook, all text of it escaped; None, so that the notebook prints the value, before that."""
        return _RENDER[0](self) if _RENDER else None
