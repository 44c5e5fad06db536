"""A membership audit of the scores that another attack tool gave to records: the engine of ``privctl audit scores``.

The records are not at hand, and privctl does not run the model. So neither a baseline without the model nor another
attack is possible, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.asked import files_of, pairs_of, stated
from audits.canaries.design import BOUNDS_SHARE
from audits.claims import DEFAULT_DELTA
from audits.findings import ALPHA, PRIVATE, Findings, rounded
from audits.lineage import Lineage
from audits.mechanism_curve import curve_of
from audits.membership.attack import RATES, Settings, curve_evidence
from audits.membership.baseline import Baseline
from audits.membership.joint_test import with_joint_test
from audits.membership.remarks import LOSSES, backwards_warnings, of_groups
from audits.membership.verdict import LEAST_AUC, verdict
from audits.record_scores.of_groups import ScoredGroups, in_groups
from audits.record_scores.of_model import ModelOfScores
from audits.record_scores.table import ScoreColumns, ScoredRecords, read_record_scores
from audits.split.bounds import DrawnScores
from audits.split.drawn import DrawnSplit
from audits.split.findings import guesses_not_made, split_findings
from audits.split.implied import examples_of_a_coin
from audits.split.premises import of_training, premises, split_parameters
from audits.statistics.max_t import rank_statistics
from audits.statistics.relabel import data_seed
from privctl.data.names import spelled_alike
from privctl.data.recorded import digested, require_unchanged
from privctl.domain.evidence import Evidence
from privctl.domain.report import LogPosition, Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.codec import encode_value
from privctl.reports.files import digested_artifact, now, versions
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The scores that were read, and the units that are judged: records, or the ``groups`` that they form."""

    read: ScoredRecords
    groups: ScoredGroups | None = None

    @property
    def scored(self) -> ScoredRecords:
        """The scores of the units that are counted."""
        return self.read if self.groups is None else self.groups.scored

    @property
    def named(self) -> dict[str, NDArray[np.float64]]:
        """The scores by attack."""
        return {_method(name): scores for name, scores in self.scored.scores.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the groups for the report."""
        return {} if self.groups is None else self.groups.grouping.parameters(self.groups.records)

    def unit_warnings(self) -> Iterator[str]:
        """A warning about the unit that is counted, if that is not a record."""
        if self.groups is not None:
            sides = self.scored.member
            counts = {"members": int(sides.sum()), "nonmembers": int((~sides).sum())}
            yield from of_groups(self.groups.grouping, self.groups.records, counts)


def run_record_scores(
    paths: Sequence[Path],
    report: Path,
    *,
    columns: ScoreColumns,
    least_auc: float = LEAST_AUC,
    split: DrawnSplit | None = None,
    delta: float | None = None,
    model: ModelOfScores | None = None,
    enter: Callable[[], LogPosition | None] = lambda: None,
) -> PrivacyReport:
    """The report, to be written to ``report``, on the scores in ``paths``; several files must be Parquet.

    Ids that differ only in spelling count as different records, and the report says so. All intervals are jointly wrong
    with probability at most ``ALPHA``. For a ``split`` that privctl drew, half of that is for lower bounds on epsilon,
    at ``delta`` (1e-5 by default), and mu; if the scores are said to be of a ``model``, the claims of its report are
    tested. If groups have the coins, groups are judged by the scores of their records. ``enter`` is called once the
    files are read and enters the audit into a log.

    Raises InputError for a file without a finite score for each record or without records of both sides, for records
    that are not in the split, and for a file that changes meanwhile.
    """
    files = tuple((role, digested(path)) for role, path in (*(("scores", path) for path in paths), *_files_of(split)))
    read = read_record_scores(paths, columns)
    judged = _Judged(read=read, groups=None if split is None or split.group_by is None else in_groups(read, split))
    log = enter()
    alpha = ALPHA if split is None else (1 - BOUNDS_SHARE) * ALPHA
    bounds = Findings() if split is None else _split_findings(judged, split, delta, model)
    evidence = _evidence(judged, alpha)
    require_unchanged(file for _, file in files)
    data = tuple(digested_artifact(role, file, report) for role, file in files)
    lineage = Lineage() if model is None else model.lineage
    asked = AskedAudit(
        files=files_of(data),
        columns=tuple(read.scores),
        record_column=None if columns.record == ScoreColumns().record else columns.record,
        member_column=None if columns.member == ScoreColumns().member else columns.member,
        least_auc=least_auc,
        group_by=None if split is None else split.group_by,
        delta=None if split is None else delta,
        claims=pairs_of(lineage.claims) if split is not None else (),
        curve="canary_curve" in bounds.parameters,
        logged=log is not None,
    )
    blind = Baseline(evidence=(), scores=np.full(len(judged.scored.member), np.nan))
    judgement = verdict(evidence, blind, least_auc, drawn=split is not None, check=LOSSES)
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("numpy", "scipy")),
        inputs=(*(() if model is None else model.inputs), *data),
        parameters={
            "attack": list(judged.named), "least_auc": least_auc, "confidence": 1 - ALPHA,
            "asked": stated(asked),
            **({} if read.precision is None else {"dtype": read.precision}),
            **judged.parameters,
            **({} if split is None else split_parameters(split)),
            **({} if model is None else {"score_conditions": [encode_value(model.condition)]}),
            **bounds.parameters,
        },
        evidence=(*evidence, *bounds.evidence),
        verdicts=(_training_verdict(judgement, split, lineage), *bounds.verdicts),
        omissions=(
            Omission(
                what="baselines without the model",
                reason="they need the records, of which the file holds the scores alone",
            ),
            *bounds.omissions,
            *read.left_out,
        ),
        warnings=(
            *_premises(split, model),
            *judged.unit_warnings(),
            *bounds.warnings,
            *_how_to_read(judged, evidence, alpha),
            *_similar(read.ids, columns.record),
            *backwards_warnings(evidence, LOSSES),
            *lineage.doubts,
            *rounded(read.precision),
            PRIVATE,
        ),
        parents=lineage.parents,
        log=log,
    )  # fmt: skip


def _evidence(judged: _Judged, alpha: float) -> tuple[Evidence, ...]:
    """The curves of all scores with their joint test, jointly wrong with ``alpha``."""
    scored, named = judged.scored, judged.named
    settings = Settings(confidence=1 - alpha / (len(named) * (1 + len(RATES))))
    return with_joint_test(
        {name: curve_evidence(name, scores, scored.member, settings) for name, scores in named.items()},
        {name: rank_statistics(scores, RATES) for name, scores in named.items()},
        scored.member,
        # From the scores as in the file, so that rounding in those of groups has no influence.
        data_seed(row.tobytes() for row in np.stack(list(judged.read.scores.values()), axis=1)),
        alpha,
    )


def _how_to_read(judged: _Judged, evidence: Sequence[Evidence], alpha: float) -> Iterator[str]:
    if judged.groups is None:
        what = f"{counted(len(judged.named), 'column')} of scores does"
    else:
        what = f"{counted(len(judged.named), 'kind')} of scores of groups does"
    yield (
        f"whether {what} better than chance is decided by one permutation test, which errs at most {100 * alpha:.3g} "
        "times in 100 if both sides were drawn alike and no score was fitted to the labels"
    )
    yield (
        f"{counted(len(evidence), 'interval')} only say how large the differences are; each holds at "
        f"{100 * evidence[0].confidence:.4g} %, so that all hold together at the audit's confidence"
    )
    yield "a stronger attack may find what these scores did not"


def _split_findings(judged: _Judged, split: DrawnSplit, delta: float | None, model: ModelOfScores | None) -> Findings:
    """The bounds from the scores of a drawn ``split``, and verdicts on the claims of the ``model``'s own report."""
    scored, groups = judged.scored, judged.groups
    drawn = DrawnScores(
        split=split,
        ids=scored.ids,
        member=scored.member,
        skipped=scored.skipped,
        incomplete="" if groups is None else groups.incomplete,
    )
    if model is None:
        bounds = drawn.bounds(judged.named, DEFAULT_DELTA if delta is None else delta, BOUNDS_SHARE * ALPHA)
        return Findings(evidence=bounds, warnings=tuple(guesses_not_made(bounds)))
    lineage = model.lineage
    # Adding or removing one record of a larger example replaces that example, which a curve for two examples does not
    # cover.
    by_record = split.group_by is None and lineage.unit is not None
    examples = None if by_record else examples_of_a_coin(split, lineage.unit)
    return split_findings(
        drawn,
        judged.named,
        trained_on=lineage.trained_on,
        claimed=lineage.claims,
        curve=None if examples is None else curve_of(lineage, model.profile, examples),
        delta=delta,
        alpha=BOUNDS_SHARE * ALPHA,
    )


def _training_verdict(judgement: Verdict, split: DrawnSplit | None, lineage: Lineage) -> Verdict:
    """The verdict. For a drawn split, finding nothing counts only if the model may have been trained on the members."""
    if split is None or judgement.outcome is not Outcome.CONSISTENT:
        return judgement
    return of_training(judgement, split, lineage.trained_on)


def _premises(split: DrawnSplit | None, model: ModelOfScores | None) -> Iterator[str]:
    """The premises of the audit."""
    if split is not None:
        yield from premises(split, None if model is None else model.lineage.trained_on)
    if model is not None:
        word, statement = model.condition.name, model.condition.statement
        yield f"nothing but the caller's word ties the scores to the model (assumption {word!r}): {statement}"
    if split is not None:
        yield _NOT_FITTED if model is None else _FITTED
    else:
        yield _ASSERTED if model is None else _SPLIT


def _files_of(split: DrawnSplit | None) -> Iterator[tuple[str, Path]]:
    if split is not None:
        yield from (("members", split.members), ("nonmembers", split.nonmembers), ("split", split.path))


def _similar(ids: Sequence[str], column: str) -> Iterator[str]:
    """A warning about ids that may name one record, which would count twice."""
    if number := spelled_alike(ids):
        yield (
            f"{number} of the records' names in {shown(column)} differ from another's only in case, spaces or Unicode "
            "form, and count as different records; where they are the same, give one line for each record"
        )


def _method(column: str) -> str:
    """An attack's name in the report, distinct from privctl's own methods."""
    return f"column {column}"
