"""Track which rows of a drawn batch have clipped gradients, where a private loop computes it in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.errors import CommandError


class DrawnRows:
    """The rows of one batch. Pieces never divide the ``together`` consecutive rows of one example.

    ``rows`` is the number of rows drawn, ``done`` the number of those whose gradients are in the sum.
    """

    def __init__(self, together: int) -> None:
        self._together = together
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Start a batch of ``rows`` rows, none of which has a gradient yet."""
        self.rows, self.done = rows, 0
        self._piece: slice | None = None

    @property
    def current(self) -> slice:
        """The rows of the current piece, or all without pieces."""
        return self._piece or slice(0, self.rows)

    def expected(self) -> int:
        """The number of rows of the next ``backward``: those of the current piece, or all without pieces.

        Raises CommandError where the rows of the piece already have gradients.
        """
        if self._piece is None:
            self.done = 0  # all rows, so discard pieces that were computed before
            return self.rows
        if self.done >= self._piece.stop:
            raise CommandError(
                f"backward was called before for rows {self._piece.start} to {self._piece.stop - 1}, which would count "
                "twice; call it once for each piece"
            )
        return int(self._piece.stop - self._piece.start)

    def pieces(self, most: int) -> Iterator[slice]:
        """Slices of at most ``most`` rows that cover the batch, with the rows of an example in one slice.

        Raises CommandError for a ``most`` below the rows of one example, and for a piece without ``backward``.
        """
        if type(most) is not int or most < self._together:
            several = ", the records of one user that a step draws" if self._together > 1 else ""
            raise CommandError(f"pieces takes whole numbers of rows from {self._together}{several}; {most!r} is none")
        self.done = 0
        size = most - most % self._together
        try:
            for start in range(0, self.rows, size):
                self._piece = slice(start, min(start + size, self.rows))
                yield self._piece
                if self.done != self._piece.stop:
                    raise CommandError(
                        f"rows {start} to {self._piece.stop - 1} of the batch were left out; call backward once for "
                        "each piece, as a batch without some of its rows is no Poisson sample"
                    )
        finally:
            self._piece = None
