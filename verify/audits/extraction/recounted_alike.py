"""Comparisons among similar texts, counted again from the block of each text that an audit kept.

Which texts resemble each other is the audit's word: verify has no texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.extraction import recounted_texts
from verify.audits.extraction.alike_texts import ALIKE
from verify.audits.extraction.exact_tests import GRID, OUTSIDE
from verify.audits.extraction.kept import OUTSIDE as RECORDS
from verify.audits.extraction.kept import PREFIXES, KeptExtraction, slug
from verify.audits.extraction.recounted_searches import ADVERSARIAL, out_after_prompts
from verify.audits.terms import BEYOND
from verify.laws.counts import fisher

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: At most this many texts that come out are compared, and as many of the others.
_MOST = 1000
_BLOCKS = "blocks of "
_CLOSE = 1e-9


def repeats(item: Evidence) -> bool:
    """Whether ``item`` repeats a comparison among similar texts."""
    return item.quantity.endswith(ALIKE)


def left_out(evidence: Sequence[Evidence], kept: KeptExtraction) -> Iterator[str]:
    """Yields a sentence for each comparison among similar texts that was kept, and that ``evidence`` does not state."""
    for item in evidence:
        repeated = f"{item.quantity}{ALIKE}"
        if kept.blocks(item.method, item.quantity) is not None and all(
            (other.method, other.quantity) != (item.method, repeated) for other in evidence
        ):
            yield f"{item.method}: it states no {repeated!r}, which it measured"


def fault(item: Evidence, kept: KeptExtraction, settings: Mapping[str, Any]) -> str | None:
    """What is wrong with such a comparison; "" if nothing is, None if what was kept does not give it."""
    quantity = item.quantity.removesuffix(ALIKE)
    chosen = kept.blocks(item.method, quantity)
    found = _compared(item.method, quantity, kept, settings)
    if chosen is None or found is None:
        return None
    (place, block), (train, judged, cuts) = chosen, found
    if len(np.unique(place)) < len(place) or not ((place >= 0) & (place < len(train))).all() or not len(place):
        return "what it kept of its texts alike are no texts of its own"
    if not judged[place].all():
        return "it compares texts among those alike that it does not compare otherwise"
    faults = [_fault(item, train, judged, cut, place, block) for cut in cuts]
    return "" if "" in faults else faults[0]


def _fault(
    item: Evidence,
    train: NDArray[np.bool_],
    judged: NDArray[np.bool_],
    out: NDArray[np.bool_],
    place: NDArray[np.int64],
    block: NDArray[np.int64],
) -> str:
    ours, came = train[place], out[place]
    for flags, whole in ((came, judged & out), (~came, judged & ~out)):
        if int(flags.sum()) != min(_MOST, int(whole.sum())):
            return f"it chose {int(flags.sum())} of {int(whole.sum())} texts, and an audit takes up to {_MOST}"
    tables: Counter[str] = Counter()
    compared = training = 0
    for number in np.unique(block[block >= 0]).tolist():
        inside = block == number
        members, texts, all_out = int((inside & ours).sum()), int(inside.sum()), int((inside & came).sum())
        if 0 < all_out < texts and 0 < members < texts:
            tables[f"{_BLOCKS}{members} and {texts - members}, {all_out} out"] += 1
            compared += all_out
            training += int((inside & came & ours).sum())
    wanted = {"compared": compared, "compared_training": training, **tables}
    stated = {name: value for name, value in item.details.items() if name in wanted or name.startswith(_BLOCKS)}
    if stated != wanted:
        return f"it compares {stated.get('compared', 0):g} texts alike that come out, and what was kept gives others"
    if item.samples != {"training": int(ours.sum()), "held_out": int((~ours).sum())}:
        return "it is of other numbers of texts than it kept"
    return ""


def _compared(
    method: str, quantity: str, kept: KeptExtraction, settings: Mapping[str, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Sequence[NDArray[np.bool_]]] | None:
    """Of a comparison: what is training text, what is compared, and what comes out; of the grid, at each best cut."""
    if method == recounted_texts.METHOD:
        cuts = _cuts(quantity, kept, settings)
        return None if cuts is None else (kept["train"], kept.judged, cuts)
    if method == ADVERSARIAL and PREFIXES + "place" in kept:
        train = kept.sides(PREFIXES)[0]
        out = _for_certain(train, kept[PREFIXES + "greedy"], kept[PREFIXES + "undecided"])
        return train, ~kept.known(PREFIXES), [out]
    if method in OUTSIDE and slug(method) + ".compared" in kept:
        out = out_after_prompts(method, kept, nearly=quantity == BEYOND[1])
        return kept[RECORDS + "train"], kept[slug(method) + ".compared"], [out]
    return None


def _cuts(quantity: str, kept: KeptExtraction, settings: Mapping[str, Any]) -> list[NDArray[np.bool_]] | None:
    train = kept["train"]
    if quantity == BEYOND[0]:
        return [_for_certain(train, kept["greedy"], kept["undecided"])]
    far = recounted_texts.farthest(settings)
    if quantity == BEYOND[1] and "distance" in kept and far is not None:
        return [kept["distance"] <= far]
    if quantity != GRID or "points" not in kept:
        return None
    sides = [side & kept.judged for side in kept.sides()]
    points = [found for *_, found in recounted_texts.points_found(kept)]
    tests = []
    for found in points:
        ours, theirs = (int(found[side].sum()) for side in sides)
        tests.append(fisher(ours, int(sides[0].sum()), theirs, int(sides[1].sum())))
    return [found for found, test in zip(points, tests, strict=True) if test <= min(tests) * (1 + _CLOSE)]


def _for_certain(train: NDArray[np.bool_], out: NDArray[np.bool_], undecided: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What comes out [texts]; what is undecided counts against a difference."""
    return np.where(train, out & ~undecided, out | undecided)
