"""Rates of secrets that rank first, that a model completes, or that a beam holds, counted again from what was kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.secrets.kept import KeptSecrets, RankedSecrets

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECONSTRUCTION, COMPLETION = "secret reconstruction", "secret completion"
KIND = "told first, kind "
_BEFORE = ", before training"
_GREEDY, _SAMPLED = "written greedily, ", "found in "
_FIRST = re.compile(r"told first(?: by (?P<score>[^,]+))?, (?P<side>.+)")
_IN_BEAM = re.compile(r"in (?P<beam>[^,]+), (?P<side>.+)")
_DISCLOSED, _UNDECIDED = 1, 2
#: Log-probabilities are kept to 8 significant bits.
_COARSE = 2**-8


def counted_again(item: Evidence, kept: KeptSecrets, kinds: Sequence[str]) -> Mapping[str, float] | None:
    """What the rate ``item`` must state, by the names of its entries; None if what was kept does not give it.

    ``kinds`` are the kinds of secrets of which the report has rates, in its order.
    """
    if item.method == RECONSTRUCTION and item.quantity.startswith(KIND):
        return _kind_rate(item.quantity.removeprefix(KIND), kept, kinds)
    side, _, before = item.quantity.rpartition(_BEFORE)
    whole, model = (side, "_before") if _ and not before else (item.quantity, "")
    if item.method == RECONSTRUCTION:
        match = _FIRST.fullmatch(whole)
        ranks = None if match is None else kept.ranked(match["score"] or model)
        chosen = None if match is None else _side(match["side"], kept)
        if ranks is None or chosen is None or match is None:
            return None
        bounded = not model and match["score"] is None
        return {**_ranks(ranks, chosen), **(_bound(kept, chosen) if bounded else {}), "secrets": int(chosen.sum())}
    chosen = _side(whole.partition(", ")[2], kept)
    if chosen is None or f"completion{model}" not in kept:
        return None
    total = int(chosen.sum())
    if whole.startswith(_GREEDY):
        states = kept[f"completion{model}"][chosen]
        disclosed, undecided = (int((states == state).sum()) for state in (_DISCLOSED, _UNDECIDED))
        return {"estimate": disclosed / total, "disclosed": disclosed, "undecided": undecided, "secrets": total}
    if whole.startswith(_SAMPLED):
        hits = int(kept[f"discoverable{model}"][chosen].sum())
        return {"estimate": hits / total, "secrets": total}
    if _IN_BEAM.fullmatch(whole) is None or "in_beam" not in kept:
        return None
    hits, chance = int(kept["in_beam"][chosen].sum()), float(kept["in_beam_by_chance"][chosen].mean())
    return {"estimate": hits / total, "found": hits, "chance": chance, "secrets": total}


def expected_share_fault(item: Evidence, kept: KeptSecrets) -> str:
    """What is wrong with the share that sampling is expected to find, as far as rounded log-probabilities tell."""
    if item.method != COMPLETION or not item.quantity.startswith(_SAMPLED):
        return ""
    model = "_before" if item.quantity.endswith(_BEFORE) else ""
    chosen = _side(item.quantity.removesuffix(_BEFORE).partition(", ")[2], kept)
    if chosen is None or f"logp{model}" not in kept:
        return ""
    logp, queries = kept[f"logp{model}"][chosen], item.details["queries"]
    low, high = (_share(np.minimum(0.0, logp * (1 + sign * _COARSE)), queries) for sign in (1, -1))
    stated = item.details["expected_share"]
    if low - 1e-9 <= stated <= high + 1e-9:
        return ""
    return f"its expected_share is {stated:.6g}, and what was kept gives {low:.4g} to {high:.4g}"


def _share(logp: NDArray[np.float64], queries: float) -> float:
    """The mean probability of coming out at least once in ``queries`` draws."""
    with np.errstate(divide="ignore"):
        return float(np.mean(-np.expm1(queries * np.log1p(-np.exp(logp)))))


def _side(name: str, kept: KeptSecrets) -> NDArray[np.bool_] | None:
    """The secrets of one side, by its name; None for another name, or where there are none."""
    sides = {"trained": kept.trained, "never drawn (control)": kept["control"], "held out (control)": kept["held_out"]}
    chosen = sides.get(name)
    return None if chosen is None or not chosen.any() else np.asarray(chosen)


def _ranks(ranks: RankedSecrets, chosen: NDArray[np.bool_]) -> dict[str, float]:
    count, rank, told = ranks.count[chosen], ranks.rank[chosen], int(ranks.first[chosen].sum())
    return {
        "estimate": told / len(rank), "told": told, "chance": float(np.mean(1 / count)),
        "median_rank": float(np.median(rank)), "median_candidates": float(np.median(count)),
        "mean_bits": float(ranks.bits[chosen].mean()),
    }  # fmt: skip


def _bound(kept: KeptSecrets, chosen: NDArray[np.bool_]) -> dict[str, float]:
    bounds = kept["bound"][chosen]
    bounds = bounds[~np.isnan(bounds)]
    return {"bound": float(bounds.mean())} if len(bounds) else {}


def _kind_rate(name: str, kept: KeptSecrets, kinds: Sequence[str]) -> dict[str, float] | None:
    ranks = kept.ranked("")
    if name not in kinds or ranks is None or int(kept["kind"].max(initial=-1)) >= len(kinds):
        return None
    of_kind = kept["kind"] == kinds.index(name)
    chosen, control = of_kind & kept.trained, of_kind & ~kept.trained
    wanted: dict[str, float] = {"secrets": int(chosen.sum()), "estimate": math.nan}
    if chosen.any():
        greedy = int((kept["completion"][chosen] == _DISCLOSED).sum())
        wanted |= {**_ranks(ranks, chosen), **_bound(kept, chosen), "greedy": greedy}
        before = kept.ranked("_before")
        if before is not None:
            wanted["before_told"] = int(before.first[chosen].sum())
            wanted["before_greedy"] = int((kept["completion_before"][chosen] == _DISCLOSED).sum())
    if control.any():
        wanted |= {"control": int(control.sum()), "control_told": int(ranks.first[control].sum())}
    return wanted
