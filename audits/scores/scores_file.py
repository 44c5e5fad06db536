"""The scores file of an audit: the rank of each record among the others, and nothing about single tokens.

Given the model and the log-probability of each token, or that of a short record in full precision, anyone can search
for the text that produces it. An ROC curve needs only the order of the records, so the file contains ranks instead of
scores. Rates, counts, the scores of canaries, and areas under curves of the records without the model are stored
unchanged. Still, only the owner can read the file, as it says which lines of which file were members.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scores.table import ScoreTable
from audits.statistics.laws import mean_ranks
from privctl.storage.arrays import staged_arrays

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

#: The arrays with an entry per record: of those scored whether it was a member, its line and whether it was cut short,
#: of those without scores whether it was a member, its line and why.
_OF_RECORDS = ("member", "line", "truncated", "skipped_member", "skipped_line", "skipped_reason")


def arrays_of(table: ScoreTable) -> dict[str, NDArray[Any]]:
    """The per-record arrays of ``table``, by name."""
    return {name: getattr(table, name) for name in _OF_RECORDS}


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
