"""What comes out after searched prefixes and prompts from outside, counted again from what an audit kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.extraction.exact_tests import CONTROL, COST, DIVERGENCE, OUTSIDE, OVER_CONTROL
from verify.audits.extraction.kept import OUTSIDE as RECORDS
from verify.audits.extraction.kept import PREFIXES, KeptExtraction, slug
from verify.audits.extraction.recounted_texts import compared, of_its_own
from verify.audits.terms import BEYOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

ADVERSARIAL = "adversarial prefix"
_RATES = ("rate on training text", "rate on held-out text")


def counted_again(item: Evidence, kept: KeptExtraction, settings: Mapping[str, Any]) -> Mapping[str, float] | None:
    """What the figure ``item`` must state, by the names of its entries; None if what was kept does not give it."""
    if item.method == ADVERSARIAL and PREFIXES + "place" in kept:
        return _after_prefixes(item, kept, settings)
    if item.method not in OUTSIDE or slug(item.method) + ".giving" not in kept:
        return None
    if item.quantity == COST:
        return _cost(item.method, kept, settings)
    if item.quantity == OVER_CONTROL:
        return _over_control(kept, settings) if slug(CONTROL) + ".giving" in kept else None
    return _after_prompts(item, kept)


def out_after_prompts(method: str, kept: KeptExtraction, *, nearly: bool) -> NDArray[np.bool_]:
    """Which compared records [records] come out after the prompts of ``method``, and are not known from elsewhere."""
    name = f"{slug(method)}.{'near' if nearly else 'out'}"
    out = kept[name + "_beyond"] if name + "_beyond" in kept else kept[name]
    return np.asarray(out & kept[slug(method) + ".compared"])


def _after_prefixes(item: Evidence, kept: KeptExtraction, settings: Mapping[str, Any]) -> dict[str, float] | None:
    sides, greedy, undecided = kept.sides(PREFIXES), kept[PREFIXES + "greedy"], kept[PREFIXES + "undecided"]
    known = kept.known(PREFIXES)
    if item.quantity == BEYOND[0]:
        judged = [side & ~known for side in sides]
        wanted = of_its_own(compared(greedy, undecided, judged, kept.units(PREFIXES)))
        named = zip(("known_training", "known_held_out"), sides, strict=True)
        return wanted | {name: int((known & side).sum()) for name, side in named}
    if item.quantity not in _RATES:
        return None
    side = sides[_RATES.index(item.quantity)]
    texts, out = int(side.sum()), int(greedy[side].sum())
    return {
        "texts": texts, "extracted": out, "estimate": out / texts, "undecided": int(undecided[side].sum()),
        "passes_mean": float(kept[PREFIXES + "passes"][side].mean()),
        "prefix_tokens": _number(settings, "adversarial_tokens"), "budget": _number(settings, "adversarial_budget"),
        "sample training": int(sides[0].sum()), "sample held_out": int(sides[1].sum()),
    }  # fmt: skip


def _after_prompts(item: Evidence, kept: KeptExtraction) -> dict[str, float] | None:
    begin, sides = slug(item.method) + ".", kept.sides(RECORDS)
    if item.quantity in BEYOND:
        out = out_after_prompts(item.method, kept, nearly=item.quantity == BEYOND[1])
        judged = [side & kept[begin + "compared"] for side in sides]
        wanted = of_its_own(compared(out, np.zeros(len(out), dtype=np.bool_), judged, kept.units(RECORDS)))
        known = kept[begin + "known"] if begin + "known" in kept else np.zeros(len(out), dtype=np.bool_)
        named = zip(("known_training", "known_held_out"), sides, strict=True)
        return wanted | {name: int((known & side).sum()) for name, side in named}
    if item.quantity not in _RATES:
        return None
    counted = kept[RECORDS + "counted"]
    side = sides[_RATES.index(item.quantity)] & counted
    texts, out = int(side.sum()), side & kept[begin + "out"]
    wanted = {
        "texts": texts, "extracted": int(out.sum()), "estimate": int(out.sum()) / texts,
        "near_verbatim": int((side & kept[begin + "near"]).sum()),
        "sample training": int((sides[0] & counted).sum()), "sample held_out": int((sides[1] & counted).sum()),
    }  # fmt: skip
    if item.quantity == _RATES[0]:
        ours = out[sides[0]]
        wanted["characters"] = int(kept[begin + "verbatim_characters"][ours].sum())
        wanted["longest_tokens"] = int(kept[begin + "verbatim_tokens"][ours].max(initial=0))
    return wanted


def _cost(method: str, kept: KeptExtraction, settings: Mapping[str, Any]) -> dict[str, float]:
    begin = slug(method) + "."
    giving, prompts = kept[begin + "giving"], _prompts(method, settings)
    each = giving.reshape(prompts, -1)
    wanted: dict[str, float] = {
        "queries": len(giving), "giving": int(giving.sum()), "prompts": prompts,
        "giving_prompts": int(each.any(axis=1).sum()), "giving_greedily": int(each[:, 0].sum()),
        "held_out_giving": int(kept[begin + "held_out_giving"].sum()), "sample queries": len(giving),
    }  # fmt: skip
    if begin + "begins" in kept:
        begins = kept[begin + "begins"]
        left = (begins > 0) & (begins < kept[begin + "tokens"])
        wanted |= {"repeated": int((begins > 0).sum()), "diverged": int(left.sum())}
        wanted |= {"left_after_mean": float(begins[left].mean())} if left.any() else {}
    return wanted


def _over_control(kept: KeptExtraction, settings: Mapping[str, Any]) -> dict[str, float]:
    wanted: dict[str, float] = {}
    shares = []
    for method, name in ((DIVERGENCE, "repeating"), (CONTROL, "control")):
        prompts = _prompts(method, settings)
        giving = int(kept[slug(method) + ".giving"].reshape(prompts, -1).any(axis=1).sum())
        wanted |= {f"{name}_texts": prompts, f"{name}_extracted": giving, f"sample {name}": prompts}
        shares.append(giving / prompts)
    return wanted | {"estimate": shares[0] - shares[1]}


def _prompts(method: str, settings: Mapping[str, Any]) -> int:
    """The number of prompts of ``method``. Raises LookupError if none is stated."""
    stated = settings["prompts"][method]
    if not isinstance(stated, int) or stated < 1:
        raise LookupError(f"prompts.{method}")
    return stated


def _number(settings: Mapping[str, Any], name: str) -> float:
    stated = settings[name]
    if not isinstance(stated, int | float):
        raise LookupError(name)
    return float(stated)
