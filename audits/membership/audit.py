"""The membership part of an audit: two files of records, and all attacks that apply to them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits import ATTACKS, THOROUGH, load_attack
from audits.canaries.design import BOUNDS_SHARE
from audits.findings import Findings
from audits.membership import baseline, fused, midpoint, remarks
from audits.membership.attack import RATES, Attack, AttackResult, Candidates, ScoreAttack, Settings, Shadows
from audits.membership.fused import why_not_fused
from audits.membership.gradients import Differentiator
from audits.membership.groups import NOT_OF_GROUPS, WITHOUT_FIELDS, Grouping, grouped, read_groups, without_shared
from audits.membership.joint_test import with_joint_test
from audits.membership.prefixes import with_shots
from audits.membership.queries import ask
from audits.membership.records import candidates_of, prepare, require_both_sides
from audits.membership.request import MembershipRequest
from audits.membership.shadows import read_shadows, summary, weights_digest
from audits.membership.verdict import verdict
from audits.membership.why_exposed import why_exposed
from audits.membership.why_groups import why_groups_exposed
from audits.scores.scorer import RowScores, key
from audits.scores.scores_file import BASELINE, FOLD, SCORE, SEED, TESTED, arrays_of, ranks_of
from audits.scores.subject import AuditedModel, read, scoring_of, text_columns
from audits.scores.table import FIELDS, ScoreTable, Skip
from audits.split.bounds import DrawnScores
from audits.split.drawn import read_split
from audits.split.findings import split_findings
from audits.split.implied import examples_of_a_coin
from audits.split.premises import of_training, premises, split_parameters
from audits.statistics.cross_fit import folds
from audits.statistics.max_t import Statistics
from audits.statistics.metrics import roc
from audits.statistics.relabel import data_seed
from privctl.data.columns import Columns
from privctl.data.records import Record
from privctl.data.several import real_paths
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Evidence
from privctl.domain.leaking import Reason
from privctl.domain.progress import Progress, unseen
from privctl.domain.report import Omission, TensorDigest
from privctl.domain.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Maps records to the mean log-probability (nats) of each under a reference model.
Reference = Callable[[Sequence[Record]], "NDArray[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attacked:
    """The results of all single attacks, by name; ``unfused`` is the reason why their scores are not fused, or empty.

    ``tested`` [records] are the label-free scores; those of the attacks ``kept`` are also stored in the file of scores.
    ``intervals`` is the total number of intervals reported.
    """

    settings: Settings
    intervals: int
    unfused: str
    results: dict[str, AttackResult]
    scores: dict[str, NDArray[Any]]
    tested: Mapping[str, NDArray[Any]]
    statistics: dict[str, Statistics]
    kept: tuple[str, ...]


class MembershipAudit:
    """Whether members can be distinguished from non-members."""

    def __init__(
        self,
        subject: AuditedModel,
        request: MembershipRequest,
        *,
        weights: Sequence[TensorDigest] = (),
        reference: Reference | None = None,
        differentiator: Differentiator | None = None,
        columns: Columns | None = None,
        trained_on: Sequence[str] | None = None,
        progress: Progress = unseen,
    ) -> None:
        """Read and encode both files. Raises InputError for data that cannot be scored, CommandError for settings.

        ``weights`` are the audited model's tensors, which must not be those of a shadow model; ``trained_on`` holds the
        digests of the data that its training report names, None if unknown.
        """
        self._drawn = None if request.split is None else read_split(request.split)
        self._trained_on = trained_on
        if real_paths(request.members) == real_paths(request.nonmembers):
            raise CommandError(
                f"--members and --nonmembers are the same file, {request.members}; give two sets to compare"
            )
        files = (request.members, request.nonmembers)
        members, nonmembers = (read(subject, path, columns, progress) for path in files)
        self._request = request
        self._subject = subject
        self._progress = progress
        #: Whether only the fused score is judged (data-set inference).
        self._as_one = fused.NAME in request.attacks
        self._check(request)
        named = () if self._as_one else request.attacks
        self._names = named or (*ATTACKS, *(THOROUGH if request.thorough else ()))
        self._grouping: Grouping | None = None
        if request.group_by is not None:
            if subject.task in WITHOUT_FIELDS:
                raise CommandError(
                    "--group-by reads a field of each record, which images and sounds do not have; remove it"
                )
            self._grouping = read_groups(request.group_by, *files, text_columns(subject, columns), progress)
        self._members = members if request.explain else []
        shared: list[tuple[bool, int, Skip]] = []
        drawn = self._drawn is not None
        if drawn and self._grouping is not None:
            members, nonmembers, shared = without_shared(members, nonmembers, self._grouping)
        work = prepare(subject, members, nonmembers, drawn=drawn, progress=progress)
        work = replace(work, skipped=(*work.skipped, *shared))
        require_both_sides(work, *files)
        self._asking = [name for name in self._names if self._grouping is None or name not in NOT_OF_GROUPS]
        self._work = with_shots(work, self._asking)
        self._questions = ask(subject, self._work, self._asking)
        self._differentiator = differentiator or Differentiator(subject=subject)
        self.rows: Sequence[NDArray[Any]] = (*self._work.rows, *self._questions.rows)
        costs = self._questions.cost(self._work), self._differentiator.cost(self._asking)
        self.cost = "; ".join(filter(None, costs))
        self._weights = weights
        chosen = request.attacks and not self._as_one
        if chosen or request.shadow is not None:  # what does not fit is refused before the audit begins
            candidates = self._with_shadows(self._before_scores(referred=reference is not None))
            if chosen:
                self._choose_attacks(candidates)
        self._reference = None if reference is None else reference(self._work.records)

    def _check(self, request: MembershipRequest) -> None:
        if self._as_one and len(request.attacks) > 1:
            raise CommandError(f"--attack {fused.NAME} judges all scores as one; remove every other --attack")
        if self._as_one and request.split is not None:
            raise CommandError(f"--attack {fused.NAME} gives no bound, as --split does; remove one of them")
        if request.thorough and request.attacks and not self._as_one:
            raise CommandError("--thorough runs every attack; remove --attack")

    def _before_scores(self, *, referred: bool) -> Candidates:
        """The candidates with all scores 0, which reveal missing prerequisites of attacks before the model is run."""
        count = len(self._work.rows)
        longest = int(self._work.counts.max(initial=0))
        zeros = np.zeros((len(FIELDS), longest), np.float32)
        nothing = RowScores(values=zeros, begins={key(row): 0 for row in self._work.rows})
        candidates = candidates_of(self._work, nothing, np.zeros(count) if referred else None)
        unasked = {**self._questions.unasked, **self._differentiator.why_not(self._asking)}
        answered = {name: np.zeros(count) for name in self._asking if name not in unasked}
        return replace(candidates, answered=answered, unasked=unasked)

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """The evidence of all attacks and baselines, which is wrong with probability at most ``alpha``.

        Raises InputError if no record of a side has finite scores.
        """
        gradients = self._differentiator.scores(self._asking, self._work)
        candidates = candidates_of(self._work, row_scores, self._reference, self._questions, gradients)
        table = candidates.table
        if not all(table.samples.values()):
            raise InputError(
                f"{self._subject.model.path} gives NaN or infinite scores to every record of one side; "
                "check its weights for NaN and its format for overflow"
            )
        reasons, sizes = self._reasons(candidates), dict[int, int]()
        candidates = self._with_shadows(candidates)
        shadows = candidates.shadows
        of_bounds = 0.0 if self._drawn is None else BOUNDS_SHARE * alpha
        alpha -= of_bounds
        attacks, omitted = self._choose_attacks(candidates)
        records = candidates.table.samples
        if self._grouping is not None:
            candidates, attacks = grouped(candidates, self._grouping, attacks, Settings(seed=self._request.seed))
            table = candidates.table
            sizes = self._grouping.sizes(table.line[table.member])
            reasons = self._reasons_of_groups(candidates)
        done = self._attacked(candidates, attacks, alpha)
        blind = baseline.baseline(candidates, done.settings, self._progress)
        done, refitted = self._fused(done, candidates, blind)
        evidence = [
            *with_joint_test(
                {name: attacked.evidence for name, attacked in done.results.items()},
                done.statistics,
                table.member,
                data_seed([record.digest for record in candidates.records]),
                alpha,
            ),
            *baseline.differences(done.scores, blind, candidates, done.settings, refitted),
        ]
        bounds = self._bounds(candidates, done.tested, of_bounds)
        return Findings(
            evidence=(*evidence, *blind.evidence, *bounds.evidence),
            verdicts=(self._verdict(evidence, blind), *bounds.verdicts),
            omissions=(*omitted, *_unfused(done), *remarks.omissions(table), *bounds.omissions),
            warnings=(
                *self._premises(),
                *remarks.caveats(list(done.results), done.intervals, done.settings, alpha),
                *([] if self._grouping is None else remarks.of_groups(self._grouping, records, table.samples)),
                *remarks.data_warnings(
                    table, self._work.max_length, self._work.task, grouped=self._grouping is not None
                ),
                *remarks.backwards_warnings(evidence),
                *bounds.warnings,
            ),
            parameters={**self._parameters(done, table, shadows, records), **bounds.parameters},
            arrays=_arrays(done, candidates, blind),
            reasons=reasons,
            sizes=sizes,
        )

    def _attacked(self, candidates: Candidates, attacks: Sequence[Attack], alpha: float) -> _Attacked:
        """The results of ``attacks``, or only their scores if these are judged as one.

        Raises CommandError if the scores cannot be fused but are to be judged as one.
        """
        scoring = [attack for attack in attacks if isinstance(attack, ScoreAttack)]
        unfused = why_not_fused(candidates, scoring, groups=self._grouping is not None)
        if unfused and self._as_one:
            raise CommandError(f"--attack {fused.NAME} cannot be run: {unfused}")
        judged = [] if self._as_one else attacks
        compared = [attack.name for attack in judged if isinstance(attack, ScoreAttack)]
        intervals = sum(attack.quantities for attack in judged) + baseline.quantities(candidates, len(compared))
        intervals += 0 if unfused else fused.QUANTITIES
        settings = Settings(seed=self._request.seed, confidence=1 - alpha / intervals)
        results = {}
        with self._progress("judging", len(judged), "attacks") as advance:
            for attack in judged:
                results[attack.name] = attack.run(candidates, settings)
                advance(1)
        tested = {attack.name: attack.tested(candidates, settings, results[attack.name].scores) for attack in judged}
        if self._as_one:
            tested = {attack.name: attack.label_free_scores(candidates, settings) for attack in scoring}
        return _Attacked(
            settings=settings,
            intervals=intervals,
            unfused=unfused,
            results=results,
            scores={name: results[name].scores for name in compared},
            tested={attack.name: tested[attack.name] for attack in scoring},
            statistics={attack.name: attack.statistics(candidates, settings, tested[attack.name]) for attack in judged},
            kept=tuple(attack.name for attack in scoring if self._as_one or attack.unlabelled is not None),
        )

    def _fused(
        self, done: _Attacked, candidates: Candidates, blind: baseline.Baseline
    ) -> tuple[_Attacked, dict[str, NDArray[Any]]]:
        """``done`` with the fused score added as an attack, and its AUCs under the relabellings of ``blind``."""
        if done.unfused:
            return done, {}
        joined = fused.fuse(candidates, done.tested, () if self._as_one else RATES)
        result = fused.result_of(joined, candidates.table.member, done.settings)
        more = replace(
            done,
            results={**done.results, fused.NAME: result},
            scores={**done.scores, fused.NAME: result.scores},
            statistics={**done.statistics, fused.NAME: joined.statistics},
        )
        return more, {fused.NAME: joined.areas(blind.labels)}

    def _verdict(self, evidence: Sequence[Evidence], blind: baseline.Baseline) -> Verdict:
        """The verdict.

        For a drawn split, finding nothing counts only if the model may have been trained on the members.
        """
        judgement = verdict(evidence, blind, self._request.least_auc, drawn=self._drawn is not None)
        if self._drawn is None or judgement.outcome is not Outcome.CONSISTENT:
            return judgement
        return of_training(judgement, self._drawn, self._trained_on)

    def _bounds(self, candidates: Candidates, scores: Mapping[str, NDArray[Any]], alpha: float) -> Findings:
        """The bounds from the label-free ``scores`` [records] by attack; none unless privctl drew the split."""
        if self._drawn is None:
            return Findings()
        table, request = candidates.table, self._request
        sides = np.where(table.member, "members", "nonmembers").tolist()
        ids = [f"{side}:{line}" for side, line in zip(sides, table.line.tolist(), strict=True)]
        # Adding or removing one record of a larger example replaces that example, which a curve for two examples does
        # not cover.
        by_record = self._drawn.group_by is None and request.unit is not None
        examples = None if by_record else examples_of_a_coin(self._drawn, request.unit)
        return split_findings(
            DrawnScores(split=self._drawn, ids=ids, member=table.member, skipped=table.skip_counts()),
            scores,
            trained_on=self._trained_on,
            claimed=request.claims,
            curve=None if examples is None else request.curve(examples),
            delta=request.delta,
            alpha=alpha,
        )

    def _reasons(self, candidates: Candidates) -> dict[int, tuple[Reason, ...]]:
        """Why members may stand out, by line; empty for groups, whose lines stand for several records."""
        if not self._members or self._grouping is not None:
            return {}
        member = candidates.table.member
        judged = [record for record, inside in zip(candidates.records, member.tolist(), strict=True) if inside]
        reference = None if candidates.reference is None else candidates.reference[member]
        return why_exposed(self._members, judged, reference)

    def _reasons_of_groups(self, candidates: Candidates) -> dict[int, tuple[Reason, ...]]:
        """Why groups of members may stand out, by the line of their first record."""
        if not self._members or self._grouping is None:
            return {}
        member = candidates.table.member
        groups = self._grouping.records_of(candidates.table.line[member], self._members)
        return why_groups_exposed(groups, None if candidates.reference is None else candidates.reference[member])

    def _with_shadows(self, candidates: Candidates) -> Candidates:
        if self._request.shadow is None:
            return candidates
        target = weights_digest(self._weights)
        shadows = read_shadows(self._request.shadow, candidates.digests, target, scoring_of(self._subject))
        return replace(candidates, shadows=shadows)

    def _choose_attacks(self, candidates: Candidates) -> tuple[list[Attack], list[Omission]]:
        """The attacks to run, and omissions for the others.

        Raises CommandError if one of those was requested by name.
        """
        chosen, omitted = [], []
        for name in self._names:
            attack = load_attack(name)
            alone = "" if self._grouping is None else NOT_OF_GROUPS.get(name, "")
            missing = alone or attack.missing(candidates)
            if not missing:
                chosen.append(attack)
            elif self._request.attacks and not self._as_one:
                raise CommandError(f"--attack {name} cannot be run: {missing}")
            else:
                omitted.append(Omission(what=f"{name} attack", reason=missing))
        return chosen, omitted

    def _premises(self) -> list[str]:
        """The premise of the labels: the caller's assertion, or the split drawn by privctl."""
        if self._drawn is not None:
            return premises(self._drawn, self._trained_on)
        return [
            f"membership is what the caller asserts: records of {self._request.members.name} are taken to be training "
            f"data, and those of {self._request.nonmembers.name} not"
        ]

    def _parameters(
        self, done: _Attacked, table: ScoreTable, shadows: Shadows | None, records: Mapping[str, int]
    ) -> dict[str, Any]:
        """The report's parameters; ``records`` counts records even if ``table`` is one of groups."""
        return {
            "attack": list(done.results),
            "seed": self._request.seed,
            "least_auc": self._request.least_auc,
            "nonmember_loss": _nonmember_loss(table),
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            **self._subject.describe(),
            **({"cut": cut} if (cut := table.cut_counts) else {}),
            **({} if self._drawn is None else split_parameters(self._drawn)),
            **({} if shadows is None else {"shadow": summary(shadows)}),
            **({} if self._grouping is None else self._grouping.parameters(records)),
        }


def _unfused(done: _Attacked) -> list[Omission]:
    return [Omission(what=f"{fused.NAME} attack", reason=done.unfused)] if done.unfused else []


def _arrays(done: _Attacked, candidates: Candidates, blind: baseline.Baseline) -> dict[str, NDArray[Any]]:
    """The contents of the file of scores."""
    digests = [record.digest for record in candidates.records]
    table = candidates.table
    return {
        **arrays_of(table),
        **{f"{SCORE}{name}": values for name, values in done.scores.items()},
        **{f"roc.{name}": roc(*table.split(values)) for name, values in done.scores.items()},
        f"{SCORE}blind": blind.scores,
        **{f"{BASELINE}{name}": ranks_of(values) for name, values in blind.others.items()},
        f"{BASELINE}area": blind.areas,
        **{f"{TESTED}{name}": done.tested[name] for name in done.kept},
        **midpoint.called(done.results),
        FOLD: folds(digests).astype(np.uint8),
        SEED: np.array([data_seed(digests)], dtype=np.uint64).view(np.int64),
    }


def _nonmember_loss(table: ScoreTable) -> float:
    """The mean loss (nats per token) of the non-members; its exponential is their perplexity."""
    of_nonmembers = np.repeat(~table.member, np.diff(table.offsets))
    return -float(table.lp[of_nonmembers].mean(dtype=np.float64))
