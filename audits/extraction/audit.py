"""The extraction part of an audit: does the model continue prefixes of the training data as the data does?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction import opened, remarks
from audits.extraction.coins import SplitCoins, drawn_together
from audits.extraction.confirmed import OwnBeginnings, WholeRecords, confirmed
from audits.extraction.elsewhere import ReferenceModel, known_elsewhere
from audits.extraction.greedy import GreedyMatches, decide
from audits.extraction.kept import arrays_of_blocks, arrays_of_prefixes, arrays_of_prompts, arrays_of_texts
from audits.extraction.known_records import without_known
from audits.extraction.near import NEAR, NearMatches, near_matches
from audits.extraction.pairs import pair_shape
from audits.extraction.request import ExtractionRequest
from audits.extraction.scoring import SuffixScores, from_row_scores, score_suffixes
from audits.extraction.summary import Texts, quantities, summarize
from audits.extraction.untargeted import SpanSearch, Untargeted, attack, prompts_of
from audits.extraction.verdict import verdict
from audits.extraction.windows import (
    USUAL_TOKENS,
    LabelledWindows,
    SkippedReason,
    TextShape,
    WindowSample,
    WindowShape,
    cues,
    lengths,
    sample,
    sides,
    text_shape,
)
from audits.findings import Findings
from audits.scores.rows import begins_with_bos
from audits.scores.scorer import RowScores
from audits.scores.subject import with_chat
from audits.split.drawn import read_split
from audits.split.premises import of_training, premises
from privctl.data.columns import Columns
from privctl.data.several import real_paths
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Evidence
from privctl.domain.progress import Progress, unseen
from privctl.domain.verdict import Outcome, Verdict
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ExtractionAudit:
    """Whether training text can be extracted from the model, given its beginning."""

    def __init__(
        self,
        model: LanguageModel,
        request: ExtractionRequest,
        progress: Progress = unseen,
        columns: Columns | None = None,
        workers: Workers = ALONE,
        *,
        pairs: bool = False,
        trained_on: Sequence[str] | None = None,
        reference: ReferenceModel | None = None,
    ) -> None:
        """Read and tokenize the files; with ``pairs``, for a sequence-to-sequence model.

        ``trained_on`` holds the digests of the data that the model's report names, None if unknown. Text that
        ``reference`` also reproduces is not compared. Raises InputError for unusable data and CommandError for unusable
        settings.
        """
        if request.heldout is not None and real_paths(request.train) == real_paths(request.heldout):
            raise CommandError(f"--train and --held-out are the same file, {request.train}; give text it never saw")
        self._coins = None if request.split is None else SplitCoins(split=read_split(request.split))
        self._trained_on = trained_on
        self._model = model
        self._request = request
        self._progress = progress
        self._workers = workers
        self._shape = _shape(model, request, pairs=pairs)
        paths = [request.train] + ([] if request.heldout is None else [request.heldout])
        columns = replace(with_chat(columns, model), pair=pairs)
        self._columns = columns
        outside = request.untargeted
        self._prompts = () if outside is None else prompts_of(model, outside, self._shape.suffix, request.seed, columns)
        limit = None if self._coins is not None else request.records
        samples = [
            sample(model, self._shape, path, limit=limit, seed=request.seed, columns=columns, progress=progress)
            for path in paths
        ]
        if self._coins is not None and request.records is not None:
            samples = drawn_together(samples, len(paths) * request.records)
        for windows in samples:
            _require_rows(windows, self._shape)
        with progress("counting copies", sum(windows.records for windows in samples), "records") as advance:
            self._sides = sides(model, self._shape, samples, advance, columns)
        if self._coins is not None:
            self._sides = self._coins.labelled(self._sides)
        self._elsewhere = None
        if reference is not None and request.heldout is not None:
            self._elsewhere = known_elsewhere(
                reference, model, self._shape, [row for windows in samples for row in windows.rows],
                None if request.greedy_only else request.law, workers, progress,
            )  # fmt: skip
        shared = not request.greedy_only and request.law.plain and not pairs
        #: If sampling uses the model's own distribution, the shared scores suffice; otherwise the audit makes its own
        #: pass.
        self.rows: Sequence[NDArray[Any]] = [row for side in self._sides for row in side.sample.rows] if shared else ()

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Rates with their intervals, which hold simultaneously with probability at least ``1 - alpha``.

        Raises InputError if all scores of a file are NaN or infinite.
        """
        texts, omitted, rerun, compared, kept = [], [], 0, [], []
        for i, (side, scores) in enumerate(zip(self._sides, self._suffix_scores(row_scores), strict=True)):
            usable = scores.finite
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
            known = None if self._elsewhere is None else self._elsewhere.gives(rows)
            units = self._units(i, side.sample.line[usable])
            searchable = side.compared[usable] & (True if known is None else ~known)
            compared.append(opened.Searchable.of(rows, units).at(np.flatnonzero(searchable)))
            verdicts = decide(
                self._model, rows, scores.margin[usable], scores.target_logit[usable], self._workers, self._shape.logits
            )
            rerun += verdicts.rerun
            near = self._near(rows, verdicts.extracted)
            kept.append(rows)
            found = _texts(side, rows, usable, verdicts, scores.logp, self._shape.suffix)
            texts.append(replace(found, near=near, unit=units, known=known))
        heldout = texts[1] if len(texts) > 1 else None
        sampled = not self._request.greedy_only
        near_too = all(side_texts.near is not None for side_texts in texts)
        prefixes, outside = self._prefixes(compared), self._untargeted()
        number = quantities(heldout=heldout is not None, sampled=sampled, near=near_too)
        number += (0 if prefixes is None else opened.QUANTITIES) + (0 if outside is None else outside.quantities)
        confidence = 1 - alpha / number
        drawn = self._coins is not None
        evidence = summarize(texts[0], heldout, self._request.queries, confidence, drawn=drawn)
        evidence += () if prefixes is None else opened.of_prefixes(prefixes, confidence)
        evidence += () if outside is None else outside.evidence(confidence)
        own = OwnBeginnings(texts=texts, rows=kept)
        again = () if drawn else confirmed(evidence, self._model, own, prefixes, self._whole_records(outside))
        evidence += tuple(each.evidence for each in again)
        return Findings(
            evidence=evidence,
            verdicts=(self._verdict(evidence),),
            omissions=(
                *remarks.omissions(self._sides, omitted),
                *opened.omissions(self._request.adversary, prefixes),
                *(() if outside is None else outside.omissions),
            ),
            warnings=(
                *remarks.caveats(self._request, self._sides, texts, self._shape, self._control()),
                *(() if self._elsewhere is None else remarks.of_reference(self._elsewhere, texts)),
                *(() if outside is None else outside.caveats()),
            ),
            parameters={
                "extraction": {**self._parameters(rerun), **({} if outside is None else outside.parameters())},
                **({} if self._coins is None else self._coins.parameters()),
            },
            arrays={
                **arrays_of_texts(texts, omitted, self._request.queries),
                **arrays_of_prefixes(prefixes, texts),
                **arrays_of_prompts(outside),
                **arrays_of_blocks(again),
            },
        )

    def _units(self, side: int, lines: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The randomization unit of each of ``lines`` [texts]; None if each text is its own."""
        return None if self._coins is None else self._coins.units(side, lines)

    def _verdict(self, evidence: Sequence[Evidence]) -> Verdict:
        """The verdict.

        For a drawn split, finding nothing counts only if the model may have been trained on the members.
        """
        if self._coins is None:
            return verdict(evidence)
        found = verdict(evidence, drawn=True, group_by=self._coins.split.group_by)
        if found.outcome is not Outcome.CONSISTENT:
            return found
        return of_training(found, self._coins.split, self._trained_on)

    def _control(self) -> Sequence[str]:
        """The premises of the comparison with held-out text."""
        if self._coins is None:
            return (remarks.CONTROL if self._elsewhere is None else remarks.CONTROL_WITH_REFERENCE,)
        return [f"extraction: {line}" for line in (*premises(self._coins.split, self._trained_on), *self._by_coins())]

    def _by_coins(self) -> Iterator[str]:
        assert self._coins is not None
        if self._coins.of_groups:
            yield (
                f"comparisons count groups with one value of {self._coins.split.group_by!r} of which any text comes "
                "out; texts that several records begin with are not compared"
            )
        if self._request.untargeted is not None and self._request.untargeted.prompts is not None:
            yield "the prompts are taken to be chosen without knowledge of the coins"

    def _near(self, rows: Sequence[NDArray[np.int64]], extracted: NDArray[np.bool_]) -> NearMatches | None:
        """What greedy decoding writes after each prefix, also beyond the first mismatch; None with ``exact_only``."""
        if self._request.exact_only:
            return None
        tokens = len(rows) * self._shape.suffix / self._workers.size
        with self._progress("continuing", tokens, "tokens") as advance:
            return near_matches(
                self._model, rows, self._shape.suffix, extracted, decoder=self._shape.decoder, workers=self._workers,
                advance=advance,
            )  # fmt: skip

    def _prefixes(self, sides: Sequence[opened.Searchable]) -> opened.BothSides | None:
        request = self._request
        if request.adversary is None or not all(side.rows for side in sides) or not isinstance(self._shape, TextShape):
            return None
        return opened.search_both(
            self._model, sides, self._shape, request.adversary, request.seed, self._workers, self._progress,
            drawn=self._coins is not None, elsewhere=self._elsewhere,
        )  # fmt: skip

    def _untargeted(self) -> Untargeted | None:
        request = self._request
        if request.untargeted is None:
            return None
        found = attack(
            self._model,
            request.untargeted,
            self._prompts,
            SpanSearch(
                span=self._shape.suffix,
                law=request.law,
                greedy_only=request.greedy_only,
                records=request.records,
                seed=request.seed,
                columns=self._columns,
            ),
            [side.sample for side in self._sides],
            workers=self._workers,
            progress=self._progress,
            coins=self._coins,
        )
        if self._elsewhere is None:
            return found
        return without_known(found, self._elsewhere, [side.sample for side in self._sides], self._columns)

    def _whole_records(self, outside: Untargeted | None) -> WholeRecords | None:
        if outside is None:
            return None
        samples = [side.sample for side in self._sides]
        return WholeRecords(outside=outside, samples=samples, span=self._shape.suffix, columns=self._columns)

    def _suffix_scores(self, row_scores: RowScores) -> list[SuffixScores]:
        if self.rows:
            return [from_row_scores(row_scores, side.sample.rows, self._shape.suffix) for side in self._sides]
        rows = [row for side in self._sides for row in side.sample.rows]
        law = None if self._request.greedy_only else self._request.law
        tokens = len(rows) * self._shape.suffix / self._workers.size
        with self._progress("extracting", tokens, "tokens") as advance:
            scores = score_suffixes(self._model, self._shape, rows, law, self._workers, advance)
        return scores.split(np.cumsum([len(side.sample.rows) for side in self._sides])[:-1])

    def _parameters(self, rerun: int) -> dict[str, Any]:
        law, queries, windows = self._request.law, self._request.queries, self._sides[0].sample
        return {
            "prefix_tokens": self._shape.prefix,
            "suffix_tokens": self._shape.suffix,
            **self._shape.describe(),
            "decoding": "raw argmax; of equal logits the lowest id",
            "copies": "training records that hold the suffix's tokens anywhere",
            "training_records": windows.records,
            "usable_records": windows.usable,
            "windows_in_both_files": self._sides[0].in_both,
            "drawn": len(windows.rows),
            "seed": self._request.seed,
            **({} if self._coins is None else {"sides": "drawn by privctl"}),
            "rerun_alone_in_float32": rerun,
            **({} if self._request.exact_only else {"near_verbatim": list(NEAR)}),
            **({} if self._elsewhere is None else self._elsewhere.parameters()),
            **opened.parameters(self._request.adversary, self._shape),
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


def _shape(model: LanguageModel, request: ExtractionRequest, *, pairs: bool) -> WindowShape:
    """The shape of the windows. Raises CommandError if the attacks asked for are not possible."""
    heldout = request.heldout is not None
    if pairs:
        for what, asked in (
            ("--adversarial looks", request.adversary),
            ("--prompts and --divergence look", request.untargeted),
        ):
            if asked is not None:
                raise CommandError(
                    f"{what} for what a text is continued with, and {model.path} writes a target from a source; "
                    f"remove {'it' if asked is request.adversary else 'them'}"
                )
        suffix = USUAL_TOKENS if request.suffix_tokens is None else request.suffix_tokens
        return pair_shape(model, request.prefix_tokens or 0, suffix, request.least_prefix)
    room = None if model.context is None else model.context - begins_with_bos(model)
    shape = text_shape(model, *lengths(room, request.prefix_tokens, request.suffix_tokens), request.least_prefix)
    if request.adversary is not None:
        opened.require_control(request.adversary, shape, heldout=heldout)
    if request.untargeted is not None:
        if not heldout:
            raise CommandError(
                "--prompts and --divergence need --held-out: what everybody writes comes out of any model"
            )
        request.untargeted.length(model, shape.suffix)
    return shape


def _require_rows(windows: WindowSample, shape: WindowShape) -> None:
    if not windows.rows:
        longest = windows.longest - (isinstance(shape, TextShape) and shape.bos)
        raise InputError(
            f"{windows.path} has no record of {shape.least} tokens, as extraction needs; its longest has {longest}, so "
            "give longer records, or smaller --prefix-tokens, --least-prefix or --suffix-tokens"
        )


def _texts(
    side: LabelledWindows,
    rows: Sequence[NDArray[np.int64]],
    usable: NDArray[np.bool_],
    verdicts: GreedyMatches,
    logp: NDArray[np.float32] | None,
    suffix: int,
) -> Texts:
    return Texts(
        line=side.sample.line[usable],
        matched=verdicts.matched,
        extracted=verdicts.extracted,
        undecided=verdicts.undecided,
        copies=side.copies[usable],
        shared=side.shared[usable],
        compared=side.compared[usable],
        cue=cues(rows, suffix),
        logp=None if logp is None else logp[usable].sum(axis=1, dtype=np.float64),
    )
