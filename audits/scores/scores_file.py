"""The scores file of an audit: the rank of each record among the others, and nothing about single tokens.

Given the model and the log-probability of each token, or that of a short record in full precision, anyone can search
for the text that produces it. An ROC curve needs only the order of the records, so the file contains ranks instead of
scores. Rates, counts and the scores of canaries are stored unchanged. Still, only the owner can read the file, as it
says which lines of which file were members.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scores.table import ScoreTable, Skip
from audits.statistics.laws import mean_ranks
from privctl.domain.errors import InputError
from privctl.storage.arrays import read_arrays, staged_arrays
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.storage.atomic import PendingFile

#: The prefix of the names of arrays with an attack's scores.
SCORE = "score."
#: The prefix for the scores used by the permutation test, if an attack's own depend on the labels.
TESTED = "tested."
#: Arrays derived from the records' digests: the fold of each, and the seed of the relabellings. With these, an audit's
#: fitted scores can be recomputed without the records.
FOLD, SEED = "relabelled.fold", "relabelled.seed"
#: The prefix of ranks of records by their length and by a reference model, and of the blind baseline's AUCs under
#: relabelling, with which the baselines can be computed again.
BASELINE = "baseline."
#: Header key, and the warning to anyone who opens the file.
_NOTE = "privctl.private"
_WARNING = "not for release: standing of private records in an audit"
#: Log-probabilities and losses of real text, rounded to 8 significant bits: enough for a plot, too few for a search.
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
    """The records of an audit, and their ranks by each attack's scores.

    ``member``, ``line`` (in its file) and ``truncated`` have one entry per scored record, the ``skipped_`` arrays one
    per record without scores. ``ranks`` [records] by attack start at 1 for the lowest score, and ties share their mean
    rank; NaN marks a record that an attack left out.
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
        """The numbers of scored members and non-members."""
        members = int(self.member.sum())
        return {"members": members, "nonmembers": len(self.member) - members}


def arrays_of(table: ScoreTable) -> dict[str, NDArray[Any]]:
    """The per-record arrays of ``table``, by name."""
    return {name: getattr(table, name) for name in _LAYOUT}


def staged_scores(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> AbstractContextManager[PendingFile]:
    """``arrays`` in the form that may be stored, written to ``path`` but not yet committed."""
    kept_arrays = {name: _kept_form(name, array) for name, array in arrays.items()}
    return staged_arrays(path, kept_arrays, {_NOTE: _WARNING, **metadata})


def _kept_form(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if name.startswith((SCORE, TESTED)):
        return ranks_of(array)
    return round_coarsely(array) if name in _COARSE else array


def ranks_of(scores: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each of ``scores`` [records] from 1, with mean ranks for ties; NaN where not finite."""
    ranks = np.full(len(scores), np.nan)
    judged = np.isfinite(scores)
    ranks[judged] = mean_ranks(scores[judged])
    return ranks


def round_coarsely(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` rounded to ``_BITS`` significant bits; zero and non-finite values are unchanged."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fraction * 2**_BITS) / 2**_BITS, exponent), dtype=values.dtype)


def read_scores(path: Path) -> RecordScores:
    """The scores file of a membership audit. Raises InputError for another file, or an inconsistent one."""
    with SafetensorsFile(path) as file:
        description = "an audit's scores; give a *.scores.safetensors file"
        arrays = read_arrays(file, _LAYOUT, description)
        names = [tensor.name for tensor in file.tensors if tensor.name.startswith(SCORE)]
        ranks = read_arrays(file, dict.fromkeys(names, "F64"), description)
    scores = RecordScores(**arrays, ranks={name.removeprefix(SCORE): values for name, values in ranks.items()})
    _check(scores, path)
    return scores


def _check(scores: RecordScores, path: Path) -> None:
    sizes = {len(getattr(scores, field.name)) for field in fields(scores)[:3]} | {len(r) for r in scores.ranks.values()}
    skipped = {len(getattr(scores, field.name)) for field in fields(scores)[3:6]}
    reasons = np.isin(scores.skipped_reason, [int(skip) for skip in Skip]).all()
    if len(sizes) != 1 or len(skipped) != 1 or not reasons:
        raise InputError(f"{path} holds scores that do not add up to records; run the audit again")
