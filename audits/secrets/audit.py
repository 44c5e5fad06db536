"""The secrets part of an audit: each secret's rank among candidates, and whether the model completes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits.canaries.conditions import conditions, violated_conditions
from audits.canaries.manifest import Manifest, read_manifest
from audits.extraction.summary import QueryBudget
from audits.findings import Findings
from audits.scores.scorer import RowScores
from audits.scores.subject import AuditedModel, with_chat
from audits.secrets import blind, verdict
from audits.secrets import evidence as evidences
from audits.secrets.attack import ScoredModel, SecretAttackResult, attack
from audits.secrets.candidates import Problem, Sources, make_problem
from audits.secrets.heldout import ControlBook, with_held_out
from audits.secrets.kept import kept_arrays
from audits.secrets.rows import MaskedReader, Reader, reader_of
from audits.secrets.targets import HELD_OUT_MARK, SecretTargets, choose
from audits.secrets.trace import HELD_OUT, trace_tests
from privctl.data.columns import Columns
from privctl.data.recorded import data_digest
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Progress, unseen
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.parallel import ALONE, Workers
from privctl.secrets.protection import Protection, read_protection
from privctl.storage.digest import file_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The maximum number of candidates of a secret.
_MOST = 100_000
#: The maximum beam width: each sequence keeps a copy of the keys and values.
_WIDEST = 1000
#: Shares of the allowed failure probability: the plan's bounds, the trace tests, the intervals of rates.
_BOUND_SHARE, _TRACE_SHARE, _INTERVALS_SHARE = 0.5, 0.25, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRequest:
    """Which secrets to attack, and how.

    ``secrets`` is the book, ``data`` the data set it was made from, ``plan`` the plan that the model was trained by.
    ``held_out`` are secrets of records that it was not trained on, as a control. ``manifest`` lists canaries, which are
    secrets drawn at random, with its published ``commitment``. ``candidates`` includes the true value; ``beam`` is the
    width of an additional beam search.

    ``most`` secrets are drawn from each side, those trained on and those never drawn, under ``seed``. ``trained_on``
    are digests of the training data named by the model's own report, ``planned_by`` of the plan that it names, if any;
    None if there is no such report. Raises CommandError for values out of range.
    """

    secrets: Path
    data: DataPath
    held_out: ControlBook | None = None
    plan: Path | None = None
    manifest: Path | None = None
    commitment: str | None = None
    trained_on: tuple[str, ...] | None = None
    planned_by: tuple[str, ...] | None = None
    candidates: int = 100
    most: int = 1000
    beam: int | None = None
    queries: QueryBudget = field(default_factory=QueryBudget)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.candidates <= _MOST:
            raise CommandError(f"--candidates is {self.candidates}; a secret is ranked among 2 to {_MOST} values")
        if self.beam is not None and not 1 <= self.beam <= _WIDEST:
            raise CommandError(f"--beam is {self.beam}; a beam is 1 to {_WIDEST} wide")
        if self.most < 1:
            raise CommandError(f"--most-secrets is {self.most}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """The model before training, and the function that scores rows with it."""

    subject: AuditedModel
    score: Callable[[Sequence[NDArray[Any]]], RowScores]


class SecretsAudit:
    """Whether a model trained on the records of a book's secrets distinguishes these from other values."""

    def __init__(
        self,
        subject: AuditedModel,
        request: SecretRequest,
        base: BaseModel | None = None,
        progress: Progress = unseen,
        columns: Columns | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """Read the book, find its secrets in the data, and make candidates.

        Raises InputError for files that do not match each other or the model, CommandError for unsuitable models.
        """
        self._subject, self._request, self._base, self._progress = subject, request, base, progress
        self._workers = workers
        limit = min(s.max_length or 0 for s in ([subject] if base is None else [subject, base.subject]))
        self._reader: Reader = reader_of(subject, limit)
        if request.beam is not None and isinstance(self._reader, MaskedReader):
            raise CommandError(f"--beam writes one token after another, which {subject.model.path} does not; remove it")
        digest = data_digest(request.data)
        self._plan = None if request.plan is None else _read_plan(request, digest)
        manifest = None if request.manifest is None else read_manifest(request.manifest)
        self._broken = _broken_conditions(request, digest, manifest)
        designed = None if self._broken else manifest
        columns = with_chat(columns, subject.model)
        draw = partial(choose, most=request.most, seed=request.seed, columns=columns, progress=progress)
        self._targets = draw(request.secrets, request.data, self._plan, designed)
        if request.held_out is not None:
            _check_held_out(request, request.held_out, digest, self._targets)
            others = draw(request.held_out.book, request.held_out.data, None, None)
            self._targets = with_held_out(
                self._targets, others, request.held_out, request.secrets, request.data, columns
            )
        self._problems, self._left = self._make_problems()
        self.rows: Sequence[NDArray[Any]] = self._reader.rows(
            [places[0] for problem_attacked in self._problems for places in problem_attacked.places]
        )
        self._before = (
            None if base is None else ScoredModel(model=base.subject.model, row_scores=self._score_by_base(base))
        )

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Ranks, rates and tests, jointly wrong with probability at most ``alpha``."""
        after = ScoredModel(model=self._subject.model, row_scores=row_scores)
        attempts = len(self._problems) * (1 if self._before is None else 2)
        with self._progress("guessing secrets", attempts / self._workers.size, "secrets") as advance:
            result = attack(
                self._reader, self._problems, after, self._before, advance, self._workers, self._request.beam
            )
        lost = [(lost_problem.target.kind, "given NaN or infinite scores by a model") for lost_problem in result.lost]
        omitted = (*self._left, *lost)
        tests = trace_tests(result, self._request.seed)
        controlled = any(test.name == HELD_OUT for test in tests)
        intervals = _INTERVALS_SHARE * alpha / (2 if controlled else 1)
        records_alone = blind.without_the_model(result, intervals) if controlled else blind.NOT_LOOKED_AT
        evidence = [
            *evidences.rates(result, omitted, self._request.queries, intervals),
            *evidences.tests_as_evidence(tests, _TRACE_SHARE * alpha),
            *records_alone.evidence,
        ]
        verdicts = [verdict.trace(evidence)]
        if self._request.plan is not None:
            protection_test = evidences.protection(result, _BOUND_SHARE * alpha)
            evidence += [] if protection_test is None else [protection_test[0]]
            subject = f"(prior, posterior)-secret protection, as planned in {self._request.plan.name}"
            verdicts.append(
                verdict.protection(
                    subject, None if protection_test is None else protection_test[1], evidence, self._broken
                )
            )
        return Findings(
            evidence=tuple(evidence),
            verdicts=tuple(verdicts),
            omissions=(*_omissions(omitted), *self._without_beam(result)),
            warnings=tuple(self._caveats(result)),
            parameters={"secrets": self._parameters()},
            arrays=kept_arrays(result, omitted, self._request.queries, records_alone.arrays),
        )

    def _without_beam(self, result: SecretAttackResult) -> tuple[Omission, ...]:
        if self._request.beam is None or result.beam is not None:
            return ()
        reason = "this network keeps more than keys and values of what it read, so that no beam can branch"
        return (Omission(what="beam search for secrets", reason=reason),)

    def _make_problems(self) -> tuple[tuple[Problem, ...], tuple[tuple[str, str], ...]]:
        chosen, request = self._targets, self._request
        sources = Sources(values=chosen.values, words=chosen.words, excluded=chosen.excluded)
        problems: list[Problem] = []
        omitted = list(chosen.omitted)
        with self._progress("making candidates", len(chosen.targets), "secrets") as advance:
            for target in chosen.targets:
                outcome = make_problem(self._reader, target, sources, request.candidates, request.seed)
                if isinstance(outcome, str):
                    omitted.append((target.kind, f"{HELD_OUT_MARK}{outcome}" if target.held_out else outcome))
                else:
                    problems.append(outcome)
                advance(1)
        if not problems:
            reasons = "; ".join(f"{count} {reason}" for reason, count in Counter(why for _, why in omitted).items())
            raise InputError(f"{request.secrets} has no secret that could be attacked: {reasons}")
        return tuple(problems), tuple(omitted)

    def _score_by_base(self, base: BaseModel) -> RowScores:
        """The base model's scores. Raises CommandError if its tokenizer splits a secret differently."""
        reader = reader_of(base.subject, self._reader.limit)
        for problem_attacked in self._problems:
            for passage in problem_attacked.target.passages:
                span, base_span = (r.places(passage, [passage.value])[0] for r in (self._reader, reader))
                if span.kind != base_span.kind or span.tokens.tolist() != base_span.tokens.tolist():
                    raise CommandError(
                        f"--base {base.subject.model.path} has another tokenizer than {self._subject.model.path}; give "
                        "the model that it was trained from"
                    )
        return base.score(self.rows)

    def _parameters(self) -> dict[str, Any]:
        request, plan = self._request, self._plan
        return {
            "candidates": request.candidates,
            "most_secrets": request.most,
            **({} if request.beam is None else {"beam": request.beam}),
            "eligible": self._targets.eligible,
            "data_records": self._targets.records,
            "seed": request.seed,
            "queries": request.queries.count,
            "probability": request.queries.probability,
            "tokens": "a token any of whose characters is the value's counts",
            "made_candidates": "draws of the canary's format; else the book's candidates; else other values of the "
            "kind, then fresh ones of the shape, of as many tokens as the true value",
            "rank": "ties count against the attack",
            **({} if plan is None else {"steps": plan.facts.steps, "noise_multiplier": plan.facts.noise_multiplier}),
        }

    def _caveats(self, result: SecretAttackResult) -> list[str]:
        chosen, request = self._targets, self._request
        notes = [
            "secrets: intervals are as for independent secrets; those of one training run are not quite",
            "secrets: a stronger attack, other candidates or other contexts may tell secrets that this one does not",
        ]
        tried = int((~result.held_out).sum())
        if tried < chosen.eligible:
            notes.append(f"secrets: {tried} of {chosen.eligible} with a value and records were attacked")
        if request.trained_on is None and request.plan is not None:
            notes.append("taken to be so: the model was trained by the plan, as no report of it tells")
        if request.plan is not None:
            notes.append("secrets: a bound is what the plan allows of values drawn at random among the candidates")
        if result.control.any():
            notes.append("secrets: which of them a plan never draws is not chance; the control takes it so by kind")
        if request.held_out is not None:
            notes.append(
                "secrets: held-out records are taken to be drawn as the training data were, one by one; if those of a "
                "user or document were kept on one side, the comparison with held-out secrets does not hold"
            )
        if chosen.elsewhere:
            notes.append(
                f"secrets: {chosen.elsewhere} stand in records that the book does not name, so that the plan says "
                "nothing of them; scan again"
            )
        if chosen.partial:
            one, many = "planted canary is taken as a found value", "planted canaries are taken as found values"
            taken = counted(chosen.partial, one, many)
            notes.append(
                f"secrets: {taken}, as the book lacks others of their format and may have chosen by value; put all of "
                "them in the book"
            )
        if self._broken:
            notes.append(f"secrets: {self._broken}")
        return notes


def _check_held_out(request: SecretRequest, held_out: ControlBook, digest: str, targets: SecretTargets) -> None:
    """Raise InputError if the control was trained on, CommandError if a plan makes the other secrets unlike it."""
    actual_digest = data_digest(held_out.data)
    if actual_digest == digest:
        raise InputError(f"--held-out-data {held_out.data} is --data itself; give records that it was not trained on")
    if request.trained_on is not None and actual_digest in request.trained_on:
        raise InputError(
            f"the model's training report names --held-out-data {held_out.data} as trained on; give other records"
        )
    if any(target.control for target in targets.targets):
        raise CommandError(
            "--plan leaves secrets out, which are its control, and so the others are not like held-out ones; remove "
            "--held-out-secrets"
        )


def _read_plan(request: SecretRequest, digest: str) -> Protection:
    assert request.plan is not None  # the caller checked
    plan = read_protection(request.plan)
    if plan.facts.data != digest:
        raise InputError(
            f"{request.plan} plans for other data ({plan.facts.data_name}) than --data {request.data}; give those, or "
            "plan again with privctl secrets plan"
        )
    if request.planned_by is not None and file_digest(request.plan) not in request.planned_by:
        planned_by = "another plan; give that one" if request.planned_by else "no plan; leave --plan out"
        raise InputError(f"{request.plan} is not what the model was trained by: its training report names {planned_by}")
    return plan


def _broken_conditions(request: SecretRequest, digest: str, manifest: Manifest | None) -> str:
    """Why no bound can be tested; empty if it can."""
    if request.trained_on is not None and digest not in request.trained_on:
        return f"the model's training report names other data than {request.data.name}"
    if manifest is None:
        return ""
    planting = conditions(manifest, commitment=request.commitment, trained_on=request.trained_on)
    return "; ".join(condition.statement for condition in violated_conditions(planting))


def _omissions(omitted: Sequence[tuple[str, str]]) -> tuple[Omission, ...]:
    return tuple(
        Omission(what=f"{count} {'secret' if count == 1 else 'secrets'} of kind {kind}", reason=reason)
        for (kind, reason), count in sorted(Counter(omitted).items())
    )
