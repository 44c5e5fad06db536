"""Rates of texts that come out after their own beginnings, counted again from what an audit kept of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.extraction.exact_tests import GRID
from verify.audits.extraction.kept import CUED, KeptExtraction, count_of
from verify.audits.terms import BEYOND, sides_by_coins

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHOD = "extraction"
_RATE = re.compile(r"rate on (?P<side>training|held-out) text")
_COPIES = re.compile(r"rate on text in (?P<least>[0-9]+)(?: to (?P<most>[0-9]+)| or more)? documents?")
_NEAR = re.compile(r"near-verbatim rate on (?P<side>training|held-out) text, edit distance to (?P<most>[0-9.]+)")
_SAMPLED = re.compile(r"(?P<side>training|held-out) text found in [0-9]+ queries with probability [0-9.e-]+")
_SIDES = ("training", "held-out")
#: The points (p, n) of the grid, in the order of the audit.
_POINTS = tuple(product((0.1, 0.5, 0.9), (1, 10, 100, 1000, 10_000)))
#: Log-probabilities are kept to 8 significant bits.
_COARSE = 2**-8


def counted_again(item: Evidence, kept: KeptExtraction, settings: Mapping[str, Any]) -> Mapping[str, float] | None:
    """What the figure ``item`` must state, by the names of its entries; None if what was kept does not give it."""
    sides = kept.sides()
    if item.quantity == GRID:
        return _grid(kept) if "points" in kept else None
    wanted = {"sample training": float(sides[0].sum()), "sample held_out": float(sides[1].sum())}
    if item.quantity in BEYOND:
        found = _beyond(item.quantity, kept, settings)
        if found is not None and sides_by_coins(settings) and item.estimate is not None:
            return of_its_own(found)
        return None if found is None else wanted | found
    if match := _RATE.fullmatch(item.quantity):
        return wanted | _rate(kept, sides[_SIDES.index(match["side"])], held_out=match["side"] != _SIDES[0])
    if match := _COPIES.fullmatch(item.quantity):
        least = int(match["least"])
        most = math.inf if " or more " in item.quantity else int(match["most"] or least)
        chosen = sides[0] & (kept["copies"] >= least) & (kept["copies"] <= most)
        return wanted | _share(kept["greedy"][chosen])
    if (match := _NEAR.fullmatch(item.quantity)) and "distance" in kept:
        return wanted | _near(kept, sides[_SIDES.index(match["side"])], float(match["most"]))
    if match := _SAMPLED.fullmatch(item.quantity):
        chosen = sides[_SIDES.index(match["side"])]
        return wanted | _share(kept["discoverable"][chosen]) if "discoverable" in kept else None
    return None


def farthest(settings: Mapping[str, Any]) -> float | None:
    """The edit distance up to which a comparison counts texts as near-verbatim; None if it compares none."""
    distances = settings.get("near_verbatim")
    return float(distances[-1]) if isinstance(distances, list | tuple) and distances else None


def points_found(kept: KeptExtraction) -> Iterator[tuple[float, int, NDArray[np.bool_]]]:
    """For each point (p, n) of the grid, which texts [texts] n queries find with probability p.

    A text that is found at k points is found at the k easiest, as all are thresholds on one probability.
    """
    ease = sorted(_POINTS, key=lambda point: -math.log1p(-point[0]) / point[1])
    for p, n in _POINTS:
        yield p, n, np.asarray(kept["points"] > ease.index((p, n)))


def sampling_fault(item: Evidence, kept: KeptExtraction) -> str:
    """What is wrong with what sampling is expected to find, as far as rounded log-probabilities tell."""
    match = _SAMPLED.fullmatch(item.quantity) if item.method == METHOD else None
    if match is None or "logp" not in kept:
        return ""
    logp = kept["logp"][kept.sides()[_SIDES.index(match["side"])]]
    if not len(logp):
        return ""
    ends = [np.minimum(0.0, logp * (1 + sign * _COARSE)) for sign in (1, -1)]
    shares = [float(np.mean(_success(end, item.details["queries"]))) for end in ends]
    stated = item.details["expected_share"]
    if not shares[0] - 1e-9 <= stated <= shares[1] + 1e-9:
        return f"its expected_share is {stated:.6g}, and what was kept gives {shares[0]:.4g} to {shares[1]:.4g}"
    most, fewest = (_whole(_queries(float(end.max()), item.details["probability"])) for end in ends)
    if not fewest * (1 - 1e-9) <= item.details.get("fewest_queries", math.inf) <= most * (1 + 1e-9):
        return f"its fewest_queries are not the {fewest:.4g} to {most:.4g} that what was kept gives"
    return ""


def _whole(queries: float) -> float:
    """``queries`` rounded up, but for what rounding adds."""
    return queries if math.isinf(queries) else math.ceil(queries * (1 - 1e-12))


def _success(logp: NDArray[np.float64], queries: float) -> NDArray[np.float64]:
    """The probability [texts] of coming out at least once in ``queries`` draws."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(queries * np.log1p(-np.exp(logp))))


def _queries(logp: float, probability: float) -> float:
    """The queries that find a text with ``probability``; infinite if a float cannot hold them."""
    chance = math.exp(logp)
    if chance <= 0:
        return math.inf
    return 1.0 if chance >= 1 else max(1.0, math.log1p(-probability) / math.log1p(-chance))


def _share(found: NDArray[np.bool_]) -> dict[str, float]:
    total, out = len(found), int(found.sum())
    return {"texts": total, "extracted": out, "estimate": out / total if total else math.nan}


def _rate(kept: KeptExtraction, side: NDArray[np.bool_], *, held_out: bool) -> dict[str, float]:
    greedy, matched = kept["greedy"][side], kept["matched"][side]
    wanted = _share(greedy)
    if len(matched):
        wanted |= {
            "undecided": int(kept["undecided"][side].sum()),
            "extracted_cued": int((greedy & (kept["cue"][side] > CUED)).sum()),
            "matched_mean": float(matched.mean()),
            **_percentiles("matched", matched),
        }
    if held_out:
        unseen = kept["copies"][side] == 0
        wanted |= {
            "suffix_not_in_training": int(unseen.sum()),
            "extracted_not_in_training": int((greedy & unseen).sum()),
        }
    return wanted


def _near(kept: KeptExtraction, side: NDArray[np.bool_], most: float) -> dict[str, float]:
    found = _share(kept["distance"][side] <= most)
    if not side.any():
        return found
    return {
        **found,
        "distance": most,
        "by_characters": int((kept["characters"][side] <= most).sum()),
        "equal_but_for_spaces": int(kept["but_for_spaces"][side].sum()),
        **_percentiles("longest_run", kept["longest_run"][side]),
    }


def _percentiles(name: str, values: NDArray[np.int64]) -> dict[str, float]:
    return {f"{name}_p{q}": float(np.percentile(values, q, method="lower")) for q in (50, 90, 99, 100)}


def _beyond(quantity: str, kept: KeptExtraction, settings: Mapping[str, Any]) -> dict[str, float] | None:
    """The counts of a comparison, and of the texts that it leaves out."""
    sides, judged = kept.sides(), kept.judged
    out, undecided, far = kept["greedy"], kept["undecided"], farthest(settings)
    if quantity == BEYOND[1]:
        if "distance" not in kept or far is None:
            return None
        out, undecided = kept["distance"] <= far, np.zeros(len(out), dtype=np.bool_)
    wanted = compared(out, undecided, [side & judged for side in sides], kept.units())
    wanted |= {"in_both": int((sides[0] & kept["shared"]).sum()), "cued": int((kept["cue"] > CUED).sum())}
    for name, side in zip(("training", "held_out"), sides, strict=True):
        known, away = side & kept.comparable & kept.known(), side & ~judged
        wanted |= {
            f"known_{name}": int(known.sum()),
            f"known_{name}_extracted": int((kept["greedy"] & known).sum()),
            f"{name}_left_out": int(away.sum()),
            f"{name}_left_out_extracted": int((out & away).sum()),
        }
    if quantity == BEYOND[0]:
        again = sides[0] & ~kept["compared"] & ~kept["shared"] & ~kept.known()
        wanted |= {"repeated": int(again.sum()), "repeated_extracted": int((out & again).sum())}
    return wanted


def compared(
    out: NDArray[np.bool_],
    unsure: NDArray[np.bool_],
    sides: list[NDArray[np.bool_]],
    units: NDArray[np.int64] | None,
) -> dict[str, float]:
    """The counts of both ``sides`` of a comparison, or of their units: of what comes ``out``, and is ``unsure``."""
    wanted: dict[str, float] = {}
    shares = []
    for name, side, doubt in zip(("training", "held_out"), sides, ("least", "most"), strict=True):
        own = None if units is None else units[side]
        flags = [out, out & ~unsure if doubt == "least" else out | unsure]
        found, certain = (count_of(each[side], own) for each in flags)
        counts = {"texts": len(found), "extracted": int(found.sum()), doubt: int(certain.sum())}
        wanted |= {f"{name}_{what}": count for what, count in counts.items()}
        shares.append(found.sum() / len(found) if len(found) else math.nan)
    return wanted | {"estimate": float(shares[0] - shares[1])}


def of_its_own(wanted: Mapping[str, float]) -> dict[str, float]:
    """The counts of a comparison that is of the texts it compares alone, with their numbers as samples."""
    return {**wanted, **{f"sample {side}": wanted[f"{side}_texts"] for side in ("training", "held_out")}}


def _grid(kept: KeptExtraction) -> dict[str, float]:
    sides, units = [side & kept.judged for side in kept.sides()], kept.units()
    wanted: dict[str, float] = {}
    totals = []
    for name, side in zip(("training", "held_out"), sides, strict=True):
        own = None if units is None else units[side]
        totals.append(len(count_of(kept["points"][side], own)))
        wanted |= {f"{name}_texts": totals[-1], f"sample {name}": totals[-1]}
        for p, n, found in points_found(kept):
            count = int(count_of(found[side], own).sum())
            wanted |= {f"{name.replace('_', ' ')} p={p:g} n={n}": count} if totals[-1] else {}
    return wanted if all(totals) else {name: wanted[name] for name in ("training_texts", "sample training")}
