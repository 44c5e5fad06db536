"""What an extraction audit kept: which texts come out, how nearly, which are compared, and in which blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from verify.audits.recounted import kept_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREFIX = "extraction."
#: The safetensors type of each array, by the last part of its name.
_KINDS = {
    "train": "BOOL", "line": "I64", "matched": "I64", "greedy": "BOOL", "undecided": "BOOL", "copies": "I64",
    "shared": "BOOL", "compared": "BOOL", "cue": "F32", "known": "BOOL", "unit": "I64", "distance": "F32",
    "characters": "F32", "but_for_spaces": "BOOL", "longest_run": "I64", "logp": "F64", "discoverable": "BOOL",
    "points": "U8", "skipped_train": "BOOL", "skipped_reason": "U8", "place": "I64", "passes": "I64", "block": "I64",
    "counted": "BOOL", "out": "BOOL", "near": "BOOL", "out_beyond": "BOOL", "near_beyond": "BOOL",
    "verbatim_characters": "I64", "verbatim_tokens": "I64", "giving": "BOOL", "held_out_giving": "BOOL",
    "begins": "I64", "tokens": "I64",
}  # fmt: skip
_ALWAYS = ("train", "matched", "greedy", "undecided", "copies", "shared", "compared", "cue")
_SEARCHED = ("place", "greedy", "undecided", "passes")
_OF_QUERIES = ("giving", "held_out_giving", "begins", "tokens")
_OF_TRAINING = ("verbatim_characters", "verbatim_tokens")
#: A suffix with more than this fraction of its tokens in the prefix is not compared.
CUED = 0.5
PREFIXES, OUTSIDE = "adversarial_prefix.", "outside."
_ALIKE = "alike."


def slug(name: str) -> str:
    """The name of a method or a quantity as a part of names of arrays."""
    return name.replace(" ", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExtraction:
    """The arrays by name: of texts [texts], of searched prefixes [searched], and of prompts [records] or [queries].

    Texts and records of both files follow each other, training data first.
    """

    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def sides(self, begin: str = "") -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The texts, or what else has arrays that ``begin`` so, of the training data and held out."""
        train = self["train"][self[begin + "place"]] if begin == PREFIXES else self[begin + "train"]
        return train, ~train

    def known(self, begin: str = "") -> NDArray[np.bool_]:
        """What a reference model gives too, [texts] or [searched]."""
        name = begin + "known"
        return self[name] if name in self else np.zeros(len(self[begin + "greedy"]), dtype=np.bool_)

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Texts [texts] that are in one file only and cannot be copied from their prefix."""
        return np.asarray(self["compared"] & (self["cue"] <= CUED))

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Texts [texts] that are compared with the other file's."""
        return np.asarray(self.comparable & ~self.known())

    def units(self, begin: str = "") -> NDArray[np.int64] | None:
        """What shares a coin with what, [texts], [searched] or [records]; None if each has its own."""
        if begin == PREFIXES:
            return self["unit"][self[begin + "place"]] if "unit" in self else None
        return self.arrays.get(begin + "unit")

    def blocks(self, method: str, quantity: str) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The places and the blocks [chosen] of a comparison among similar texts; None if it kept none."""
        begin = f"{_ALIKE}{slug(method)}.{slug(quantity)}."
        return (self[begin + "place"], self[begin + "block"]) if begin + "block" in self else None


def count_of(found: NDArray[Any], units: NDArray[np.int64] | None) -> NDArray[Any]:
    """The largest of ``found`` [texts] in each of ``units`` [texts]; ``found`` itself for None."""
    if units is None or not len(found):
        return found
    _, number = np.unique(units, return_inverse=True)
    largest = np.zeros(int(number.max()) + 1, dtype=found.dtype)
    np.maximum.at(largest, number, found)
    return largest


def kept_extraction(path: Path, report: PrivacyReport, files: NamedFiles, suffix: int | None) -> KeptExtraction | None:
    """What the audit report at ``path`` kept of its texts; None if that is not at hand, or of an older audit.

    ``suffix`` is the stated number of tokens that must come out. Raises InputError for arrays that contradict each
    other.
    """
    place = kept_file(path, report, files)
    if place is None:
        return None
    with SafetensorsFile(place) as file:
        names = {tensor.name.removeprefix(_PREFIX) for tensor in file.tensors if tensor.name.startswith(_PREFIX)}
        if not names >= set(_ALWAYS):
            return None
        layout = {name: kind for name in names if (kind := _KINDS.get(name.rpartition(".")[2])) is not None}
        found = read_arrays(file, {_PREFIX + name: kind for name, kind in layout.items()}, "an audit's texts")
    kept = KeptExtraction(arrays={name.removeprefix(_PREFIX): array for name, array in found.items()})
    if not (_fits(kept) and _is_possible(kept, suffix)):
        raise InputError(f"{place} holds texts that cannot be; run the audit again")
    return kept


def _fits(kept: KeptExtraction) -> bool:
    """Whether all arrays that go together have one length, and places lie within it."""
    lengths: dict[str, set[int]] = defaultdict(set)
    for name, array in kept.arrays.items():
        lengths[_group(name)].add(len(array))
    lengths.pop("", None)
    if any(len(each) > 1 for each in lengths.values()):
        return False
    texts = len(kept["train"])
    if any(name.startswith(PREFIXES) for name in kept.arrays):
        if not all(PREFIXES + name in kept for name in _SEARCHED):
            return False
        place = kept[PREFIXES + "place"]
        if len(np.unique(place)) < len(place) or not (len(place) and place.min() >= 0 and place.max() < texts):
            return False
    trained = int(kept[OUTSIDE + "train"].sum()) if OUTSIDE + "train" in kept else 0
    return lengths.get("training records", {trained}) == {trained}


def _group(name: str) -> str:
    """What an array has one entry for; "" for a mere list."""
    begin, _, last = name.rpartition(".")
    if not begin:
        return "skipped" if last.startswith("skipped_") else "texts"
    if begin + "." == PREFIXES or begin.startswith(_ALIKE):
        return begin
    if last in _OF_QUERIES:
        return f"{begin} queries"
    if last in _OF_TRAINING:
        return "training records"
    return "" if last in ("line", "near_line") else "records"


def _is_possible(kept: KeptExtraction, suffix: int | None) -> bool:
    """Whether the texts agree with themselves: what comes out does so to its end, and what is shared is in both."""
    greedy = kept["greedy"]
    if (kept["shared"] & kept["compared"]).any() or not (kept["matched"] >= 0).all():
        return False
    if suffix is not None and not np.array_equal(greedy, kept["matched"] == suffix):
        return False
    if PREFIXES + "place" in kept and not (kept["compared"] & ~kept.known())[kept[PREFIXES + "place"]].all():
        return False
    return "distance" not in kept or not kept["distance"][greedy].any()
