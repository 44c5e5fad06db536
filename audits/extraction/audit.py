"""The extraction part of an audit: does the model continue prefixes of the training data as the data does?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.extraction import opened
from audits.extraction.adversarial import Adversary
from audits.extraction.greedy import GreedyMatches, decide, margin_scores
from audits.extraction.law import SamplingLaw, law_scores
from audits.extraction.near import NEAR, NearMatches, near_matches
from audits.extraction.screen import screen
from audits.extraction.summary import CUED, QueryBudget, Texts, quantities, summarize
from audits.extraction.verdict import verdict
from audits.extraction.windows import (
    LabelledWindows,
    SkippedReason,
    WindowSample,
    WindowShape,
    cues,
    sample,
    shape_of,
    sides,
)
from audits.findings import Findings
from audits.scores.forward import measure_rows
from audits.scores.scorer import RowScores
from audits.scores.subject import with_chat
from audits.scores.table import FIELDS
from privctl.data.columns import Columns
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, Progress, unseen
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Lines that an omission names before it only counts.
_LINES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """Which texts to extract, how they are cut, and how the model is queried.

    Lengths are in tokens. ``least_prefix`` None leaves out records shorter than prefix and suffix. At most ``records``
    are drawn from each file under ``seed``; None takes all. ``greedy_only`` skips sampling and ``exact_only`` what
    comes after the first mismatch, which is quicker. ``adversary`` searches prefixes too, which takes far longer.
    """

    train: DataPath
    heldout: DataPath | None = None
    prefix_tokens: int = 50
    suffix_tokens: int = 50
    least_prefix: int | None = None
    law: SamplingLaw = field(default_factory=SamplingLaw)
    queries: QueryBudget = field(default_factory=QueryBudget)
    greedy_only: bool = False
    exact_only: bool = False
    adversary: Adversary | None = None
    records: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SuffixScores:
    """Scores of a side's suffix tokens, [texts, suffix] each; ``logp`` is None without sampling."""

    margin: NDArray[np.float32]
    target_logit: NDArray[np.float32]
    logp: NDArray[np.float32] | None


class ExtractionAudit:
    """Can training text be extracted from the model, given its beginning?"""

    def __init__(
        self,
        model: LanguageModel,
        request: ExtractionRequest,
        progress: Progress = unseen,
        columns: Columns | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """Read and tokenise the files. Raises InputError for data that cannot be used, CommandError for settings."""
        if request.heldout is not None and request.train.resolve() == request.heldout.resolve():
            raise CommandError(f"--train and --heldout are the same file, {request.train}; give text it never saw")
        self._model = model
        self._request = request
        self._progress = progress
        self._workers = workers
        self._shape = shape_of(model, request.prefix_tokens, request.suffix_tokens, request.least_prefix)
        if request.adversary is not None:
            opened.require_control(request.adversary, self._shape, heldout=request.heldout is not None)
        paths = [request.train] + ([] if request.heldout is None else [request.heldout])
        columns = with_chat(columns, model)
        samples = [
            sample(model, self._shape, path, limit=request.records, seed=request.seed, columns=columns)
            for path in paths
        ]
        for windows in samples:
            _require_rows(windows, self._shape)
        with progress("counting copies", sum(windows.records for windows in samples), "records") as advance:
            self._sides = sides(model, self._shape, samples, advance, columns)
        shared = not request.greedy_only and request.law.plain
        #: With the model's own distribution the shared scores suffice; the others are measured by a pass of their own.
        self.rows: Sequence[NDArray[Any]] = [row for side in self._sides for row in side.sample.rows] if shared else ()

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Rates, each with its interval; together they are wrong with probability at most ``alpha``."""
        texts, omitted, rerun, compared = [], [], 0, []
        for i, (side, scores) in enumerate(zip(self._sides, self._suffix_scores(row_scores), strict=True)):
            usable = _finite(scores)
            if not usable.any():
                raise InputError(
                    f"{self._model.path} gives NaN or infinite scores to every text of {side.sample.path}; "
                    "check its weights for NaN and its format for overflow"
                )
            omitted.append(
                [*side.sample.omitted, *((n, SkippedReason.NOT_FINITE) for n in side.sample.line[~usable].tolist())]
            )
            if i:  # text that the training data contains too is not held out
                omitted[i] += [(n, SkippedReason.IN_TRAINING) for n in side.sample.line[usable & side.shared].tolist()]
                usable &= ~side.shared
            rows = [row for row, keep in zip(side.sample.rows, usable.tolist(), strict=True) if keep]
            compared.append([row for row, keep in zip(side.sample.rows, usable & ~side.shared, strict=True) if keep])
            verdicts = decide(self._model, rows, scores.margin[usable], scores.target_logit[usable], self._workers)
            rerun += verdicts.rerun
            near = self._near(rows, verdicts.extracted)
            texts.append(_texts(side, rows, usable, verdicts, scores.logp, self._shape.suffix, near))
        heldout = texts[1] if len(texts) > 1 else None
        sampled = not self._request.greedy_only
        near_too = all(side_texts.near is not None for side_texts in texts)
        prefixes = self._prefixes(compared)
        number = quantities(heldout=heldout is not None, sampled=sampled, near=near_too)
        confidence = 1 - alpha / (number + (0 if prefixes is None else opened.QUANTITIES))
        evidence = summarize(texts[0], heldout, self._request.queries, confidence)
        evidence += () if prefixes is None else opened.of_prefixes(prefixes, confidence)
        return Findings(
            evidence=evidence,
            verdicts=(verdict(evidence),),
            omissions=(*self._omissions(omitted), *opened.omissions(self._request.adversary, prefixes)),
            warnings=self._caveats(texts),
            parameters={"extraction": self._parameters(rerun)},
            arrays=_arrays(texts, omitted),
        )

    def _near(self, rows: Sequence[NDArray[np.int64]], extracted: NDArray[np.bool_]) -> NearMatches | None:
        """What is written after each prefix, beyond the first mismatch."""
        if self._request.exact_only:
            return None
        tokens = len(rows) * self._shape.suffix / self._workers.size
        with self._progress("continuing", tokens, "tokens") as advance:
            return near_matches(
                self._model, rows, self._shape.suffix, extracted, workers=self._workers, advance=advance
            )

    def _prefixes(self, sides: Sequence[Sequence[NDArray[np.int64]]]) -> opened.BothSides | None:
        request = self._request
        if request.adversary is None or not all(sides):
            return None
        return opened.search_both(
            self._model, sides, self._shape, request.adversary, request.seed, self._workers, self._progress
        )

    def _suffix_scores(self, row_scores: RowScores) -> list[_SuffixScores]:
        if self.rows:
            return [_from_row_scores(row_scores, side.sample.rows, self._shape.suffix) for side in self._sides]
        rows = [row for side in self._sides for row in side.sample.rows]
        tokens = len(rows) * self._shape.suffix / self._workers.size
        with self._progress("extracting", tokens, "tokens") as advance:
            scores = self._score_suffixes(rows, advance)
        ends = np.cumsum([len(side.sample.rows) for side in self._sides])[:-1]
        logp = [None] * len(self._sides) if scores.logp is None else np.split(scores.logp, ends)
        parts = zip(np.split(scores.margin, ends), np.split(scores.target_logit, ends), logp, strict=True)
        return [
            _SuffixScores(margin=margin, target_logit=target_logit, logp=side_logp)
            for margin, target_logit, side_logp in parts
        ]

    def _score_suffixes(self, rows: Sequence[NDArray[np.int64]], advance: Advance) -> _SuffixScores:
        suffix, law = self._shape.suffix, self._request.law

        def screened(some: Sequence[NDArray[np.int64]]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(screen(self._model, some, suffix, advance=advance), axis=1))

        def measure(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            logp = law_scores(logits, targets, law)  # first, as the other overwrites the logits
            return torch.cat([margin_scores(logits, targets), logp[None, :]])

        def measured(some: Sequence[NDArray[np.int64]]) -> torch.Tensor:
            values, _ = measure_rows(self._model, some, measure, 3, last=suffix, advance=advance)
            return torch.from_numpy(values.reshape(3, len(some), suffix)).transpose(0, 1).flatten(1)

        greedy = self._request.greedy_only
        fields, compute = (2, screened) if greedy else (3, measured)
        found = self._workers.spread_rows(rows, compute, fields * suffix, torch.float32).numpy()
        margin, target_logit, *logp = found.reshape(len(rows), fields, suffix).swapaxes(0, 1)
        return _SuffixScores(margin=margin, target_logit=target_logit, logp=None if greedy else logp[0])

    def _parameters(self, rerun: int) -> dict[str, Any]:
        law, queries, windows = self._request.law, self._request.queries, self._sides[0].sample
        return {
            "prefix_tokens": self._shape.prefix,
            "suffix_tokens": self._shape.suffix,
            "least_prefix": self._shape.least_prefix,
            "bos": "prepended, not counted" if self._shape.bos else "none",
            "decoding": "raw argmax; of equal logits the lowest id",
            "texts": "the first tokens of each record, every distinct window once",
            "copies": "training records that hold the suffix's tokens anywhere",
            "training_records": windows.records,
            "usable_records": windows.usable,
            "drawn": len(windows.rows),
            "seed": self._request.seed,
            "rerun_alone_in_float32": rerun,
            **({} if self._request.exact_only else {"near_verbatim": list(NEAR)}),
            **({} if self._request.adversary is None else opened.parameters(self._request.adversary, self._shape)),
            **(
                {}
                if self._request.greedy_only
                else {
                    "temperature": law.temperature,
                    "top_k": law.top_k,
                    "top_p": law.top_p,
                    "queries": queries.count,
                    "probability": queries.probability,
                }
            ),
        }

    def _caveats(self, texts: Sequence[Texts]) -> tuple[str, ...]:
        train, request = texts[0], self._request
        caveats = [
            f"extraction: records of {request.train.name} are taken to be all of the training data; copies elsewhere "
            "are not counted, nor copies that the tokenizer splits differently",
            self._after_what(),
        ]
        if any(side_texts.near is None for side_texts in texts):
            why = "was not asked for" if request.exact_only else "needs a network that transformers can generate with"
            caveats.append(f"extraction: text that differs by a token does not count, as comparing it {why}")
        if len(texts) == 1:
            caveats.append(
                "extraction: without held-out text, nothing tells recalled text from text anyone would write"
            )
        undecided = sum(int(side_texts.undecided.sum()) for side_texts in texts)
        if undecided:
            caveats.append(
                f"extraction: {counted(undecided, 'text hangs', 'texts hang')} on logits that "
                "rounding decides, even alone and in float32; the intervals allow for either verdict"
            )
        cued = int((train.extracted & (train.cue > CUED)).sum())
        if cued:
            caveats.append(
                f"extraction: {cued} of {int(train.extracted.sum())} extracted training texts have more than half of "
                "their suffix's tokens in the prefix, and may be copied rather than recalled"
            )
        full_length = self._shape.bos + self._shape.prefix + self._shape.suffix
        short = sum(len(row) < full_length for row in self._sides[0].sample.rows)
        if short:
            caveats.append(
                f"extraction: {counted(short, 'training text has', 'training texts have')} a prefix of fewer than "
                f"{counted(self._shape.prefix, 'token')}"
            )
        return tuple(caveats)

    def _after_what(self) -> str:
        tokens = f"{self._shape.suffix} tokens of it"
        if self._request.adversary is None:
            return (
                f"extraction: only what follows the record's own beginning counts, {tokens}; what comes after another "
                "beginning does not (--adversarial N searches such beginnings)"
            )
        return (
            f"extraction: what follows the record's own beginning counts, {tokens}, and what follows a prefix that the "
            "search found; such a prefix is made of tokens, which another tokenizer may not give back from its text"
        )

    def _omissions(self, omitted: Sequence[Sequence[tuple[int, SkippedReason]]]) -> tuple[Omission, ...]:
        omissions = []
        for side, entries in zip(self._sides, omitted, strict=True):
            for reason in sorted({reason for _, reason in entries}):
                lines = sorted(line for line, why in entries if why is reason)
                shown = ", ".join(map(str, lines[:_LINES])) + (", ..." if len(lines) > _LINES else "")
                records = f"{len(lines)} {'record' if len(lines) == 1 else 'records'} of {side.sample.path.name}"
                omissions.append(Omission(what=f"{records} in extraction (line {shown})", reason=reason.reason))
        return tuple(omissions)


def _finite(scores: _SuffixScores) -> NDArray[np.bool_]:
    """Texts [texts] with finite logits; a margin of -inf only means that nothing was computed there."""
    return np.asarray((np.isfinite(scores.target_logit) & ~np.isnan(scores.margin)).all(axis=1))


def _require_rows(windows: WindowSample, shape: WindowShape) -> None:
    if not windows.rows:
        raise InputError(
            f"{windows.path} has no record of {shape.least_prefix + shape.suffix} tokens, as extraction needs; give "
            "longer records, or smaller --prefix-tokens, --least-prefix or --suffix-tokens"
        )


def _from_row_scores(row_scores: RowScores, rows: Sequence[NDArray[Any]], suffix: int) -> _SuffixScores:
    counts = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    places = np.cumsum(counts)[:, None] - suffix + np.arange(suffix)
    values = row_scores.take(rows, counts)
    lp, margin, lse = (values[FIELDS.index(name)][places] for name in ("lp", "margin", "lse"))
    return _SuffixScores(margin=margin, target_logit=lp + lse, logp=lp)


def _texts(
    side: LabelledWindows,
    rows: Sequence[NDArray[np.int64]],
    usable: NDArray[np.bool_],
    verdicts: GreedyMatches,
    logp: NDArray[np.float32] | None,
    suffix: int,
    near: NearMatches | None,
) -> Texts:
    return Texts(
        line=side.sample.line[usable],
        matched=verdicts.matched,
        extracted=verdicts.extracted,
        undecided=verdicts.undecided,
        copies=side.copies[usable],
        shared=side.shared[usable],
        cue=cues(rows, suffix),
        logp=None if logp is None else logp[usable].sum(axis=1, dtype=np.float64),
        near=near,
    )


def _arrays(texts: Sequence[Texts], omitted: Sequence[Sequence[tuple[int, SkippedReason]]]) -> dict[str, NDArray[Any]]:
    """Both files' texts one after the other, the training data's first."""
    arrays: dict[str, NDArray[Any]] = {
        "train": np.concatenate([np.full(len(side_texts), i == 0) for i, side_texts in enumerate(texts)]),
        "line": np.concatenate([side_texts.line for side_texts in texts]),
        "matched": np.concatenate([side_texts.matched for side_texts in texts]),
        "greedy": np.concatenate([side_texts.extracted for side_texts in texts]),
        "undecided": np.concatenate([side_texts.undecided for side_texts in texts]),
        "copies": np.concatenate([side_texts.copies for side_texts in texts]),
        "cue": np.concatenate([side_texts.cue for side_texts in texts]),
        "skipped_train": np.array([i == 0 for i, entries in enumerate(omitted) for _ in entries], dtype=np.bool_),
        "skipped_line": np.array([line for entries in omitted for line, _ in entries], dtype=np.int64),
        "skipped_reason": np.array([int(reason) for entries in omitted for _, reason in entries], dtype=np.uint8),
    }
    near = [side_texts.near for side_texts in texts if side_texts.near is not None]
    if len(near) == len(texts):
        arrays |= {
            "distance": np.concatenate([each.distance for each in near]),
            "longest_run": np.concatenate([each.run for each in near]),
        }
    logp = [side_texts.logp for side_texts in texts if side_texts.logp is not None]
    return {f"extraction.{name}": array for name, array in arrays.items()} | (
        {"extraction.logp": np.concatenate(logp)} if logp else {}
    )
