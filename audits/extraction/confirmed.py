"""Comparisons that would accuse a model, repeated among similar texts; see ``audits.extraction.alike``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction import opened
from audits.extraction.alike import AmongAlike, compared_among_alike, select_texts
from audits.extraction.came_out import records_at
from audits.extraction.compare import accuses
from audits.extraction.grid import GRID, best_cut
from audits.extraction.near import NEAR
from audits.extraction.opened import BothSides
from audits.extraction.outcomes import PromptOutcome
from audits.extraction.summary import BEYOND, METHOD, NEAR_BEYOND, Texts
from audits.extraction.untargeted import Untargeted
from audits.extraction.windows import WindowSample
from privctl.data.columns import Columns
from privctl.domain.evidence import Evidence
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of tokens of a whole record that are used to judge its similarity.
_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBeginnings:
    """The windows of both files, training text first: ``texts`` and their ``rows`` of tokens."""

    texts: Sequence[Texts]
    rows: Sequence[Sequence[NDArray[np.int64]]]

    def compared_among_alike(self, accusing: Evidence, model: LanguageModel) -> AmongAlike:
        """Repeat, among similar texts, a comparison of what follows the records' own beginnings.

        Places are those of all texts.
        """
        judged = [each.judged for each in self.texts]
        compared = [[self.rows[side][i] for i in np.flatnonzero(some).tolist()] for side, some in enumerate(judged)]
        out = [some[which] for some, which in zip(self._out(accusing.quantity, judged), judged, strict=True)]
        return _at(np.flatnonzero(np.concatenate(judged)), compared_among_alike(accusing, model, compared, out))

    def _out(self, quantity: str, judged: Sequence[NDArray[np.bool_]]) -> Sequence[NDArray[np.bool_]]:
        train, heldout = self.texts
        if quantity == BEYOND:
            return train.extracted & ~train.undecided, heldout.extracted | heldout.undecided
        if quantity == NEAR_BEYOND:
            assert train.near is not None
            assert heldout.near is not None
            return train.near.distance <= NEAR[-1], heldout.near.distance <= NEAR[-1]
        assert train.logp is not None
        assert heldout.logp is not None
        out = [np.zeros(len(some), dtype=np.bool_) for some in judged]
        cut = best_cut(train.logp[judged[0]], heldout.logp[judged[1]])
        for each, some, found in zip(out, judged, cut, strict=True):
            each[some] = found
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRecords:
    """The records of both files, read once more to find those that come out after prompts from outside."""

    outside: Untargeted
    samples: Sequence[WindowSample]
    span: int
    columns: Columns

    def compared_among_alike(self, accusing: Evidence, model: LanguageModel) -> AmongAlike:
        """Repeat, among similar records, a comparison of what comes out after prompts from outside.

        Places are those of all records that are long enough.
        """
        outcome = next(each for each in self.outside.outcomes if each.written.prompts.method == accusing.method)
        out = [outcome.out(side, nearly=accusing.quantity == NEAR_BEYOND) for side in (0, 1)]
        rows = self._rows(model, outcome, out)
        kept = [sorted(side) for side in rows]
        found = compared_among_alike(
            accusing,
            model,
            [[side[record] for record in some] for side, some in zip(rows, kept, strict=True)],
            [came[some] for came, some in zip(out, kept, strict=True)],
        )
        return _at(np.array([*kept[0], *(len(out[0]) + record for record in kept[1])], dtype=np.int64), found)

    def _rows(
        self, model: LanguageModel, outcome: PromptOutcome, out: Sequence[NDArray[np.bool_]]
    ) -> list[dict[int, NDArray[np.int64]]]:
        """The tokens of the selected records of each side, by their index in ``outcome.files``."""
        named = [
            (digest.tobytes(), side, record, bool(out[side][record]))
            for side, (file, some) in enumerate(zip(outcome.files, outcome.compared, strict=True))
            for record, digest in enumerate(file.digest)
            if some[record]
        ]
        places = select_texts([name for name, *_ in named], np.array([came for *_, came in named], dtype=np.bool_))
        wanted = {named[place][1:3] for place in places.tolist()}
        rows = []
        for side, one in enumerate(self.samples):
            some = {record for of, record in wanted if of == side}
            found = records_at(model, one.path, self.columns, self.span, some)
            rows.append({record: row[:_TOKENS] for record, row in found.items()})
        return rows


def confirmed(
    evidence: Sequence[Evidence],
    model: LanguageModel,
    own: OwnBeginnings,
    prefixes: BothSides | None,
    records: WholeRecords | None,
) -> tuple[AmongAlike, ...]:
    """Each comparison of ``evidence`` that accuses the model, repeated among similar texts."""
    found = []
    for item in filter(_accuses, evidence):
        if item.method == METHOD:
            found.append(own.compared_among_alike(item, model))
        elif item.method == opened.METHOD and prefixes is not None:
            rows, out = opened.compared(prefixes)
            places = np.flatnonzero(np.concatenate([prefixes.judged(side) for side in (0, 1)]))
            found.append(_at(places, compared_among_alike(item, model, rows, out)))
        elif records is not None:
            found.append(records.compared_among_alike(item, model))
    return tuple(found)


def _at(places: NDArray[np.int64], found: AmongAlike) -> AmongAlike:
    """``found`` with the ``places`` [compared] of the texts compared in place of their indices."""
    return replace(found, place=places[found.place])


def _accuses(item: Evidence) -> bool:
    return item.quantity in (BEYOND, NEAR_BEYOND, GRID) and accuses(item)
