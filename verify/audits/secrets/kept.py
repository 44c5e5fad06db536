"""The ranks of secrets that an audit kept, and what else it kept of them."""

from __future__ import annotations

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

_PREFIX = "secret."
_ALWAYS = {
    "control": "BOOL", "designed": "BOOL", "held_out": "BOOL", "kind": "I64", "stratum": "I64", "bound": "F64",
    "candidates": "I64", "rank": "I64", "completion": "U8", "logp": "F64", "discoverable": "BOOL",
}  # fmt: skip
_OF_BEAM = {"in_beam": "BOOL", "in_beam_by_chance": "F64"}
_OF_BASE = {
    "candidates_before": "I64", "rank_before": "I64", "candidates_calibrated": "I64", "rank_calibrated": "I64",
    "completion_before": "U8", "logp_before": "F64", "discoverable_before": "BOOL",
}  # fmt: skip
_OF_RECORDS = {"record": "I64"}
#: Of how many values the candidates of a planted canary were drawn; older audits did not keep it.
_OF_POOL = {"pool": "I64"}
_WITHOUT_MODEL = {"records_score": "F64", "records_area": "F64", "lengths_area": "F64"}
BEYOND = "beyond_records."
#: Arrays with an entry for each relabelling, and not for each secret.
_RELABELLED = ("records_area", "lengths_area", BEYOND)
#: The names of the scores by which secrets are ranked, as reports state them.
LOSS, CALIBRATED = "loss", "loss less the base model's"
_SUFFIX = {LOSS: "", CALIBRATED: "_calibrated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSecrets:
    """The ``rank`` [secrets] of each true value among ``count`` [secrets] values."""

    rank: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.bool_]:
        """Whether the true value ranks first, [secrets]."""
        return np.asarray(self.rank == 1)

    @property
    def bits(self) -> NDArray[np.float64]:
        """log2 of count over rank, [secrets]."""
        return np.asarray(np.log2(self.count) - np.log2(self.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSecrets:
    """The arrays [secrets] by name, and those [1 + relabellings] of the records without the model."""

    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Secrets of records that the model was trained on, [secrets]."""
        return np.asarray(~(self["control"] | self["held_out"]))

    def ranked(self, score: str) -> RankedSecrets | None:
        """The ranks by the loss, before training, or by a score with a name; None if there are none."""
        suffix = _SUFFIX.get(score, score)
        if f"rank{suffix}" not in self:
            return None
        return RankedSecrets(rank=self[f"rank{suffix}"], count=self[f"candidates{suffix}"])

    def values_by(self, score: str) -> NDArray[np.float64] | None:
        """What a test of ``score`` compares, [secrets]: bits, or presence in a beam less that by chance."""
        ranks = self.ranked(score)
        if ranks is not None:
            return ranks.bits
        if score in _SUFFIX or "in_beam" not in self:
            return None
        return np.asarray(self["in_beam"] - self["in_beam_by_chance"])


def kept_secrets(path: Path, report: PrivacyReport, files: NamedFiles) -> KeptSecrets | None:
    """What the audit report at ``path`` kept of its secrets; None if that is not at hand, or of an older audit.

    Raises InputError for arrays that contradict each other.
    """
    place = kept_file(path, report, files)
    if place is None:
        return None
    with SafetensorsFile(place) as file:
        names = {tensor.name.removeprefix(_PREFIX) for tensor in file.tensors if tensor.name.startswith(_PREFIX)}
        if not names >= _ALWAYS.keys():
            return None
        layout = dict(_ALWAYS)
        for more in (_OF_BEAM, _OF_BASE, _OF_RECORDS, _OF_POOL, _WITHOUT_MODEL):
            layout |= more if more.keys() & names else {}
        layout |= {name: "F64" for name in names if name.startswith(BEYOND)}
        found = read_arrays(file, {_PREFIX + name: kind for name, kind in layout.items()}, "an audit's secrets")
    arrays = {name.removeprefix(_PREFIX): array for name, array in found.items()}
    _check(arrays, place)
    return KeptSecrets(arrays=arrays)


def _check(arrays: Mapping[str, NDArray[Any]], place: Path) -> None:
    sizes = {len(array) for name, array in arrays.items() if not name.startswith(_RELABELLED)}
    draws = {len(array) for name, array in arrays.items() if name.startswith(_RELABELLED)}
    ranks = [
        (arrays[f"rank{s}"], arrays[f"candidates{s}"]) for s in ("", "_before", "_calibrated") if f"rank{s}" in arrays
    ]
    possible = all(((rank >= 1) & (rank <= count)).all() for rank, count in ranks)
    drawn_from = arrays.get("pool", np.ones(1))[arrays["designed"] if "pool" in arrays else slice(None)]
    possible &= bool((drawn_from >= 1).all())
    if len(sizes) != 1 or len(draws) > 1 or 0 in draws or not possible:
        raise InputError(f"{place} holds ranks of secrets that cannot be; run the audit again")
