"""The training records that leak most in an audit, by line, with their scores, the worst first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scores.scores_file import SCORE, round_coarsely
from privctl.data.several import DataPath, real_paths
from privctl.domain.leaking import LeakingRecord, Reason
from privctl.storage.atomic import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: The name of the scores that do not use the model.
_BLIND = "blind"


def leaking_records(
    arrays: Mapping[str, NDArray[Any]],
    members: DataPath | None,
    train: DataPath | None,
    reasons: Mapping[int, tuple[Reason, ...]] | None = None,
    sizes: Mapping[int, int] = MappingProxyType({}),
) -> tuple[LeakingRecord, ...]:
    """The records of ``members`` and ``train``, those that leak most first; ``arrays`` are the findings' by name.

    Records that come out word for word are first, then those that the strongest attack scores highest relative to the
    non-members. Scores are rounded to 8 significant bits, as those of a short record in full precision help to search
    for its text. ``reasons`` are those of the members, by line, and ``sizes`` the numbers of records if they are
    groups.
    """
    extracted = _extracted(arrays)
    scored = _scored(arrays)
    same = members is not None and train is not None and real_paths(members) == real_paths(train)
    records = []
    for line, (scores, as_high) in scored.items():
        assert members is not None  # only members are scored
        tried = extracted.pop(line, None) if same else None
        why = () if reasons is None else reasons.get(line, ())
        records.append(replace(_record(members, line, tried, scores, as_high), reasons=why, records=sizes.get(line)))
    records += [_record(train, line, tried, {}, {}) for line, tried in extracted.items() if train is not None]
    known = _known_lines(arrays)
    records = [replace(record, known_elsewhere=record.extracted is True and record.line in known) for record in records]
    return tuple(sorted(records, key=_order))


@contextmanager
def staged_leaks(path: Path | None, records: Sequence[LeakingRecord]) -> Iterator[list[PendingFile]]:
    """Write ``records`` as JSON Lines, readable by the owner only, to ``path``, not yet committed; nothing for None."""
    if path is None:
        yield []
        return
    with PendingFile(path) as pending:
        lines = (json.dumps(_fields(record), ensure_ascii=False) + "\n" for record in records)
        pending.write_at(0, "".join(lines).encode())
        yield [pending]


def _fields(record: LeakingRecord) -> dict[str, Any]:
    """The fields of a record, without the size and ``known_elsewhere`` if these do not apply."""
    fields = asdict(record)
    dropped = {"records"} if record.records is None else set()
    dropped |= set() if record.known_elsewhere else {"known_elsewhere"}
    return {name: fields[name] for name in fields if name not in dropped}


def _record(
    path: DataPath, line: int, extracted: bool | None, scores: Mapping[str, float], as_high: Mapping[str, float]
) -> LeakingRecord:
    return LeakingRecord(file=path.name, line=line, extracted=extracted, scores=scores, nonmembers_as_high=as_high)


def _order(record: LeakingRecord) -> tuple[bool, tuple[float, ...], str, int]:
    shares = tuple(record.nonmembers_as_high.values())
    return not record.extracted or record.known_elsewhere, shares or (1.0,), record.file, record.line


def _extracted(arrays: Mapping[str, NDArray[Any]]) -> dict[int, bool]:
    """Whether each training record comes out word for word, by line."""
    if "extraction.line" not in arrays:
        return {}
    of_training = arrays["extraction.train"]
    lines, greedy = arrays["extraction.line"][of_training], arrays["extraction.greedy"][of_training]
    extracted = dict(zip(lines.tolist(), greedy.tolist(), strict=True))
    return extracted | dict.fromkeys(_after_prompts(arrays), True)


def _after_prompts(arrays: Mapping[str, NDArray[Any]]) -> set[int]:
    """The lines of training records that come out after prompts from outside."""
    names = (name for name in arrays if name.startswith("extraction.") and name.endswith(".line"))
    return {line for name in names if name != "extraction.line" for line in arrays[name].tolist()}


def _known_lines(arrays: Mapping[str, NDArray[Any]]) -> set[int]:
    """The lines of training records that a reference model also produces, unless more of them comes out."""
    if "extraction.known" not in arrays:
        return set()
    known = arrays["extraction.line"][arrays["extraction.train"] & arrays["extraction.known"]]
    return set(known.tolist()) - _after_prompts(arrays)


def _scored(arrays: Mapping[str, NDArray[Any]]) -> dict[int, tuple[dict[str, float], dict[str, float]]]:
    """Each member's scores by attack, and the fractions of non-members that score as high, by line."""
    if "member" not in arrays:
        return {}
    member = arrays["member"]
    scored = {}
    for name, values in arrays.items():
        attack = name.removeprefix(SCORE)
        if name.startswith(SCORE) and attack != _BLIND:
            scored[attack] = (round_coarsely(values[member].astype(np.float64)), _as_high(values, member))
    attacks = sorted((name for name in scored if np.isfinite(scored[name][1]).any()), key=lambda n: _mean(scored[n][1]))
    lines: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
    for i, line in enumerate(arrays["line"][member].tolist()):
        judged = [name for name in attacks if np.isfinite(scored[name][1][i])]
        lines[line] = ({n: float(scored[n][0][i]) for n in judged}, {n: float(scored[n][1][i]) for n in judged})
    return lines


def _as_high(values: NDArray[Any], member: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each member, the fraction of non-members that score at least as high; NaN if the member was left out."""
    inside, outside = values[member], np.sort(values[~member & np.isfinite(values)])
    if not len(outside):
        return np.full(len(inside), np.nan)
    share = (len(outside) - np.searchsorted(outside, inside, side="left")) / len(outside)
    return np.where(np.isfinite(inside), share, np.nan)


def _mean(shares: NDArray[np.float64]) -> float:
    """One minus the AUC, up to ties."""
    return float(np.nanmean(shares))
