"""A membership audit of the scores that another attack tool gave to records: the engine of ``privctl audit scores``.

The records are not at hand, nor does privctl run the model. So neither a baseline without the model nor another attack
can be run, and the report says so.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.asked import files_of, pairs_of, stated
from audits.canaries.design import BOUNDS_SHARE
from audits.claims import DEFAULT_DELTA
from audits.findings import ALPHA, PRIVATE, Findings
from audits.lineage import Lineage
from audits.mechanism_curve import curve_of
from audits.membership.attack import RATES, Settings, curve_evidence
from audits.membership.baseline import Baseline
from audits.membership.joint_test import with_joint_test
from audits.membership.remarks import LOSSES, backwards_warnings
from audits.membership.verdict import LEAST_AUC, verdict
from audits.record_scores.of_model import ModelOfScores
from audits.record_scores.parts import attacks_in, read_parts
from audits.scores.table import Skip
from audits.split.bounds import DrawnScores
from audits.split.drawn import DrawnSplit
from audits.split.findings import guesses_not_made, split_findings
from audits.split.implied import examples_of_a_coin
from audits.split.premises import of_training, premises, split_parameters
from audits.statistics.max_t import rank_statistics
from audits.statistics.relabel import data_seed
from privctl.data.names import spelled_alike
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.codec import encode_value
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_EXPECTED = "a CSV or TSV file whose first line names its columns, JSON lines, or Parquet"
_ASSERTED = (
    "membership and scores are what the caller asserts: nothing shows that they are of one model, or that its members "
    "and non-members are a random split of one source, without which they may differ by themselves"
)
_SPLIT = (
    "nothing shows that its members and non-members are a random split of one source, without which they may differ by "
    "themselves"
)
_FITTED = "scores that were fitted to the coins make the bounds invalid"
_NOT_FITTED = (
    "that the scores are of one model, and that nothing but the model and the records themselves decided them, is what "
    f"the caller asserts: {_FITTED}"
)
_MEMBER = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreColumns:
    """The names of the columns: what identifies a ``record``, ``member``, and one of ``scores`` for each attack."""

    record: str = "id"
    member: str = "member"
    scores: tuple[str, ...] = ("score",)

    def __post_init__(self) -> None:
        names = (self.record, self.member, *self.scores)
        if len(set(names)) != len(names):
            raise CommandError(f"the columns {', '.join(names)} are not all different; name one column for each use")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRecords:
    """``member`` [records], the ``scores`` [records] of each attack by its column, and the records' ``ids``.

    ``skipped`` counts the records that privctl left out of its own file of scores, by (member, reason).
    """

    member: NDArray[np.bool_]
    scores: Mapping[str, NDArray[np.float64]]
    ids: Sequence[str] = ()
    skipped: Mapping[tuple[bool, Skip], int] = field(default_factory=dict)

    @property
    def left_out(self) -> tuple[Omission, ...]:
        """What was left out, for the report."""
        return tuple(
            Omission(what=counted(count, "member" if member else "nonmember"), reason=skip.reason)
            for (member, skip), count in self.skipped.items()
        )


def run_record_scores(
    paths: Sequence[Path],
    report: Path,
    *,
    columns: ScoreColumns,
    least_auc: float = LEAST_AUC,
    split: DrawnSplit | None = None,
    delta: float | None = None,
    model: ModelOfScores | None = None,
) -> PrivacyReport:
    """The report, to be written to ``report``, on the scores in ``paths``, of which several must be Parquet.

    Ids that differ only in spelling are different records, which the report counts and says.

    All intervals together are wrong with probability at most ``ALPHA``. Of a ``split`` that privctl drew, half of that
    is for lower bounds on epsilon, at ``delta`` (1e-5 by default), and mu; where the scores are said to be of a
    ``model``, the claims of its report are held against them. Raises InputError for a file that does not
    hold a finite score for each record, and records of both sides, and for records that are not of the split.
    """
    if split is not None and split.group_by is not None:
        raise CommandError(
            f"{split.path} threw a coin for each value of {split.group_by!r}, and these scores are of records; judge "
            "such a split with privctl audit membership --split"
        )
    read = read_record_scores(paths, columns)
    alpha = ALPHA if split is None else (1 - BOUNDS_SHARE) * ALPHA
    bounds = Findings() if split is None else _of_split(read, split, delta, model)
    intervals = len(read.scores) * (1 + len(RATES))
    settings = Settings(confidence=1 - alpha / intervals)
    evidence = with_joint_test(
        {
            _method(name): curve_evidence(_method(name), scores, read.member, settings)
            for name, scores in read.scores.items()
        },
        {_method(name): rank_statistics(scores, RATES) for name, scores in read.scores.items()},
        read.member,
        data_seed(row.tobytes() for row in np.stack(list(read.scores.values()), axis=1)),
        alpha,
    )
    data = (*(file_artifact("scores", path, report) for path in paths), *_files_of(split, report))
    lineage = Lineage() if model is None else model.lineage
    asked = AskedAudit(
        files=files_of(data),
        columns=tuple(read.scores),
        least_auc=least_auc,
        delta=None if split is None else delta,
        claims=pairs_of(lineage.claims) if split is not None else (),
        curve="canary_curve" in bounds.parameters,
    )
    blind = Baseline(evidence=(), scores=np.full(len(read.member), np.nan))
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("numpy", "scipy")),
        inputs=(*(() if model is None else model.inputs), *data),
        parameters={
            "attack": [_method(name) for name in read.scores], "least_auc": least_auc, "confidence": 1 - ALPHA,
            "asked": stated(asked),
            **({} if split is None else split_parameters(split)),
            **({} if model is None else {"score_conditions": [encode_value(model.condition)]}),
            **bounds.parameters,
        },
        evidence=(*evidence, *bounds.evidence),
        verdicts=(
            _of_training(verdict(evidence, blind, least_auc, drawn=split is not None, check=LOSSES), split, lineage),
            *bounds.verdicts,
        ),
        omissions=(
            Omission(
                what="baselines without the model",
                reason="they need the records, of which the file holds the scores alone",
            ),
            *bounds.omissions,
            *read.left_out,
        ),
        warnings=(
            *_told(split, model),
            *bounds.warnings,
            f"whether {counted(len(read.scores), 'column')} of scores does better than chance is decided by one "
            f"permutation test, which errs at most {100 * alpha:.3g} times in 100 if both sides were drawn alike and "
            "no score was fitted to the labels",
            f"{counted(intervals, 'interval')} only say how large the differences are; each holds at "
            f"{100 * settings.confidence:.4g} %, so that all hold together at the audit's confidence",
            "a stronger attack may find what these scores did not",
            *_similar(read.ids, columns.record),
            *backwards_warnings(evidence, LOSSES),
            *lineage.doubts,
            PRIVATE,
        ),
        parents=lineage.parents,
    )  # fmt: skip


def _of_split(read: ScoredRecords, split: DrawnSplit, delta: float | None, model: ModelOfScores | None) -> Findings:
    """What the scores of a drawn ``split`` bound, and what that says of the claims of the ``model``'s own report."""
    named = {_method(name): scores for name, scores in read.scores.items()}
    drawn = DrawnScores(split=split, ids=read.ids, member=read.member, skipped=read.skipped)
    if model is None:
        bounds = drawn.bounds(named, DEFAULT_DELTA if delta is None else delta, BOUNDS_SHARE * ALPHA)
        return Findings(evidence=bounds, warnings=tuple(guesses_not_made(bounds)))
    lineage = model.lineage
    # A record more or less of an example that has others replaces it, which is no curve of two examples.
    examples = None if lineage.unit is not None else examples_of_a_coin(split, None)
    return split_findings(
        drawn,
        named,
        trained_on=lineage.trained_on,
        claimed=lineage.claims,
        curve=None if examples is None else curve_of(lineage, model.profile, examples),
        delta=delta,
        alpha=BOUNDS_SHARE * ALPHA,
    )


def _of_training(found: Verdict, split: DrawnSplit | None, lineage: Lineage) -> Verdict:
    """Of a drawn split, finding nothing counts only for a model that may have been trained on its members."""
    if split is None or found.outcome is not Outcome.CONSISTENT:
        return found
    return of_training(found, split, lineage.trained_on)


def _told(split: DrawnSplit | None, model: ModelOfScores | None) -> Iterator[str]:
    """On what all of it rests."""
    if split is not None:
        yield from premises(split, None if model is None else model.lineage.trained_on)
    if model is not None:
        word, statement = model.condition.name, model.condition.statement
        yield f"nothing but the caller's word ties the scores to the model (assumption {word!r}): {statement}"
    if split is not None:
        yield _NOT_FITTED if model is None else _FITTED
    else:
        yield _ASSERTED if model is None else _SPLIT


def _files_of(split: DrawnSplit | None, report: Path) -> Iterator[Artifact]:
    if split is not None:
        yield file_artifact("members", split.members, report)
        yield file_artifact("nonmembers", split.nonmembers, report)
        yield file_artifact("split", split.path, report)


def _similar(ids: Sequence[str], column: str) -> Iterator[str]:
    """Ids that may name one record, which would count twice."""
    if number := spelled_alike(ids):
        yield (
            f"{number} of the records' names in {shown(column)} differ from another's only in case, spaces or Unicode "
            "form, and count as different records; where they are the same, give one line for each record"
        )


def read_record_scores(paths: Sequence[Path], columns: ScoreColumns) -> ScoredRecords:
    """The scores of each record in ``paths``. Raises InputError where they do not hold them.

    Of Parquet files that ``privctl audit score-records`` wrote, all scores are read unless ``columns`` names some.
    """
    path = paths[0]
    others = [each for each in paths if each.suffix.lower() != _PARQUET]
    if others and len(paths) > 1:
        raise InputError(f"{others[0]} is one of several files and no Parquet; give one file, or Parquet alone")
    read = _rows(path, columns) if others else _parquet(paths, columns)
    for side, name in ((True, "members"), (False, "non-members")):
        count = int((read.member == side).sum())
        if count < 2:
            raise InputError(f"{path} has {count} {name}; at least 2 of each side are needed")
    return read


def _parquet(paths: Sequence[Path], columns: ScoreColumns) -> ScoredRecords:
    chosen = columns.scores
    if chosen == ScoreColumns().scores:
        chosen = attacks_in(paths) or chosen
    read = read_parts(paths, columns.record, columns.member, chosen)
    return ScoredRecords(member=read.member, scores=read.scores, ids=read.ids, skipped=read.left_out)


def _rows(path: Path, columns: ScoreColumns) -> ScoredRecords:
    suffix = path.suffix.lower()
    if suffix not in (*_SEPARATORS, *_LINES):
        raise InputError(f"{path} is not a kind of file that scores of records are read from; give {_EXPECTED}")
    rows = _lines(path) if suffix in _LINES else _table(path, _SEPARATORS[suffix], columns)
    member: list[bool] = []
    scores: dict[str, list[float]] = {name: [] for name in columns.scores}
    places: dict[str, int] = {}
    for number, row in rows:
        where = f"{path} line {number}"
        for name in (columns.record, columns.member, *columns.scores):
            if row.get(name) in (None, ""):
                raise InputError(f"{where} has no {shown(name)}; each line needs {_wanted(columns)}")
        record = str(row[columns.record])
        if record in places:
            raise InputError(
                f"{where} scores the record {shown(record)} again, after line {places[record]}; give one line for each "
                "record"
            )
        places[record] = number
        member.append(_member(row[columns.member], where))
        for name in columns.scores:
            scores[name].append(_score(row[name], name, where))
    return ScoredRecords(
        member=np.asarray(member, dtype=np.bool_),
        scores={name: np.asarray(values, np.float64) for name, values in scores.items()},
        ids=tuple(places),
    )


def _method(column: str) -> str:
    """An attack's name in the report, which no method of privctl's own has."""
    return f"column {column}"


def _wanted(columns: ScoreColumns) -> str:
    return ", ".join((columns.record, *columns.scores, columns.member))


def _table(path: Path, separator: str, columns: ScoreColumns) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = csv.reader(read_text(path).removeprefix("\ufeff").splitlines(), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(lines, [])]
        for name, flag in _flags(columns):
            if header.count(name) != 1:
                named = ", ".join(map(shown, header)) or "none"
                raise InputError(
                    f"{path} has {header.count(name) or 'no'} column {shown(name)} in its first line, which names "
                    f"{named}; name the column with {flag}, or give --models for scores of models trained with or "
                    "without one record"
                )
        for row in lines:
            if row:
                yield lines.line_num, dict(zip(header, (cell.strip() for cell in row), strict=False))
    except csv.Error as error:
        raise InputError(f"{path} is not {_EXPECTED}: {error} at line {lines.line_num}") from None


def _flags(columns: ScoreColumns) -> Sequence[tuple[str, str]]:
    return (
        (columns.record, "--id-column"),
        (columns.member, "--member-column"),
        *((name, "--score-column") for name in columns.scores),
    )


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            row = parse_json(line, f"{path} line {number}")
            if not isinstance(row, dict):
                raise InputError(f"{path} line {number} is not a JSON object; give one for each record")
            yield number, row


def _member(value: Any, where: str) -> bool:
    text = str(value).lower()
    if not isinstance(value, bool | int | str) or text not in _MEMBER:
        raise InputError(f"{where} has {shown(value)} as member; expected 1 or 0, true or false")
    return _MEMBER[text]


def _score(value: Any, name: str, where: str) -> float:
    # Python alone reads 1_0 as 10, and digits of other scripts.
    odd = isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii()))
    try:
        score = math.nan if odd else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where} has {shown(value)} as {name}; expected a finite number")
    return score
