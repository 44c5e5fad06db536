"""Windows of pairs: a sequence-to-sequence model reads the source and should produce the beginning of the target.

Texts are tokenized as in ``privctl retrain``, so the end-of-text token of a short target is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.extraction.decoding import Decoder, TargetDecoder
from audits.extraction.windows import RecordCut
from audits.scores.forward import Batching, Measure, batches, enough_memory
from audits.scores.rows import pad_rows
from audits.scores.seq2seq import PairSubject
from privctl.data.records import Record
from privctl.domain.errors import CommandError
from privctl.domain.progress import Advance
from privctl.models.language import LanguageModel, pad_of
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The maximum number of logits held in memory.
_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class PairShape:
    """A window is the source, the decoder's start token, and the first ``prefix`` + ``suffix`` tokens of the target.

    The decoder is given ``prefix`` of these. ``subject`` tokenizes and truncates pairs.
    """

    prefix: int
    suffix: int
    subject: PairSubject

    @property
    def least(self) -> int:
        """See ``WindowShape``."""
        return self.prefix + self.suffix

    @property
    def _tail(self) -> int:
        """The number of ids of a window that are not the source's."""
        return 1 + self.prefix + self.suffix

    def is_short(self, row: NDArray[np.int64]) -> bool:
        """See ``WindowShape``."""
        return False

    def cut(self, model: LanguageModel, records: Sequence[Record]) -> list[RecordCut]:
        """See ``WindowShape``."""
        start = self.subject.scorer.start
        found = []
        for row in self.subject.rows(records).rows:
            source, target = row[1 : 1 + int(row[0])], row[1 + int(row[0]) :]
            first = [target[-1] if start is None else start]
            window = np.concatenate([source, first, target[: self.least]]) if len(target) >= self.least else None
            found.append(RecordCut(window, target))
        return found

    def decoder(self, model: LanguageModel) -> Decoder:
        """See ``WindowShape``."""
        return TargetDecoder(model=model, given=1 + self.prefix)

    def logits(self, model: LanguageModel, row: NDArray[np.int64], suffix: int) -> torch.Tensor:
        """See ``WindowShape``."""
        return self._logits(model, [row])[0, -suffix:]

    def measure(
        self, model: LanguageModel, rows: Sequence[NDArray[np.int64]], measure: Measure, fields: int, advance: Advance
    ) -> NDArray[np.float32]:
        """See ``WindowShape``."""
        values = np.empty((fields, len(rows), self.suffix), dtype=np.float32)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        batching = Batching.of(model)
        most = max(1, _LOGITS // (model.vocabulary * self._tail))
        with torch.inference_mode(), quiet_transformers(), enough_memory(model):
            for batch in batches(lengths, batching.tokens):
                for some in (batch[i : i + most] for i in range(0, len(batch), most)):
                    logits = self._logits(model, [rows[i] for i in some])[:, -self.suffix :].flatten(0, 1)
                    goals = np.concatenate([rows[i][-self.suffix :] for i in some])
                    targets = torch.from_numpy(goals).to(model.device)
                    positions = batching.positions(model.vocabulary)
                    parts = zip(torch.split(logits, positions), torch.split(targets, positions), strict=True)
                    distances = torch.cat([measure(*part) for part in parts], dim=1).cpu().numpy()
                    values[:, some] = distances.reshape(fields, len(some), self.suffix)
                    advance(len(some) * self.suffix)
        return values

    def describe(self) -> dict[str, Any]:
        """See ``WindowShape``."""
        return {
            "least_prefix": self.prefix,
            "bos": "none",
            "texts": "source, and the first tokens of the target; every distinct window once",
        }

    def _logits(self, model: LanguageModel, rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        """The logits [rows, prefix + suffix, vocabulary] of the target's tokens."""
        ids, real = pad_rows([row[: -self._tail] for row in rows], pad_of(model.network, model.tokenizer))
        shifted = np.stack([row[-self._tail : -1] for row in rows])
        given = {"input_ids": ids, "attention_mask": real, "decoder_input_ids": shifted}
        tensors = {name: torch.from_numpy(array).to(model.device) for name, array in given.items()}
        with network_errors(model.path, model.network):
            logits: torch.Tensor = model.network(**tensors, use_cache=False).logits
        return logits


def pair_shape(model: LanguageModel, prefix: int, suffix: int, least_prefix: int | None) -> PairShape:
    """The shape of windows of pairs. Raises CommandError if they would be empty or do not fit into the model."""
    if suffix < 1:
        raise CommandError(f"--suffix-tokens is {suffix}; it must be at least 1")
    if least_prefix is not None:
        raise CommandError("--least-prefix is about texts, and these are pairs of a source and a target; remove it")
    subject = PairSubject(model)
    limit = subject.max_length
    if limit is not None and 1 + prefix + suffix > limit:
        raise CommandError(
            f"--prefix-tokens {prefix} and --suffix-tokens {suffix} are {prefix + suffix} tokens, but {model.path} "
            f"predicts at most {limit - 1}; give less"
        )
    return PairShape(prefix=prefix, suffix=suffix, subject=subject)
