"""Recomputes the empirical figures of an audit from the ranks that it kept, or from the scores that it was given.

Figures that are not recomputed are listed as omissions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from verify.audits import unscored
from verify.audits.canaries.kept_gradients import recount
from verify.audits.canaries.kept_scores import recount_planted
from verify.audits.extraction.recounted import recount_extraction
from verify.audits.given.model_scores import differences_from_scores, is_of_models
from verify.audits.given.scores import MisreadError, given_scores, is_of_scores
from verify.audits.kept_request import request_mismatches
from verify.audits.midpoint import METHOD as MIDPOINT
from verify.audits.ranks import records_alone
from verify.audits.ranks.drawn_again import is_same_numpy, not_drawn_again
from verify.audits.ranks.figures import (
    ROUNDING,
    Figures,
    auc_with_interval,
    differences,
    largest_statistic,
    true_positive_rate,
    won,
)
from verify.audits.ranks.fitted import of_fitted
from verify.audits.ranks.limits import OVER_RELABELLINGS
from verify.audits.ranks.midpoint import CALLED, JudgedHalves, halves_of
from verify.audits.ranks.records_alone import KeptBaselines
from verify.audits.ranks.relabelled import FUSED, Relabelled, test_faults
from verify.audits.secrets.recounted import recount_secrets
from verify.audits.split.counted_again import KeptRanks, RightGuesses
from verify.audits.terms import BLIND, MEMBERSHIP, NOISE, OVER_BLIND
from verify.files.places import located

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SUBJECT, _OMITTED = "evidence", "evidence not recomputed"
_SCORE, _TESTED = "score.", "tested."
#: Arrays that are derived from the digests of the records.
_FOLD, _SEED = "relabelled.fold", "relabelled.seed"
_DECIDED = {_FOLD: "U8", _SEED: "I64"}
_RATE = re.compile(r"TPR at ([0-9.]+) % FPR")
#: The sources from which figures are recomputed.
_KEPT, _SCORES = "ranks kept", "scores in the file"
_SHOWN = 3
#: Tolerances when comparing figures, and when comparing those of the fused score.
_NEAR, _NEAR_FUSED = 1e-6, 1e-5
#: Attacks whose kept scores depend on the labels, so that the joint test used other scores.
_TESTED_OTHERWISE = ("quantile", "rmia", "rmia-online", FUSED)


@dataclass(slots=True)
class Recomputed:
    """The verdicts on the figures, and what was not recomputed."""

    verdicts: list[Verdict] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)


def check_evidence(path: Path, report: PrivacyReport, files: NamedFiles) -> Recomputed:
    """Compare the evidence of the report at ``path`` with the ranks it names, if they are present.

    AUCs, true positive rates and their intervals are recomputed, the fused score is fitted again, and the joint test
    is repeated. All other figures, or all figures if there are no ranks, are listed in an omission. An audit of given
    scores, of records or of models, is compared with the file of scores in the same way.
    """
    if not report.evidence:
        return Recomputed()
    try:
        return _recomputed(path, report, files)
    except (LookupError, ArithmeticError, ValueError) as fault:  # the check of consistency names the entry
        text = f"it lacks an entry, or holds a number, with which its figures cannot be computed again ({fault})"
        return Recomputed(verdicts=[Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=text)])


def _recomputed(path: Path, report: PrivacyReport, files: NamedFiles) -> Recomputed:
    found = Recomputed()
    if is_of_models(report):
        return _of_models(path, report)
    ranks, why, misread = _readable_ranks(path, report, files)
    recomputed, left = 0, []
    wrong = [*request_mismatches(path, report, files), *unscored.faults(path, report, files), *misread]
    gradients = recount(path, report, files)
    found.verdicts += gradients.verdicts
    found.omissions += gradients.omissions
    kept = [count(path, report, files) for count in (recount_planted, recount_secrets, recount_extraction)]
    wrong += [text for each in kept for text in each.wrong]
    again = [item for each in kept for item in each.items]
    recomputed += len(again)
    of_noise = [i for i in report.evidence if gradients.bounds and i.method == NOISE]
    counted_before = [*gradients.bounds, *again, *of_noise]
    for item in (each for each in report.evidence if each not in counted_before):
        faults = None if ranks is None else ranks.faults(item)
        if faults is None:
            left.append(f"{item.method}: {item.quantity}")
            continue
        recomputed += 1
        wrong += faults
    if ranks is not None and ranks.relabelled is not None and (fault := ranks.relabelled.fused_fault()):
        wrong.append(f"{FUSED}: {fault}")
    elif ranks is not None and ranks.relabelled is None and FUSED in ranks.scores:
        reason = "the audit did not keep the folds and the seed to learn it again"
        found.omissions.append(Omission(what="fused score", reason=reason))
    if ranks is not None and not ranks.same and (ranks.relabelled or ranks.alone or ranks.halves):
        found.omissions.append(not_drawn_again(report))
    wrong += list(_unsupported_conclusions(report, recomputed > 0))
    for text in wrong:
        found.verdicts.append(Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=text))
    if recomputed and not wrong:
        source = _KEPT if ranks is None else ranks.source
        tested = ranks is not None and ranks.relabelled is not None
        more = ", and no p-value of the joint test is smaller than relabelling them gives" if tested else ""
        unseen = f"whether the model gives those {source.partition(' ')[0]}"
        found.verdicts.append(_consistent(recomputed, source, unseen, more))
    if left:
        found.omissions.append(_not_recomputed(left, report, why))
    return found


def _of_models(path: Path, report: PrivacyReport) -> Recomputed:
    wrong, why = differences_from_scores(path, report)
    if wrong is None:
        left = [f"{item.method}: {item.quantity}" for item in report.evidence]
        return Recomputed(omissions=[_not_recomputed(left, report, why)])
    if not wrong:
        return Recomputed(verdicts=[_consistent(len(report.evidence), _SCORES, "whether the models give those scores")])
    return Recomputed(verdicts=[Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=text) for text in wrong])


def _consistent(figures: int, source: str, unseen: str, more: str = "") -> Verdict:
    reason = f"{counted(figures, 'figure is', 'figures are')} what the {source} give{more}; {unseen} was not looked at"
    return Verdict(subject=_SUBJECT, outcome=Outcome.CONSISTENT, reason=reason)


def _readable_ranks(path: Path, report: PrivacyReport, files: NamedFiles) -> tuple[_Ranks | None, str, list[str]]:
    """As ``_ranks``, with a third entry: the faults of given scores that contradict the report."""
    try:
        return *_ranks(path, report, files), []
    except MisreadError as fault:
        return None, str(fault), [str(fault)]


def _not_recomputed(left: Sequence[str], report: PrivacyReport, why: str) -> Omission:
    more = f", and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    are = "is" if len(left) == 1 else "are"
    of = f"{len(left)} of {counted(len(report.evidence), 'measured figure')}"
    reason = f"{of} {are} the report's word ({why}): "
    return Omission(what=_OMITTED, reason=reason + "; ".join(left[:_SHOWN]) + more)


def _ranks(path: Path, report: PrivacyReport, files: NamedFiles) -> tuple[_Ranks | None, str]:
    """The ranks of the report's records, or None and the reason."""
    if is_of_scores(report):
        return _given_ranks(path, report)
    named = [a for a in report.outputs if a.role == "scores"]
    if report.step != "audit" or not named:
        return None, "the report names no ranks from which they could be computed"
    place = located(path, named[0].path)
    if not os.path.isfile(place):
        return None, "the ranks that the report names are not at hand"
    try:
        if files.digest(place) != named[0].digest:
            return None, "the ranks at hand are not those of this audit"
        with SafetensorsFile(place) as file:
            names = [tensor.name for tensor in file.tensors if tensor.name.startswith((_SCORE, _TESTED))]
            what = "an audit's ranks"
            arrays = read_arrays(file, dict.fromkeys(names, "F64"), what)
            member = read_arrays(file, {"member": "BOOL"}, what)["member"] if names else np.empty(0, dtype=bool)
            lined = any(tensor.name == "line" for tensor in file.tensors)
            line = read_arrays(file, {"line": "I64"}, what)["line"] if lined else None
            decided = {tensor.name for tensor in file.tensors} & _DECIDED.keys()
            by_records = read_arrays(file, _DECIDED, what) if decided == _DECIDED.keys() else {}
            others = [tensor.name for tensor in file.tensors if tensor.name.startswith(records_alone.PREFIX)]
            beside = read_arrays(file, dict.fromkeys(others, "F64"), what)
            called = read_arrays(file, {CALLED: "I64"} if any(t.name == CALLED for t in file.tensors) else {}, what)
    except InputError as fault:
        return None, str(fault)
    if any(len(array) != len(member) for array in (*arrays.values(), *([] if line is None else [line]))):
        return None, "the ranks at hand are not as many as the records"
    if by_records and (len(by_records[_FOLD]) != len(member) or len(by_records[_SEED]) != 1):
        return None, "the ranks at hand are not as many as the records"
    scores = {name.removeprefix(_SCORE): values for name, values in arrays.items() if name.startswith(_SCORE)}
    tested = {name.removeprefix(_TESTED): values for name, values in arrays.items() if name.startswith(_TESTED)}
    same = is_same_numpy(report)
    relabelled = _relabelled_inputs(member, scores, tested, by_records) if by_records else None
    ranks = _Ranks(
        member=member,
        scores=scores,
        alone=_records_alone(member, scores, by_records, beside, same=same),
        relabelled=relabelled,
        halves=halves_of(scores, member, called, relabelled, same=same),
        compared=frozenset(item.method for item in report.evidence if item.test is not None),
        same=same,
        guesses=RightGuesses(
            path, report, KeptRanks(scores=scores, tested=tested, member=member, line=line), _TESTED_OTHERWISE
        ),
    )
    return ranks, "no ranks are kept that give them"


def _given_ranks(path: Path, report: PrivacyReport) -> tuple[_Ranks | None, str]:
    """The scores that the audit was given, in the form of ranks, or None and the reason."""
    given, why = given_scores(path, report)
    if given is None:
        return None, why
    ranks = KeptRanks(scores=given.scores, tested={}, member=given.member, line=given.line, whole=True)
    return _Ranks(
        member=given.member,
        scores=given.scores,
        relabelled=Relabelled(
            scores=given.scores,
            member=given.member,
            fold=np.zeros(len(given.member), np.uint8),  # no score was learned
            seed=given.seed,
            fused=None,
        ),
        same=is_same_numpy(report),
        guesses=RightGuesses(path, report, ranks, ()),
        source=_SCORES,
    ), "the scores do not give them"


def _records_alone(
    member: NDArray[np.bool_],
    scores: Mapping[str, NDArray[np.float64]],
    by_records: Mapping[str, NDArray[Any]],
    kept: Mapping[str, NDArray[np.float64]],
    *,
    same: bool,
) -> KeptBaselines | None:
    """What the records tell without the model; None if an older audit did not keep it."""
    blind, areas = scores.get("blind"), kept.get(records_alone.PREFIX + records_alone.AREAS)
    if blind is None or areas is None or not by_records or np.isnan(blind).any() or member.all() or not member.any():
        return None
    ranks = {name.removeprefix(records_alone.PREFIX): each for name, each in kept.items() if each is not areas}
    seed = int(by_records[_SEED].view(np.uint64)[0])
    found = KeptBaselines(member=member, blind=blind, areas=areas, ranks=ranks, seed=seed, same=same)
    return found if found.is_whole else None


def _relabelled_inputs(
    member: NDArray[np.bool_],
    scores: Mapping[str, NDArray[np.float64]],
    tested: Mapping[str, NDArray[np.float64]],
    by_records: Mapping[str, NDArray[Any]],
) -> Relabelled | None:
    """The scores for the relabelled tests; None if one is missing."""
    names = sorted(scores.keys() - {"blind", FUSED})
    found = {name: (tested if name in _TESTED_OTHERWISE else scores).get(name) for name in names}
    if alone := FUSED in scores and not names:
        found, names = dict(tested), sorted(tested)
    whole = {name: values for name, values in found.items() if values is not None and not np.isnan(values).any()}
    if len(whole) < len(names) or not whole or not 0 < int(member.sum()) < len(member):
        return None
    seed = int(by_records[_SEED].view(np.uint64)[0])
    return Relabelled(
        scores=whole, member=member, fold=by_records[_FOLD], seed=seed, fused=scores.get(FUSED), alone=alone
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """Kept or given scores [records] by attack, membership labels, and the inputs of ``relabelled`` tests.

    ``compared`` names all attacks of the joint test. ``same`` is whether this numpy is the version the audit used;
    ``guesses`` recounts the guesses behind bounds.
    """

    member: NDArray[np.bool_]
    scores: Mapping[str, NDArray[np.float64]]
    guesses: RightGuesses
    alone: KeptBaselines | None = None
    relabelled: Relabelled | None = None
    halves: JudgedHalves | None = None
    compared: frozenset[str] = frozenset()
    same: bool = False
    source: str = _KEPT

    def of(self, item: Evidence) -> Figures | None:
        """The figures that ``item`` should state; None if these ranks do not determine them."""
        blind = item.method == BLIND
        if item.method in records_alone.METHODS and item.quantity == "AUC" and self.alone is not None:
            name = records_alone.METHODS[item.method]
            return self.alone.of_ranks(name, 1 - item.confidence, item.interval) if 0 < item.confidence < 1 else None
        scores = self.scores.get("blind" if blind else item.method)
        if scores is None or not 0 < item.confidence < 1:
            return None
        judged = ~np.isnan(scores)
        if not judged.all() and not blind:
            return None
        sides = scores[judged & self.member], scores[judged & ~self.member]
        if not all(map(len, sides)):
            return None
        alpha = 1 - item.confidence
        if item.quantity == "AUC" and (blind or item.method == FUSED) and item.interval in OVER_RELABELLINGS:
            if not blind and self.relabelled is not None and self.same:
                return of_fitted(*sides, self.relabelled.own, alpha, near=_NEAR_FUSED)
            if blind and self.alone is not None:
                return self.alone.of_blind(alpha)
            # An older audit did not keep what the blind baseline's deviation over relabellings follows from.
            return Figures(estimate=won(*sides), samples=(len(sides[0]), len(sides[1])), details={"chance": 0.5})
        if item.quantity == "AUC":
            return auc_with_interval(*sides, alpha, item.interval)
        if item.quantity == OVER_BLIND:
            return self._beyond(scores, alpha, fitted=item.method == FUSED)
        rate = _RATE.fullmatch(item.quantity)
        return None if rate is None else true_positive_rate(*sides, float(rate[1]) / 100, alpha)

    def faults(self, item: Evidence) -> list[str] | None:
        """One sentence per fault of ``item``; None if these ranks do not determine its figures."""
        if item.method == MIDPOINT and self.halves is not None:
            return [f"{item.method}: {item.quantity}: {text}" for text in self.halves.faults(item)]
        if (figures := self.of(item)) is None:
            guessed = self.guesses.fault(item)
            return None if guessed is None else [f"{item.method}: {item.quantity}: {guessed}"] if guessed else []
        wrong = [f"{item.method}: {item.quantity}: {text}" for text in differences(item, figures, self.source)]
        return wrong + [f"{item.method}: joint test: {text}" for text in self.test_faults(item)]

    def test_faults(self, item: Evidence) -> Iterator[str]:
        """Yields a sentence if the p-value or the side of the critical value on which the statistic lies is wrong."""
        test, scores = item.test, self.scores.get(item.method)
        if test is not None and self.relabelled is not None and 0 < test.level < 1:
            found = self.relabelled.joint_test(test.level)
            if item.method in found.p_values:
                others = self.compared - found.p_values.keys()
                yield from test_faults(test, item.method, found, self.relabelled, self.same, others)
        if test is None or test.critical is None or scores is None or item.method in _TESTED_OTHERWISE:
            return
        largest = largest_statistic(scores, self.member)
        if abs(largest - test.critical) > _NEAR and (largest > test.critical) is not test.rejects:
            side = "above" if largest > test.critical else "below"
            yield (
                f"its p-value is {test.p_value:g} at the level {test.level:g}, but the ranks kept lie {largest:.4g} "
                f"deviations from chance, {side} the critical {test.critical:.4g}"
            )

    def _beyond(self, scores: NDArray[np.float64], alpha: float, *, fitted: bool) -> Figures | None:
        """The estimate on the records that the baseline judges, with its interval if enough was kept for it."""
        if self.alone is not None and not (fitted and self.relabelled is None):
            refitted = self.relabelled.refitted_areas if fitted and self.relabelled is not None else None
            return self.alone.beyond(scores, alpha, refitted)
        blind = self.scores.get("blind")
        if blind is None:
            return None
        judged = ~np.isnan(blind)
        inside, outside = judged & self.member, judged & ~self.member
        if not (inside.any() and outside.any()):
            return None
        difference = won(scores[inside], scores[outside]) - won(blind[inside], blind[outside])
        return Figures(estimate=difference, samples=(int(inside.sum()), int(outside.sum())))


def _unsupported_conclusions(report: PrivacyReport, recomputed: bool) -> Iterator[str]:
    """Yields a sentence for each conclusion that the report's own figures do not support."""
    calm = any(v.subject == MEMBERSHIP and v.outcome is Outcome.CONSISTENT for v in report.verdicts)
    for item in report.evidence if report.step == "audit" and calm else ():
        chance = item.details.get("chance")
        if item.quantity != OVER_BLIND and chance is not None and item.lower is not None and item.lower > chance:
            yield f"{item.method}: {item.quantity} lies above chance, but the report finds that {MEMBERSHIP}"
            return
    stated = readable(AuditParameters, report)
    confidence = None if stated is None else stated.confidence
    if recomputed and confidence is not None:
        kinds = [i for i in report.evidence if i.quantity in ("AUC", OVER_BLIND) or _RATE.fullmatch(i.quantity)]
        spent = sum(1 - item.confidence for item in kinds)
        if spent > (1 - confidence) * (1 + ROUNDING) + 1e-12:
            yield (
                f"its {len(kinds)} intervals are wrong with chance {spent:.3g} together, but it states "
                f"{1 - confidence:.3g}"
            )
