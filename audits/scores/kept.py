"""What an audit keeps of its scores: of each record where it stands among the others, and nothing of a token.

From the log-probability of each token, or of a short record to full precision, whoever has the model too can search for
the text that gives it. An ROC curve needs only the order of the records, so that is what a score becomes in the file.
Rates, counts and what is known of made-up canaries stay as they are. The file is for its owner alone all the same: it
says which lines of which file were members.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from audits.scores.table import ScoreTable, Skip
from privctl.domain.errors import InputError
from privctl.storage.arrays import read_arrays, staged_arrays
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.storage.atomic import PendingFile

#: Begins the name of every array of one attack's scores.
SCORE = "score."
#: Header key, and what it says to whoever opens the file.
_NOTE = "privctl.private"
_WARNING = "not for release: standing of private records in an audit"
#: Log-probabilities and losses of real text, which are kept to 8 significant bits: for a plot, not for a search.
_COARSE = ("extraction.logp", "secret.logp", "secret.loss", "secret.logp_before", "secret.loss_before")
_BITS = 8

_LAYOUT = {
    "member": "BOOL",
    "line": "I64",
    "truncated": "BOOL",
    "skipped_member": "BOOL",
    "skipped_line": "I64",
    "skipped_reason": "U8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordScores:
    """The records of an audit, and where each attack's scores put them.

    ``member``, ``line`` (in its file) and ``truncated`` have one entry a scored record, the ``skipped_`` arrays one a
    record that has no scores. ``ranks`` [records] by attack count up from the lowest score, equal ones sharing their
    mean rank; NaN marks a record that an attack left out.
    """

    member: NDArray[np.bool_]
    line: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    skipped_member: NDArray[np.bool_]
    skipped_line: NDArray[np.int64]
    skipped_reason: NDArray[np.uint8]
    ranks: Mapping[str, NDArray[np.float64]]

    @property
    def samples(self) -> dict[str, int]:
        """Scored records by set."""
        members = int(self.member.sum())
        return {"members": members, "nonmembers": len(self.member) - members}


def arrays_of(table: ScoreTable) -> dict[str, NDArray[Any]]:
    """The arrays of ``table`` that speak of records rather than tokens, by name."""
    return {name: getattr(table, name) for name in _LAYOUT}


def staged_kept(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> AbstractContextManager[PendingFile]:
    """What may be kept of ``arrays``, written but yet to get the name ``path``."""
    kept = {name: _kept(name, array) for name, array in arrays.items()}
    return staged_arrays(path, kept, {_NOTE: _WARNING, **metadata})


def _kept(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if name.startswith(SCORE):
        return standing(array)
    return _rounded(array) if name in _COARSE else array


def standing(scores: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each of ``scores`` [records] from 1, equal ones sharing the mean of theirs; NaN where not finite."""
    ranks = np.full(len(scores), np.nan)
    judged = np.isfinite(scores)
    ranks[judged] = rankdata(scores[judged])
    return ranks


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` to so many significant bits; zero and what is not finite stay as they are."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fraction * 2**_BITS) / 2**_BITS, exponent), dtype=values.dtype)


def read_scores(path: Path) -> RecordScores:
    """What ``staged_kept`` wrote of a membership audit; raises InputError for another file, or one in contradiction."""
    with SafetensorsFile(path) as file:
        what = "an audit's scores; give a *.scores.safetensors file"
        arrays = read_arrays(file, _LAYOUT, what)
        names = [tensor.name for tensor in file.tensors if tensor.name.startswith(SCORE)]
        ranks = read_arrays(file, dict.fromkeys(names, "F64"), what)
    found = RecordScores(**arrays, ranks={name.removeprefix(SCORE): values for name, values in ranks.items()})
    _check(found, path)
    return found


def _check(found: RecordScores, path: Path) -> None:
    sizes = {len(getattr(found, field.name)) for field in fields(found)[:3]} | {len(r) for r in found.ranks.values()}
    skipped = {len(getattr(found, field.name)) for field in fields(found)[3:6]}
    reasons = np.isin(found.skipped_reason, [int(skip) for skip in Skip]).all()
    if len(sizes) != 1 or len(skipped) != 1 or not reasons:
        raise InputError(f"{path} holds scores that do not add up to records; run the audit again")
