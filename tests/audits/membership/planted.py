"""Models that say what a rule has them say: leaks that are nowhere but where one attack looks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from audits.membership.attack import Candidates
from audits.membership.prefixes import with_shots
from audits.membership.queries import ask
from audits.membership.records import candidates_of, prepare
from audits.scores.rows import Rows
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.table import FIELDS
from audits.scores.tasks import CAUSAL_LM
from privctl.data.records import Record
from privctl.domain.progress import Advance, silent

#: (row, random numbers of its own) -> log-probabilities, or the margin, of its tokens.
Rule = Callable[[np.ndarray, np.random.Generator], np.ndarray]

END = 2


@dataclass
class Ruled:
    """A model for ``task`` whose log-probabilities, and margins, a ``rule`` gives; words are numbers, and ids."""

    rule: Rule
    task: str = CAUSAL_LM
    max_length: int | None = 512
    causal: bool = False
    model: Any = field(default_factory=lambda: SimpleNamespace(tokenizer=_Tokenizer(), tokenizer_from=Path("m")))

    @property
    def scorer(self) -> Ruled:
        return self

    def rows(self, records: Sequence[Record]) -> Rows:
        rows = [np.array([int(word) for word in record.text.split()], np.int64) for record in records]
        return Rows(rows=rows, truncated=np.zeros(len(rows), np.bool_))

    def counts(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(row) - 1 if self.task == CAUSAL_LM else 1 for row in rows], np.int64)

    def score(self, rows: Sequence[np.ndarray], advance: Advance = silent) -> np.ndarray:
        scores = np.concatenate([self.rule(row, np.random.default_rng(zlib.crc32(row.tobytes()))) for row in rows])
        values = np.zeros((len(FIELDS), len(scores)), np.float32)
        values[[FIELDS.index("lp"), FIELDS.index("margin")]] = scores
        return values


class _Tokenizer:
    bos_token_id, eos_token_id, all_special_ids = 1, END, (1, END)

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        return {"input_ids": [1, 9, END], "special_tokens_mask": [1, 0, 1]} if _ else {"input_ids": [9]}


def records(count: int, seed: int, *, odd: bool) -> list[Record]:
    """Records of even ids from 10 on, or of odd ones: a rule can tell them apart, and only by that."""
    source = np.random.default_rng(seed)
    lines = (10 + 2 * source.integers(500, size=source.integers(20, 40)) + odd for _ in range(count))
    return [Record(i, " ".join(map(str, ids))) for i, ids in enumerate(lines, start=1)]


def asked(
    rule: Callable[[set[bytes]], Rule],
    attack: str | Sequence[str],
    task: str = CAUSAL_LM,
    count: int = 120,
    kind: Callable[..., Ruled] = Ruled,
    seed: int = 0,
) -> Candidates:
    """What a model of ``rule``, which is given the rows of all records, says when asked for ``attack`` (or several).

    Members have even ids.
    """
    subject = kind(rule=lambda row, random: planted(row, random), task=task)
    members, others = records(count, 2 * seed + 1, odd=False), records(count, 2 * seed + 2, odd=True)
    known = {row.tobytes() for row in subject.rows([*members, *others]).rows}
    planted = rule(known)
    names = [attack] if isinstance(attack, str) else attack
    work = with_shots(prepare(subject, members, others), names)
    questions = ask(subject, work, names)
    scores = compute_scores(plan_scoring(subject, [*work.rows, *questions.rows]))
    return candidates_of(work, scores, None, questions)
