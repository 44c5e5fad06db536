"""What an audit keeps of its secrets, from which its figures can be computed again: no values, and no record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.discoverable import log_success
from audits.extraction.summary import QueryBudget
from audits.secrets import evidence as evidences
from audits.secrets.attack import SecretAnswers, SecretAttackResult
from audits.secrets.trace import compared_with_held_out

if TYPE_CHECKING:
    from numpy.typing import NDArray


def kept_arrays(
    result: SecretAttackResult,
    omitted: Sequence[tuple[str, str]],
    queries: QueryBudget,
    without_model: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """One entry per attacked secret, identified by its position in the book.

    ``kind`` counts the kinds in the order of their figures, ``stratum`` the sets of secrets that are compared with each
    other; it is -1 for those that are compared with none. ``without_model`` is what ``blind`` keeps.
    """
    names = evidences.kinds_of(result, omitted)
    compared, alike = compared_with_held_out(result)
    arrays: dict[str, NDArray[Any]] = {
        "position": np.array([problem.target.position for problem in result.problems], dtype=np.int64),
        "control": result.control,
        "designed": result.designed,
        "held_out": result.held_out,
        "kind": np.array([names.index(kind) for kind in result.kinds.tolist()], dtype=np.int64),
        "stratum": np.where(compared, np.unique(alike, return_inverse=True)[1], -1).astype(np.int64),
        "bound": evidences.bounds_of(result),
        "pool": result.pools,
        "candidates": result.after.ranks.count,
        "rank": result.after.ranks.rank,
        **_answers(result.after, queries, ""),
    }
    if result.beam is not None:
        arrays |= {"in_beam": result.beam.found, "in_beam_by_chance": result.beam.chance}
    if result.before is not None and result.calibrated is not None:
        arrays |= {
            "candidates_before": result.before.ranks.count,
            "rank_before": result.before.ranks.rank,
            "candidates_calibrated": result.calibrated.count,
            "rank_calibrated": result.calibrated.rank,
            **_answers(result.before, queries, "_before"),
        }
    return {f"secret.{name}": array for name, array in (arrays | dict(without_model)).items()}


def _answers(answers: SecretAnswers, queries: QueryBudget, model: str) -> dict[str, NDArray[Any]]:
    likely = log_success(answers.logp, queries.count) >= np.log(queries.probability)
    return {
        f"loss{model}": answers.loss,
        f"completion{model}": answers.completion,
        f"logp{model}": answers.logp,
        f"discoverable{model}": np.asarray(likely),
    }
