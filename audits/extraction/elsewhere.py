"""Text that a reference model also produces: known from elsewhere, and so no evidence of memorized training data.

Public text may occur in the training file alone and resemble nothing else in the audit; then held-out text cannot
reveal that the model learned it elsewhere. A model trained on neither file can. Text that it produces is left out of
the comparison with held-out text, whichever file it is from.

If what comes out of the audited model does not depend on which file a text is in, this also holds for the remaining
texts: what the reference model produces is a function of the text alone. So the tests stay exact, provided the
reference model was trained on neither file. One trained on the training file hides what it learned there; one trained
on the held-out file removes the control. A weaker reference model produces less than the audited model knew before it
saw the file, and the rest is still attributed to the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.adversarial import Adversary, optimized_prefixes
from audits.extraction.discoverable import log_success
from audits.extraction.greedy import decide
from audits.extraction.grid import PROBABILITIES, QUERIES
from audits.extraction.law import SamplingLaw
from audits.extraction.near import NEAR, near_matches
from audits.extraction.pairs import PairShape
from audits.extraction.scoring import score_suffixes
from audits.extraction.windows import TextShape, WindowShape
from audits.scores.rows import begins_with_bos, decoded, encode
from audits.scores.seq2seq import PairSubject
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, Progress, unseen
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The point of the grid at which most texts are found.
_QUERIES, _PROBABILITY = max(QUERIES), min(PROBABILITIES)
#: If a stretch starts a record, the reference model is given this fraction of it (1 / 5).
_GIVEN = 5
#: The context used by the audit if the models' contexts are longer or unknown.
_MOST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """A ``model`` trained on neither file, to compare the audited one with.

    ``began`` says that the audited model's report names its weights as the initial weights of the training; ``cleared``
    that its own report names data other than both files. Both are False if no report says so.
    """

    model: LanguageModel
    began: bool = False
    cleared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownElsewhere:
    """Checks whether ``reference`` produces windows of the ``audited`` model's tokens; ``law`` None disables sampling.

    ``same`` says that both models tokenize alike; otherwise the text of a window is tokenized again.
    """

    reference: ReferenceModel
    audited: LanguageModel
    shape: WindowShape
    law: SamplingLaw | None
    same: bool
    workers: Workers = ALONE
    progress: Progress = unseen

    def gives(self, rows: Sequence[NDArray[np.int64]], suffixes: Sequence[int] | None = None) -> NDArray[np.bool_]:
        """Whether the reference model produces the last tokens of each of ``rows`` after those before them, [rows].

        ``suffixes`` are the numbers of last tokens, by default those of a window. A text counts as produced if greedy
        decoding comes within the near-verbatim distance, in tokens or characters, or if sampling at the most permissive
        point of the grid finds it. So does a text that rounding leaves undecided or that is too short to be checked.
        Raises InputError for a model that gives non-finite scores or cannot generate, CommandError if its context is
        too short.
        """
        lengths = [self.shape.suffix] * len(rows) if suffixes is None else list(suffixes)
        prompts = self._in_reference_tokens(rows, lengths)
        sizes = np.array([length * (len(row) > 1) for row, length in prompts], dtype=np.int64)
        given: NDArray[np.bool_] = sizes == 0
        with self.progress("asking the reference model", int(sizes.sum()) / self.workers.size, "tokens") as advance:
            for size in np.unique(sizes[sizes > 0]).tolist():
                of_size = np.flatnonzero(sizes == size)
                given[of_size] = self._given([prompts[i][0] for i in of_size.tolist()], size, advance)
        return given

    def _in_reference_tokens(
        self, rows: Sequence[NDArray[np.int64]], lengths: Sequence[int]
    ) -> list[tuple[NDArray[np.int64], int]]:
        """Each window in the reference model's tokens, and how many of these are to be produced."""
        if self.same or not rows:
            return list(zip(rows, lengths, strict=True))
        front = int(begins_with_bos(self.audited))
        both = [
            decoded(self.audited, some)
            for some in (
                [row[front:] for row in rows],
                [row[front:-length] for row, length in zip(rows, lengths, strict=True)],
            )
        ]
        whole, before = (encode(self.reference.model, texts) for texts in both)
        return [(row, _rest(row, given)) for row, given in zip(whole, before, strict=True)]

    def _given(self, rows: Sequence[NDArray[np.int64]], suffix: int, advance: Advance) -> NDArray[np.bool_]:
        model = self.reference.model
        longest = max(map(len, rows))
        if model.context is not None and longest > model.context:
            raise CommandError(
                f"--reference {model.path} sees at most {model.context} tokens, and a text with what comes before it "
                f"is {longest} of its tokens; give less --prefix-tokens or --suffix-tokens"
            )
        shape = self._shape(longest, suffix)
        scores = score_suffixes(model, shape, rows, self.law, self.workers, lambda _: None)
        if not scores.finite.all():
            raise InputError(f"{model.path} gives NaN or infinite scores; give another reference model")
        greedy = decide(model, rows, scores.margin, scores.target_logit, self.workers, shape.logits)
        given = greedy.extracted | greedy.undecided
        if scores.logp is not None:
            success = log_success(scores.logp.sum(axis=1, dtype=np.float64), _QUERIES)
            given |= success >= np.log(_PROBABILITY)
        near = near_matches(model, rows, suffix, given, decoder=shape.decoder, workers=self.workers, advance=advance)
        if near is None:
            raise InputError(f"transformers cannot generate with {model.path}; give another reference model")
        return np.asarray(given | (near.distance <= NEAR[-1]) | (near.characters <= NEAR[-1]))

    def _shape(self, longest: int, suffix: int) -> WindowShape:
        model = self.reference.model
        if isinstance(self.shape, PairShape):
            return PairShape(prefix=self.shape.prefix, suffix=suffix, subject=PairSubject(model))
        bos = begins_with_bos(model)
        return TextShape(prefix=longest - suffix - bos, suffix=suffix, least_prefix=1, bos=bos)

    def opens(
        self, rows: Sequence[NDArray[np.int64]], opened: NDArray[np.bool_], adversary: Adversary, seed: int
    ) -> NDArray[np.bool_]:
        """Which of the ``opened`` texts [rows] an equal search for a prefix also opens in the reference model.

        Raises InputError if the network gives no gradient.
        """
        model = self.reference.model
        indices = np.flatnonzero(opened)
        prompts = self._in_reference_tokens([rows[i] for i in indices.tolist()], [self.shape.suffix] * len(indices))
        sizes = np.array([length for _, length in prompts], dtype=np.int64)
        is_opened = np.zeros(len(rows), dtype=np.bool_)
        work = len(indices) * adversary.budget / self.workers.size
        with self.progress("optimizing prefixes of the reference model", work, "passes") as advance:
            for size in np.unique(sizes).tolist():
                of_size = np.flatnonzero(sizes == size)
                result = optimized_prefixes(
                    model, [prompts[i][0] for i in of_size.tolist()], size, adversary, bos=begins_with_bos(model),
                    seed=seed, workers=self.workers, advance=advance,
                )  # fmt: skip
                if result is None:
                    raise InputError(f"the embeddings of {model.path} give no gradient; remove --adversarial")
                is_opened[indices[of_size]] = result.matches.extracted | result.matches.undecided
        return is_opened

    def stretches(self, row: NDArray[np.int64], start: int, stop: int) -> list[tuple[NDArray[np.int64], int]]:
        """Windows that check the tokens from ``start`` to ``stop`` of a record, each with its number of last tokens.

        ``stop`` is exclusive. The stretch is cut from its end into pieces as long as a span, each preceded by as much
        of the record as both models see. If the stretch starts the record, part of it is given.
        """
        span, prefix = self.shape.suffix, self._length_before_span
        end = min(len(row), max(stop, start + span))
        start = min(start, end - span)
        front = row[:0]
        if begins_with_bos(self.audited):
            front = np.array([self.audited.tokenizer.bos_token_id], dtype=np.int64)
        pieces = []
        for last in range(end, start + span - 1, -span):
            first = last - span or max(1, span // _GIVEN)
            pieces.append((np.concatenate([front, row[max(0, first - prefix) : last]]), last - first))
        return pieces

    @property
    def _length_before_span(self) -> int:
        """How many of a record's tokens are given before a span."""
        seen = [_MOST, *(model.context or _MOST for model in (self.audited, self.reference.model))]
        room = min(seen) if self.same else min(seen) // 2
        return max(1, room - self.shape.suffix - 1)

    def parameters(self) -> dict[str, Any]:
        """The parameters of the reference model for the report."""
        sampled = {"reference_queries": _QUERIES, "reference_probability": _PROBABILITY}
        return {
            "reference": "what the training began with" if self.reference.began else "given by the caller",
            "reference_tokens": "the same" if self.same else "its own, of the texts",
            "reference_distance": NEAR[-1],
            **({} if self.law is None else sampled),
        }


def known_elsewhere(
    reference: ReferenceModel,
    audited: LanguageModel,
    shape: WindowShape,
    rows: Sequence[NDArray[np.int64]],
    law: SamplingLaw | None,
    workers: Workers = ALONE,
    progress: Progress = unseen,
) -> KnownElsewhere:
    """A checker of windows like ``rows``. Raises CommandError for pairs if the tokenizers differ."""
    same = _same_tokens(audited, reference.model, rows)
    if isinstance(shape, PairShape):
        same = same and shape.subject.scorer.start == PairSubject(reference.model).scorer.start
        if not same:
            raise CommandError(
                f"--reference {reference.model.path} has another tokenizer than {audited.path}, and pairs of a source "
                "and a target are compared by tokens; give one with the same tokenizer"
            )
    return KnownElsewhere(
        reference=reference, audited=audited, shape=shape, law=law, same=same, workers=workers, progress=progress
    )


def _same_tokens(audited: LanguageModel, other: LanguageModel, rows: Sequence[NDArray[np.int64]]) -> bool:
    """Whether both models have the same vocabulary and tokenize the texts of ``rows`` alike."""
    if audited.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        return False
    if max(int(row.max()) for row in rows) >= other.vocabulary:
        return False
    texts = decoded(audited, rows)
    return all(
        np.array_equal(ours, theirs) for ours, theirs in zip(encode(audited, texts), encode(other, texts), strict=True)
    )


def _rest(row: NDArray[np.int64], given: NDArray[np.int64]) -> int:
    """The number of tokens of ``row`` after its common prefix with ``given``: at least 1, and not all."""
    common = sum(1 for _ in takewhile(bool, (a == b for a, b in zip(row.tolist(), given.tolist(), strict=False))))
    return max(1, min(len(row) - 1, len(row) - common))
