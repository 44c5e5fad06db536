"""Computes the figures of planted canaries again, from the score and the coin of each that the audit kept."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile, read_text
from verify.audits.canaries.figures import COMPLETION, DISCLOSED, EXPOSURE, MEAN, MEDIAN, SIDES
from verify.audits.recounted import Recounted, kept_file
from verify.audits.split.counted_again import wrong_guesses
from verify.audits.terms import METHODS, of_split
from verify.files.places import as_recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KINDS = {
    "canary.exposure": "F64", "canary.among": "I64", "canary.score": "F64", "canary.completion": "U8",
    "canary.scored": "BOOL", "canary.included": "BOOL", "canary.copies": "I64",
}  # fmt: skip
#: Which canaries share their references, and how many; older audits did not keep these.
_PEERS = {"canary.group": "I64", "canary.references": "I64"}
_INCLUDED = re.compile(r"included, ([0-9]+) (?:copy|copies)")
_DISCLOSED, _UNDECIDED = 1, 2
_CLOSE = 1e-9


def recount_planted(path: Path, report: PrivacyReport, files: NamedFiles) -> Recounted:
    """Compare the figures of planted canaries in the audit report at ``path`` with the kept scores, if present."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    if stated is None or stated.canary_commitment is None:
        return Recounted()
    try:
        kept = _kept_arrays(path, report, files)
        manifest = None if kept is None else _manifest(path, report)
    except (InputError, KeyError, TypeError) as fault:
        return Recounted(wrong=(f"what it kept of its canaries cannot be read ({fault})",))
    if kept is None:
        return Recounted()
    wrong = [*_other_coins(kept, manifest), *_other_groups(kept, stated)]
    items = []
    for item in report.evidence:
        if item.method in METHODS and of_split(item, stated):
            continue
        try:
            faults = _faults(item, kept, stated)
        except LookupError as missing:
            faults = [f"it lacks the entry {missing}, without which it cannot be computed again"]
        if faults is not None:
            items.append(item)
            wrong += [f"{item.method}, {item.quantity}: {fault}" for fault in faults if fault]
    return Recounted(items=tuple(items), wrong=tuple(wrong))


def _kept_arrays(path: Path, report: PrivacyReport, files: NamedFiles) -> Mapping[str, NDArray[Any]] | None:
    """The arrays [canaries] by name; None if the file is missing or not the recorded one."""
    place = kept_file(path, report, files)
    if place is None:
        return None
    with SafetensorsFile(place) as file:
        layout = _KINDS | (_PEERS if any(tensor.name in _PEERS for tensor in file.tensors) else {})
        arrays = read_arrays(file, layout, "an audit's scores of canaries")
    if len({len(array) for array in arrays.values()}) > 1:
        raise InputError(f"{place} holds other numbers of scores and coins")
    return {name.removeprefix("canary."): array for name, array in arrays.items()}


def _manifest(path: Path, report: PrivacyReport) -> Sequence[tuple[bool, int]] | None:
    """The coin and the copies of each canary in the manifest; None if that is not at hand."""
    for artifact in report.inputs:
        place = as_recorded(path, artifact) if artifact.role == "canaries" else None
        if place is not None:
            canaries = parse_json(read_text(place), str(place))["canaries"]
            return [(bool(canary["included"]), int(canary["copies"])) for canary in canaries]
    return None


def _other_coins(kept: Mapping[str, NDArray[Any]], manifest: Sequence[tuple[bool, int]] | None) -> Iterator[str]:
    stated = list(zip(kept["included"].tolist(), kept["copies"].tolist(), strict=True))
    if manifest is not None and list(manifest) != stated:
        yield "what it kept of its canaries has other coins or copies than their manifest"


def _other_groups(kept: Mapping[str, NDArray[Any]], stated: AuditParameters) -> Iterator[str]:
    """Yields a sentence if more sets of canaries than stated were ranked among a sample, or among all secrets.

    A gate takes an exposure for exact if all sets were ranked among all secrets, whose references are 0 in number.
    """
    if "group" not in kept:
        return
    scored = kept["group"] >= 0
    counts = [len(np.unique(kept["group"][scored & (kept["references"] == 0)])), 0]
    counts[1] = len(np.unique(kept["group"][scored])) - counts[0]
    exact = stated.canary_exact_groups or 0
    for count, limit, among in zip(
        counts, (exact, (stated.canary_groups or 0) - exact), ("all secrets", "some secrets"), strict=True
    ):
        if count > limit:
            ranked = counted(count, "set of canaries was", "sets of canaries were")
            yield f"{ranked} ranked among {among}, by what it kept, and it states {limit}"


def _faults(item: Evidence, kept: Mapping[str, NDArray[Any]], stated: AuditParameters) -> list[str] | None:
    """What is wrong with ``item``, a sentence each; None if the kept scores do not give it."""
    if item.method in METHODS and item.lower is not None and "copies" in item.details:
        inside = kept["copies"] <= item.details["copies"]
        scored = kept["scored"][inside]
        scores, coins = kept["score"][inside][scored], kept["included"][inside][scored]
        if item.samples["canaries"] != int(inside.sum()):
            return [f"it is of {item.samples['canaries']} canaries, and {int(inside.sum())} are kept"]
        return [wrong_guesses(item, scores, coins, whole=True)]
    if item.method not in (EXPOSURE, COMPLETION):
        return None
    side = _side(item.quantity, kept)
    if side is None:
        return None
    side &= kept["scored"]
    if item.samples.get("canaries") != int(side.sum()):
        return [f"it is of {item.samples.get('canaries')} canaries, and {int(side.sum())} are kept"]
    if not side.any():
        return []
    wanted = _completions(kept, side) if item.method == COMPLETION else _exposures(item, kept, side, stated)
    return [
        f"its {name} is {_value(item, name):.6g}, and the scores kept give {value:.6g}"
        for name, value in wanted.items()
        if not math.isclose(_value(item, name), value, rel_tol=1e-6, abs_tol=_CLOSE)
    ]


def _value(item: Evidence, name: str) -> float:
    value = item.estimate if name == "estimate" else item.details.get(name)
    return math.nan if value is None else float(value)


def _side(quantity: str, kept: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_] | None:
    """The canaries that a figure is of; None if its name names none."""
    begins = next((beginning for beginning in (MEAN, MEDIAN, DISCLOSED) if quantity.startswith(beginning)), None)
    if begins is None:
        return None
    name, included = quantity.removeprefix(begins), kept["included"]
    if name.startswith(SIDES[1]):
        return np.asarray(~included)
    if name == SIDES[0]:
        return np.array(included)
    match = _INCLUDED.fullmatch(name)
    return None if match is None else np.asarray(included & (kept["copies"] == int(match[1])))


def _completions(kept: Mapping[str, NDArray[Any]], side: NDArray[np.bool_]) -> dict[str, float]:
    states = kept["completion"][side]
    disclosed, undecided = (int((states == state).sum()) for state in (_DISCLOSED, _UNDECIDED))
    return {"estimate": disclosed / len(states), "disclosed": disclosed, "undecided": undecided}


def _exposures(
    item: Evidence, kept: Mapping[str, NDArray[Any]], side: NDArray[np.bool_], stated: AuditParameters
) -> dict[str, float]:
    bits = kept["exposure"][side]
    if item.quantity.startswith(MEDIAN):
        return {
            "estimate": float(np.median(bits)), "mean": float(bits.mean()), "max": float(bits.max()),
            "ceiling": float(np.log2(kept["among"][side].max())),
        }  # fmt: skip
    from scipy.special import gammaincc

    wanted = {"estimate": float(bits.mean())}
    if "deviation" in item.details:  # older audits did not state it
        wanted["deviation"] = float(np.std(bits, ddof=1))
    if "group" in kept:
        # Brown's correction (1975): c canaries that share n references tell as much as c / (1 + (c - 1) / n).
        sizes = np.unique(kept["group"][side], return_counts=True)[1]
        references = kept["references"][side][np.unique(kept["group"][side], return_index=True)[1]]
        spreads = [1 + (c - 1) / n if n else 1.0 for c, n in zip(sizes.tolist(), references.tolist(), strict=True)]
        wanted["effective"] = math.fsum(c / spread for c, spread in zip(sizes.tolist(), spreads, strict=True))
        share = len(bits) / math.fsum(c * spread for c, spread in zip(sizes.tolist(), spreads, strict=True))
        wanted["p_value"] = float(gammaincc(len(bits) * share, math.log(2) * float(bits.sum()) * share))
        return wanted
    effective = item.details.get("effective", 0.0)
    if effective > 0 and (stated.canary_groups == 1 or math.isclose(effective, len(bits))):
        # An older audit: of several groups the correction needs their sizes.
        wanted["p_value"] = float(gammaincc(effective, math.log(2) * float(bits.sum()) * effective / len(bits)))
    return wanted
