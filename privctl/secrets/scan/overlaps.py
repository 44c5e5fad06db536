"""Resolves overlapping matches of different kinds of secrets.

What the user named always counts. Of other overlapping matches the longest wins, then the first in the table of kinds;
none counts within what the user named. A secret that wins nowhere is dropped, because it is part of others wherever it
occurs. A secret that wins somewhere keeps all its records, including those in which it is only part of another, because
these reveal it as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from privctl.secrets.scan.kinds import SecretKind
from privctl.secrets.scan.place import Claimed, Occurrence

_DIGIT = re.compile("[0-9]")


class OccurrenceClaim(NamedTuple):
    """A ``place`` found for the kind of that number, and whether it ``stands`` there."""

    kind: int
    place: Occurrence
    stands: bool


def claims(kinds: Sequence[SecretKind], text: str) -> list[OccurrenceClaim]:
    """All that ``kinds`` find in ``text``."""
    digits = _DIGIT.search(text) is not None
    found = [
        (number, place) for number, kind in enumerate(kinds) if digits or not kind.digits for place in kind.find(text)
    ]
    if len(found) < 2:
        return [OccurrenceClaim(number, place, True) for number, place in found]
    named = Claimed(len(text))
    for number, place in found:
        if kinds[number].named:
            named.add(place)
    found.sort(key=lambda each: (each[1].start - each[1].end, each[0]))  # the most characters first
    taken = Claimed(len(text))
    settled = []
    for number, place in found:
        stands = kinds[number].named or not (named.hold(place) or taken.meet(place))
        if stands and not kinds[number].named:
            taken.add(place)
        settled.append(OccurrenceClaim(number, place, stands))
    # In the text's order, so that secrets are numbered by where they first occur.
    return sorted(settled, key=lambda claim: claim.place.start)


def outside(places: Iterator[Occurrence], claimed: Sequence[OccurrenceClaim], size: int) -> Iterator[Occurrence]:
    """Those of ``places`` in a text of ``size`` that are not wholly within what ``claimed`` claims."""
    taken = Claimed(size)
    for claim in claimed:
        taken.add(claim.place)
    return (place for place in places if not taken.hold(place))
