"""Which rows of the batch that a private loop drew have clipped gradients, where not all are computed at once."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.errors import CommandError


class DrawnRows:
    """The rows of one batch, of which those of one example, ``together``, are never parted.

    ``rows`` is how many were drawn, ``done`` how many have gradients in the sum so far.
    """

    def __init__(self, together: int) -> None:
        self._together = together
        self.begin(0)

    def begin(self, rows: int) -> None:
        """So many rows were drawn, and none has a gradient yet."""
        self.rows, self.done = rows, 0
        self._piece: slice | None = None

    def expected(self) -> int:
        """How many rows the next ``backward`` is of: those of the piece, or all.

        Raises CommandError where those of the piece have gradients.
        """
        if self._piece is None:
            self.done = 0  # all rows anew, whatever pieces were computed before
            return self.rows
        if self.done >= self._piece.stop:
            raise CommandError(
                f"backward was called before for rows {self._piece.start} to {self._piece.stop - 1}, which would count "
                "twice; call it once for each piece"
            )
        return int(self._piece.stop - self._piece.start)

    def pieces(self, most: int) -> Iterator[slice]:
        """Slices of at most ``most`` rows that cover all, those of an example in one; ``done`` starts from none.

        Raises CommandError for a ``most`` that holds no example, and where a piece was left without ``backward``.
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
