"""Attacks without the records: prompts from outside, what the model writes after them, and which records come out.

Nasr et al. 2023 call such text extractable, in contrast to text that is discoverable from a record's own beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction import prompts as prompt_sets
from audits.extraction.came_out import SearchedFile, comparable, drawn, search, usable, with_least_digests
from audits.extraction.coins import SplitCoins
from audits.extraction.compare import beyond, known_details, rate
from audits.extraction.generation import Queries, continuations
from audits.extraction.law import SamplingLaw
from audits.extraction.near import NEAR
from audits.extraction.outcomes import PromptOutcome, WrittenTexts, certain
from audits.extraction.prompts import CONTROL, DIVERGENCE, PromptSet
from audits.extraction.spans import SpanIndex
from audits.extraction.summary import BEYOND, NEAR_BEYOND
from audits.extraction.windows import WindowSample, token_batches
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.data.columns import Columns
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Evidence
from privctl.domain.progress import Progress, unseen
from privctl.domain.report import Omission
from privctl.models.language import LanguageModel
from privctl.parallel import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Two comparisons, two rates and the cost in queries; divergence adds a comparison with its control.
QUANTITIES = 5
COST = "queries for one training text"
OVER_CONTROL = "prompts that give training text, beyond the control"
#: The default limits of tokens written and of prompt tokens kept, if the model's context permits.
_TOKENS, _ROOM = 256, 2048
#: The minimum length of a part of a record in the prompts; a fifth of a span if that is more.
_PART = 8
#: The maximum number of prompts that a report lists.
_NAMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UntargetedRequest:
    """The prompts: ``prompts`` from a file, ``divergence`` by repetition, or both.

    Each prompt is continued ``continuations`` times by up to ``tokens`` tokens (None: chosen for the model). ``seed``
    seeds the sampling; None takes one from the operating system.
    """

    prompts: DataPath | None = None
    divergence: bool = False
    continuations: int = 4
    tokens: int | None = None
    seed: int | None = None

    def length(self, model: LanguageModel, span: int) -> int:
        """The number of tokens to write after a prompt.

        Raises CommandError if it exceeds the model's context or is below ``span``.
        """
        context = model.context
        tokens = self.tokens or min(_TOKENS, _TOKENS if context is None else 3 * context // 4)
        if context is not None and tokens >= context:
            raise CommandError(
                f"--continuation-tokens is {tokens}, but {model.path} sees at most {context} tokens; give less"
            )
        if tokens < span:
            raise CommandError(
                f"--continuation-tokens is {tokens}, and --suffix-tokens {span} is the length of what must come out; "
                "give more of the former or less of the latter"
            )
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSearch:
    """The search in what is written: spans of ``span`` tokens of ``records`` of each file, None for all.

    The records are drawn under ``seed``. The model writes by the sampling ``law``, or only by argmax if
    ``greedy_only``.
    """

    span: int
    law: SamplingLaw
    greedy_only: bool
    records: int | None
    seed: int
    columns: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Untargeted:
    """The outcome of each set of prompts, or why there is none; ``seed`` was used for sampling."""

    outcomes: tuple[PromptOutcome, ...]
    queries: Queries
    seed: int
    edits: int
    omissions: tuple[Omission, ...] = ()
    drawn: bool = False

    @property
    def quantities(self) -> int:
        """The number of intervals and tests that ``evidence`` contains.

        For a drawn split each comparison counts twice: which records it covers depends on how parts in the prompts fell
        on the sides (``came_out.comparable``), and each of the two possible comparisons gets a share of the error.
        """
        of_each = QUANTITIES + (2 if self.drawn else 0)
        return of_each * len(self.outcomes) + any(o.written.prompts.method == CONTROL for o in self.outcomes)

    def evidence(self, confidence: float) -> tuple[Evidence, ...]:
        """The evidence from every set of prompts."""
        found = [item for outcome in self.outcomes for item in _of_one(outcome, confidence)]
        by_method = {outcome.written.prompts.method: outcome for outcome in self.outcomes}
        if CONTROL in by_method:
            sides = [by_method[name].giving_prompts for name in (DIVERGENCE, CONTROL)]
            ours, theirs = map(certain, sides)
            found.append(beyond(DIVERGENCE, OVER_CONTROL, ours, theirs, confidence, ("repeating", "control")))
        return tuple(found)

    def parameters(self) -> dict[str, Any]:
        """The parameters of the prompts and the search for the report; productive prompts are given by number only."""
        given = {o.written.prompts.method: o.written.prompts.line[o.giving_prompts].tolist() for o in self.outcomes}
        return {
            "continuations": self.queries.count,
            "continuation_tokens": self.queries.tokens,
            **({"sampling_seed": self.seed} if self.queries.count > 1 else {}),
            "span_edits": self.edits,
            "prompts": {o.written.prompts.method: len(o.written.prompts.rows) for o in self.outcomes},
            "prompts_giving": {method: lines[:_NAMED] for method, lines in given.items()},
        }

    def caveats(self) -> tuple[str, ...]:
        """Sentences that state what was left out of the search."""
        if not self.outcomes:
            return ()
        first = self.outcomes[0]
        lines = []
        known = sum(int(file.known.sum()) for file in first.files)
        if known:
            lines.append(
                f"extraction: {known} records have a span that is in the prompts already, and are not looked for in "
                "what is written after prompts"
            )
        short = sum(file.short for file in first.files)
        if short:
            lines.append(
                f"extraction: {short} records have fewer tokens than a span, and are not looked for in what is written "
                "after prompts"
            )
        cut = sum(outcome.written.prompts.cut for outcome in self.outcomes)
        if cut:
            lines.append(f"extraction: of {cut} prompts only the end fits before what is written")
        return tuple(lines)


def prompts_of(
    model: LanguageModel, request: UntargetedRequest, span: int, seed: int, columns: Columns
) -> tuple[PromptSet, ...]:
    """The prompts that ``request`` asks for, truncated to what fits before what is written.

    Raises as ``prompts.from_file`` and ``UntargetedRequest.length`` do.
    """
    room = _ROOM if model.context is None else model.context - request.length(model, span)
    of_file = (prompt_sets.from_file(model, request.prompts, columns, room),) if request.prompts is not None else ()
    return (*of_file, *(prompt_sets.repetitions(model, seed, room) if request.divergence else ()))


def attack(
    model: LanguageModel,
    request: UntargetedRequest,
    sets: Sequence[PromptSet],
    asked: SpanSearch,
    samples: Sequence[WindowSample],
    *,
    workers: Workers,
    progress: Progress = unseen,
    coins: SplitCoins | None = None,
) -> Untargeted:
    """Continue the prompts of ``sets``, and search what is written for spans of both ``samples``' files, as ``asked``.

    Equally many records of both files are compared. If ``coins`` assigned the sides, records are selected from both
    files together, by digest, and all of them are compared.
    """
    span, columns = asked.span, asked.columns
    tokens, edits = request.length(model, span), int(NEAR[0] * span)
    queries = Queries(
        count=1 if asked.greedy_only else request.continuations, tokens=tokens, law=asked.law, seed=request.seed
    )
    drawn_by = queries.seeded(workers)
    result = Untargeted(outcomes=(), queries=queries, seed=drawn_by, edits=edits, drawn=coins is not None)
    written = []
    for number, each in enumerate(sets):
        size = len(each.rows) * queries.count * tokens / workers.size
        with progress(f"continuing {each.method}", size, "tokens") as advance:
            texts = continuations(model, each.rows, queries, drawn_by + number, workers, advance)
        if texts is None:
            return _without(result, sets, "transformers cannot generate with this network")
        written.append(WrittenTexts(prompts=each, texts=texts, begins=_begins(model, each, texts, queries.count)))
    indexes = [SpanIndex(each.searched, span, edits) for each in written]
    given = [row for each in sets for row in each.rows]
    known, begun = SpanIndex(given, span, edits), SpanIndex(given, min(span, max(_PART, span // 5)), 0)
    files = []
    with progress("searching what was written", sum(one.records for one in samples), "records") as advance:
        for one in samples:
            batches = token_batches(model, one.path, columns)
            files.append(search(model, batches, span, indexes, known, begun, advance))
    counted, compared = _chosen(files, asked.records, asked.seed, coins)
    if not all(some.any() for some in compared):
        return _without(result, sets, "no record of both files is left that is long enough and not in the prompts")
    units = tuple(None if coins is None else coins.units(side, file.line) for side, file in enumerate(files))
    outcomes = tuple(
        PromptOutcome(
            written=each,
            files=tuple(files),
            number=number,
            counted=tuple(counted),
            compared=tuple(compared),
            units=units,
        )
        for number, each in enumerate(written)
    )
    return replace(result, outcomes=outcomes)


def _chosen(
    files: Sequence[SearchedFile], records: int | None, seed: int, coins: SplitCoins | None
) -> tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]:
    """Which records [records] of each side count, and which are compared."""
    count = usable(files)
    compare = comparable(files, alone=coins is not None and coins.of_groups)
    if coins is not None:
        counted = count if records is None else with_least_digests(files, count, len(files) * records)
        return counted, [some & which for some, which in zip(counted, compare, strict=True)]
    counted = [
        drawn(file, which, int(which.sum()) if records is None else records, seed)
        for file, which in zip(files, count, strict=True)
    ]
    among = [chosen & which for chosen, which in zip(counted, compare, strict=True)]
    fewest = min(int(each.sum()) for each in among)
    return counted, [drawn(file, which, fewest, seed) for file, which in zip(files, among, strict=True)]


def _of_one(outcome: PromptOutcome, confidence: float) -> list[Evidence]:
    method, came = outcome.written.prompts.method, outcome.files[0].came_out[outcome.number]
    training, others = (outcome.count(side, outcome.counted[side]) for side in (0, 1))
    samples = {"training": training.total, "held_out": others.total}
    out = came.records(outcome.counted[0], nearly=False)
    sizes = {
        "near_verbatim": outcome.count(0, outcome.counted[0], nearly=True).extracted,
        "characters": int(came.characters[out].sum()),
        "longest_tokens": int(came.longest[out].max(initial=0)),
    }
    near = outcome.count(1, outcome.counted[1], nearly=True).extracted
    left_out = None if outcome.left_out is None else [int(some.sum()) for some in outcome.left_out]
    differences = []
    for name, flag in ((BEYOND, False), (NEAR_BEYOND, True)):
        ours, theirs = (outcome.compared_count(side, nearly=flag) for side in (0, 1))
        found = beyond(method, name, ours, theirs, confidence)
        differences.append(replace(found, details={**found.details, **known_details(left_out)}))
    return [
        *differences,
        rate(method, "training", training, confidence, samples, sizes),
        rate(method, "held-out", others, confidence, samples, {"near_verbatim": near}),
        _cost(outcome, confidence),
    ]


def _cost(outcome: PromptOutcome, confidence: float) -> Evidence:
    """The expected number of queries, with prompt and continuation drawn uniformly, until one yields a training record.

    The interval is for the mean of independent Bernoulli variables of unequal probabilities, some 0 or 1; Clopper and
    Pearson's holds for these too (Hoeffding 1956, "On the distribution of the number of successes in independent
    trials").
    """
    giving = outcome.giving
    queries, found = len(giving), int(giving.sum())
    low, high = clopper_pearson(found, queries, 1 - confidence)
    greedy = giving.reshape(len(outcome.written.prompts.rows), -1)[:, 0]
    return Evidence(
        method=outcome.written.prompts.method,
        quantity=COST,
        estimate=queries / found if found else None,
        lower=1 / high,
        upper=1 / low if low else None,
        confidence=confidence,
        interval=f"{CLOPPER_PEARSON}, inverted",
        samples={"queries": queries},
        details={
            "queries": queries,
            "giving": found,
            "prompts": len(greedy),
            "giving_prompts": int(outcome.giving_prompts.sum()),
            "giving_greedily": int(greedy.sum()),
            "held_out_giving": int(outcome.files[1].came_out[outcome.number].texts(outcome.counted[1], queries).sum()),
            **outcome.written.details(),
        },
        reason="" if found else "no query gave a training text word for word",
    )


def _begins(
    model: LanguageModel, prompts: PromptSet, texts: Sequence[NDArray[np.int64]], count: int
) -> NDArray[np.int64]:
    if prompts.words is None:
        return np.zeros(len(texts), dtype=np.int64)
    used = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *texts])).tolist()
    words = {token: prompt_sets.word_of(model, token) for token in used}
    lengths = (prompt_sets.repetition_length(text, prompts.words[i // count], words) for i, text in enumerate(texts))
    return np.fromiter(lengths, dtype=np.int64, count=len(texts))


def _without(result: Untargeted, sets: Sequence[PromptSet], reason: str) -> Untargeted:
    return replace(result, omissions=tuple(Omission(what=each.method, reason=reason) for each in sets))
