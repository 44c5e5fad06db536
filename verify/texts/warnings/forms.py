"""Texts with gaps as regular expressions, and the texts that several kinds of reports share."""

from __future__ import annotations

import re

NUMBER, COUNT = r"(?:[\d.]+(?:e[+-]?\d+)?|inf|nan)", r"\d+"
#: A name from outside, such as a file name, which may contain anything.
NAME = r".{1,4096}?"
#: The repr of a string.
QUOTED = r"(?:'.{0,4096}?'|\".{0,4096}?\")"


def form(text: str, **gaps: str) -> str:
    """The regular expression of ``text``, in which each gap ``{name}`` matches the expression ``gaps[name]``."""
    pieces = re.split(r"\{(\w+)\}", text)
    return "".join(f"(?:{gaps[piece]})" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces))


def either(one: str, many: str = "") -> str:
    """The expression for any count of a noun, with singular ``one`` and plural ``many``."""
    return rf"(?:1 {re.escape(one)}|\d+ {re.escape(many or one + 's')})"


ONE_RUN = form(
    "the guarantee is for this one run, given that it came to its end: settings chosen by looking at other runs on the "
    "same data cost more"
)
WHOLE_SEARCH = form(
    "the guarantee is for the whole search, given that it came to its end: one that is thrown away and begun again, or "
    "settings chosen by looking at other runs on the same data, cost more"
)
CHOSEN_BY_HELD_OUT = form(
    "the held-out examples chose this run: no guarantee covers them, and their measures flatter it, so measure it on "
    "others"
)
EARLIER = (
    "{searches} of these data for this output began before, by the log beside it: whatever anyone learned from what "
    "they showed costs privacy beside what is reported; searches elsewhere are not in that log"
)
UNPROTECTED = form(
    "no noise was added to these weights: nothing bounds what they give away about the examples; do not hand them out"
)
#: For a report that holds measures of its examples, and for one that withholds them.
OWNER_OF_MEASURES = form(
    "no guarantee covers this report itself: losses, norms, fractions and the like were measured on the private "
    "examples, held-out measures on held-out ones, and the data's digest tells whoever guesses the data whether that "
    "is right; keep the report to yourself"
)
OWNER = form(
    "no guarantee covers this report itself: it holds the exact number of examples, and the data's digest tells "
    "whoever guesses the data whether that is right; keep the report to yourself"
)
REAL_ARITHMETIC = form(
    "bounds are for real arithmetic; the report of a run adds what floating-point noise costs on its model"
)
_ALIKE = (
    "{count} names in {field} differ from another's only in case, spaces or Unicode form, and count as different "
    "users; where they are the same, say so by fold({name}) in place of {name}"
)
ALIKE_USERS = form(_ALIKE, count=COUNT, field=QUOTED, name=NAME)
DELTA = form(
    "delta {number} is {near} 1 / {count} {whom} with probability delta would meet it; choose a delta such as {number}",
    # Older reports say records, also where all records of a user are one example.
    whom="examples, so that publishing each|records, so that publishing each record",
    number=NUMBER, near="at least|not far below", count=COUNT,
)  # fmt: skip


def alike_users(count: int, field: str) -> str:
    """The warning on ``count`` users in ``field`` whose names differ only in spelling."""
    return form(_ALIKE, count=str(count), field=re.escape(repr(field)), name=re.escape(field))
