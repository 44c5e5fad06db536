"""Records without a token: one error names all of them, so that they are mended at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import processors

from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.encoding import TextFacts, TextOptions, encode_causal, encode_classified, encode_masked
from privctl.models.pairs import encode_pairs
from privctl.models.tasks.build import text_task
from tests.models.tasks import annotated
from tests.models.tasks.test_encoding import facts

A, B = Stretch("a.jsonl line"), Stretch("b.jsonl line", before=100)


def bare() -> TextFacts:
    """With a tokenizer that adds no token of its own."""
    made = facts()
    tokenizer = copy.deepcopy(made.tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    tokenizer.eos_token = None
    return replace(made, tokenizer=tokenizer)


def records(places: Sequence[tuple[Stretch, int]], empty: str = "", full: str = "the cat", start: int = 0) -> list[
    TextRecord
]:  # fmt: skip
    whole = [TextRecord(stretch=A, text=full, line=n, start=start, label="a") for n in (1, 2)]
    return [*whole, *(TextRecord(stretch=s, text=empty, line=line, label="a") for s, line in places)]


@pytest.mark.parametrize("encode", [encode_causal, encode_masked, encode_classified])
def test_all_records_without_a_token_are_named_at_once(encode: object) -> None:
    assert callable(encode)
    for places, message in (
        ([(A, 4)], "a.jsonl line 4 has no token to "),
        ([(A, 4), (A, 9)], "a.jsonl line 4 and 9 have no token to "),
        ([(A, 4), (A, 9), (B, 101)], "a.jsonl line 4, 9 and b.jsonl line 1 have no token to "),
        ([(A, n) for n in range(3, 3003)], "a.jsonl line 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2990 more have no token"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            encode(records(places), bare(), TextOptions(end=False))


def test_all_pairs_without_a_token_are_named_at_once() -> None:
    """A source that is empty, and a target."""
    whole = records([], full="the cat sat on", start=8)
    no_source = [TextRecord(stretch=A, text="the cat", line=line, start=0) for line in (5, 6)]
    no_target = [TextRecord(stretch=A, text="the cat", line=line, start=7) for line in (7, 8)]
    with pytest.raises(InputError, match="a.jsonl line 5 and 6 have no token in their source; lengthen"):
        encode_pairs([*whole, *no_source, *no_target], bare(), TextOptions())
    with pytest.raises(InputError, match="a.jsonl line 7 and 8 have no token in their target; lengthen"):
        encode_pairs([*whole, *no_target], bare(), TextOptions())


def test_all_records_without_a_word_are_named_at_once(tmp_path: Path) -> None:
    model = annotated.model_for(tmp_path / "m", TaskName.TOKEN_CLASSIFICATION)
    whole = annotated.records(tmp_path / "a.jsonl", TaskName.TOKEN_CLASSIFICATION)
    blank = [replace(whole[0], text="\u200b", label='["O"]', stretch=A, line=line) for line in (2, 4)]
    with pytest.raises(InputError, match="a.jsonl line 2 and 4 have no token to label; lengthen or remove them"):
        text_task(model, [whole[0], blank[0], whole[1], blank[1]])
