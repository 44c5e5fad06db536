"""What an extraction audit keeps: which texts come out, how nearly, and which are compared; never a token of them.

``verify.audits.extraction.kept`` reads these arrays to compute the figures again. Texts and records are in the order of
their files, training data first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.alike import ALIKE, AmongAlike
from audits.extraction.grid import points_found
from audits.extraction.opened import BothSides
from audits.extraction.outcomes import PromptOutcome
from audits.extraction.summary import QueryBudget, Texts
from audits.extraction.untargeted import Untargeted
from audits.extraction.windows import SkippedReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
_PREFIX = "extraction."


def arrays_of_texts(
    texts: Sequence[Texts], omitted: Sequence[Sequence[tuple[int, SkippedReason]]], queries: QueryBudget
) -> Arrays:
    """The verdicts on the texts of both files [texts], and the records without any [skipped]."""
    arrays: Arrays = {
        "train": np.concatenate([np.full(len(side), i == 0) for i, side in enumerate(texts)]),
        "line": np.concatenate([side.line for side in texts]),
        "matched": np.concatenate([side.matched for side in texts]),
        "greedy": np.concatenate([side.extracted for side in texts]),
        "undecided": np.concatenate([side.undecided for side in texts]),
        "copies": np.concatenate([side.copies for side in texts]),
        "shared": np.concatenate([side.shared for side in texts]),
        "compared": np.concatenate([side.compared for side in texts]),
        "cue": np.concatenate([side.cue for side in texts]),
        "skipped_train": np.array([i == 0 for i, entries in enumerate(omitted) for _ in entries], dtype=np.bool_),
        "skipped_line": np.array([line for entries in omitted for line, _ in entries], dtype=np.int64),
        "skipped_reason": np.array([int(reason) for entries in omitted for _, reason in entries], dtype=np.uint8),
    }
    for name in ("known", "unit"):
        found = [getattr(side, name) for side in texts if getattr(side, name) is not None]
        arrays |= {name: np.concatenate(found)} if found else {}
    near = [side.near for side in texts if side.near is not None]
    if len(near) == len(texts):
        arrays |= {
            "distance": np.concatenate([each.distance for each in near]),
            "characters": np.concatenate([each.characters for each in near]),
            "but_for_spaces": np.concatenate([each.but_for_spaces for each in near]),
            "longest_run": np.concatenate([each.run for each in near]),
        }
    every = [side.logp for side in texts if side.logp is not None]
    if every:
        logp = np.concatenate(every)
        arrays |= {"logp": logp, "discoverable": queries.finds(logp), "points": points_found(logp)}
    return _named(arrays)


def arrays_of_prefixes(both: BothSides | None, texts: Sequence[Texts]) -> Arrays:
    """Which texts a searched prefix opens [searched]; ``place`` is the index of each among ``texts`` of both files."""
    if both is None:
        return {}
    found = (both.train, both.heldout)
    starts = (0, len(texts[0]))
    known = {} if both.elsewhere is None else {"known": np.concatenate(both.elsewhere)}
    return _named({
        "place": np.concatenate([start + side.place for start, side in zip(starts, both.sides, strict=True)]),
        "greedy": np.concatenate([side.matches.extracted for side in found]),
        "undecided": np.concatenate([side.matches.undecided for side in found]),
        "passes": np.concatenate([side.spent for side in found]),
        **known,
    }, "adversarial_prefix.")  # fmt: skip


def arrays_of_prompts(outside: Untargeted | None) -> Arrays:
    """Which records come out after prompts from outside [records], and which queries give any [queries].

    The arrays ``line`` and ``near_line`` list the training records that come out and are not known from elsewhere.
    """
    if outside is None or not outside.outcomes:
        return {}
    first = outside.outcomes[0]
    of_records: Arrays = {
        "train": np.concatenate([np.full(len(file.line), i == 0) for i, file in enumerate(first.files)]),
        "counted": np.concatenate(first.counted),
    }
    units = [each for each in first.units if each is not None]
    of_records |= {"unit": np.concatenate(units)} if units else {}
    found = _named(of_records, "outside.")
    for outcome in outside.outcomes:
        found |= _named(_of_outcome(outcome), slug(outcome.written.prompts.method) + ".")
    return found


def _of_outcome(outcome: PromptOutcome) -> Arrays:
    came, every = [file.came_out[outcome.number] for file in outcome.files], range(len(outcome.files))
    ours, lines = came[0], outcome.files[0].line
    but = None if outcome.elsewhere is None else outcome.elsewhere[0]
    queries = len(outcome.written.texts)
    arrays: Arrays = {
        "line": lines[ours.records(outcome.counted[0], nearly=False, but=but)],
        "near_line": lines[ours.records(outcome.counted[0], nearly=True, but=but)],
        "giving": outcome.giving,
        "held_out_giving": came[1].texts(outcome.counted[1], queries),
        "verbatim_characters": ours.characters,
        "verbatim_tokens": ours.longest,
        "compared": np.concatenate(outcome.compared),
    }
    arrays |= {} if outcome.left_out is None else {"known": np.concatenate(outcome.left_out)}
    for name, nearly in (("out", False), ("near", True)):
        whole = [each.records(counted, nearly=nearly) for each, counted in zip(came, outcome.counted, strict=True)]
        arrays[name] = np.concatenate(whole)
        if outcome.elsewhere is not None:
            arrays[f"{name}_beyond"] = np.concatenate([outcome.out(side, nearly=nearly) for side in every])
    if outcome.written.prompts.words is not None:
        arrays["begins"] = outcome.written.begins
        arrays["tokens"] = np.array([len(text) for text in outcome.written.texts], dtype=np.int64)
    return arrays


def arrays_of_blocks(confirmed: Sequence[AmongAlike]) -> Arrays:
    """The texts of each comparison among similar texts [chosen], by their place and their block."""
    found: Arrays = {}
    for each in confirmed:
        quantity = each.evidence.quantity.removesuffix(ALIKE)
        begin = f"alike.{slug(each.evidence.method)}.{slug(quantity)}."
        found |= _named({"place": each.place, "block": each.block}, begin)
    return found


def slug(name: str) -> str:
    """The name of a method or a quantity as a part of names of arrays."""
    return name.replace(" ", "_")


def _named(arrays: Arrays, begin: str = "") -> Arrays:
    return {f"{_PREFIX}{begin}{name}": array for name, array in arrays.items()}
