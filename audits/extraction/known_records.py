"""Which stretches of records that come out after prompts from outside are also produced by a reference model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.came_out import records_at
from audits.extraction.elsewhere import KnownElsewhere
from audits.extraction.outcomes import PromptOutcome
from audits.extraction.untargeted import Untargeted
from audits.extraction.windows import WindowSample
from privctl.data.columns import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray


def without_known(
    outside: Untargeted, elsewhere: KnownElsewhere, samples: Sequence[WindowSample], columns: Columns
) -> Untargeted:
    """``outside`` without what the reference model also produces; rereads the files of ``samples``.

    The reference model is asked for each stretch that comes out, given the record's tokens before it.
    """
    wanted = [_records(outside.outcomes, side) for side in (0, 1)]
    rows = [
        records_at(elsewhere.audited, one.path, columns, elsewhere.shape.suffix, wanted_rows)
        for one, wanted_rows in zip(samples, wanted, strict=True)
    ]
    outcomes = tuple(
        outcome.without([_is_produced(outcome, side, rows[side], elsewhere) for side in (0, 1)])
        for outcome in outside.outcomes
    )
    return replace(outside, outcomes=outcomes)


def _records(outcomes: Sequence[PromptOutcome], side: int) -> set[int]:
    """The compared records of one side that come out in any of ``outcomes``."""
    return {record for outcome in outcomes for record in np.flatnonzero(outcome.out(side, nearly=True)).tolist()}


def _is_produced(
    outcome: PromptOutcome, side: int, rows: dict[int, NDArray[np.int64]], elsewhere: KnownElsewhere
) -> NDArray[np.bool_]:
    """Which stretches [stretches] the reference model produces completely, piece by piece."""
    stretches = outcome.files[side].came_out[outcome.number].stretches
    windows: list[tuple[NDArray[np.int64], int]] = []
    owners: list[int] = []
    for number, (record, start, stop, _) in enumerate(stretches.tolist()):
        if outcome.compared[side][record]:
            pieces = elsewhere.stretches(rows[record], start, stop)
            windows += pieces
            owners += [number] * len(pieces)
    is_given = np.zeros(len(stretches), dtype=np.bool_)
    given = elsewhere.gives([row for row, _ in windows], [length for _, length in windows])
    asked = np.array(owners, dtype=np.int64)
    is_given[asked] = True
    is_given[asked[~given]] = False
    return is_given
