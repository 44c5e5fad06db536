"""Texts as tokens: long ones, units of privacy, the word-level tokenizer."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.encoding import TextFacts, TextOptions, encode_causal, encode_classified, encode_masked
from privctl.models.loading import load_for_training
from privctl.models.tasks.build import text_task
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.units import Units, content_key
from privctl.models.vocabulary import SPECIAL, frequent_words, private_vocabulary, vocabulary_from_file
from tests.models.tasks.small import RECORDS, TEXTS, architecture, words

LONG = TextRecord(stretch=Stretch("a.jsonl line"), line=9, text=TEXTS[2], label="a")


def facts(context: int | None = 8) -> TextFacts:
    tokenizer = words().tokenizer
    return TextFacts(tokenizer=tokenizer, context=context, vocabulary=len(tokenizer), pad=0)


def test_long_texts_are_refused_unless_asked_otherwise() -> None:
    for encode in (encode_causal, encode_masked, encode_classified):
        with pytest.raises(InputError, match=r"a\.jsonl line 9 has 22 tokens where the limit is 8; give --long trunc"):
            encode([RECORDS[4], LONG], facts(), TextOptions())
        corpus = encode([RECORDS[4], LONG], facts(), TextOptions(long=LongTextPolicy.TRUNCATE))
        assert (len(corpus.units), len(corpus.examples), corpus.shortened) == (2, 2, 1)
        assert corpus.length(1) == 8
        assert corpus.length(0) == 5
        assert encode([LONG], facts(None), TextOptions()).length(0) == 22
    assert (
        encode_masked([LONG], facts(), TextOptions(long=LongTextPolicy.TRUNCATE)).examples[0].ids[-1] == 3
    )  # its own <eos>


def test_pieces_of_a_split_text_cover_it_once_and_stay_one_unit() -> None:
    whole = encode_causal([LONG], facts(None), TextOptions()).examples[0]
    for limit in range(4, 22):
        corpus = encode_causal(
            [LONG, RECORDS[4]], facts(None), TextOptions(long=LongTextPolicy.SPLIT, max_length=limit)
        )
        pieces = [example for example in corpus.examples if example.record == 0]
        predicted = np.concatenate([piece.ids[1:][piece.counted[1:]] for piece in pieces])
        assert predicted.tolist() == whole.ids[1:].tolist()
        assert not any(piece.counted[0] for piece in pieces)
        assert (len(corpus.units), corpus.shortened) == (2, 0)
        assert list(corpus.units.members(0)) == list(range(len(pieces)))
        assert len(pieces) > 1
    whole = encode_masked([LONG], facts(None), TextOptions()).examples[0]
    corpus = encode_masked([LONG], facts(), TextOptions(long=LongTextPolicy.SPLIT))
    asked = np.concatenate([piece.ids[piece.counted] for piece in corpus.examples])
    assert asked.tolist() == whole.ids[whole.counted].tolist()
    assert all(piece.ids[0] == 2 and piece.ids[-1] == 3 for piece in corpus.examples)
    with pytest.raises(CommandError, match="would give pieces of a text its label"):
        encode_classified([LONG], facts(), TextOptions(long=LongTextPolicy.SPLIT))


def test_a_text_is_split_between_the_tokens_that_its_tokenizer_adds() -> None:
    """``2`` and ``3`` are added at the ends; what the text itself holds of them stays where it is."""
    record = TextRecord(stretch=Stretch("a.jsonl line"), line=2, text="<eos> the <bos> sat on the mat <eos>")
    whole = encode_masked([record], facts(None), TextOptions()).examples[0]
    assert whole.ids.tolist() == [2, 3, 6, 2, *whole.ids[4:8].tolist(), 3, 3]
    split = TextOptions(long=LongTextPolicy.SPLIT)
    pieces = encode_masked([record], facts(5), split).examples
    assert [piece.ids.tolist() for piece in pieces] == [
        [2, *whole.ids[start:end].tolist(), 3] for start, end in ((1, 4), (4, 7), (7, 9))
    ]
    assert sum(piece.counted.sum() for piece in pieces) == whole.counted.sum()
    for context in (1, 2):
        with pytest.raises(
            InputError, match=rf"a\.jsonl line 2 has 2 special tokens, and the limit of {context} tokens"
        ):
            encode_masked([record], facts(context), split)


def test_records_of_one_unit_are_one_to_sample() -> None:
    records = [TextRecord(stretch=Stretch("x"), text=f"the cat {'sat ' * i}", unit="uuvuvv"[i]) for i in range(6)]
    corpus = encode_causal(records, facts(None), TextOptions())
    assert len(corpus.units) == 2
    assert [list(corpus.units.members(unit)) for unit in range(2)] == [[0, 1, 3], [2, 4, 5]]
    (drawn,) = corpus.units.draw([1], seed=0, step=0)
    assert drawn in (2, 4, 5)


def test_a_unit_shows_its_examples_in_proportion_and_by_itself() -> None:
    units = Units(np.array([0, 0, 1]), np.array([1, 3, 5], np.int32), np.array([11, 12, 13], np.uint64))
    drawn = [next(units.draw([0], 0, step)) for step in range(4000)]
    assert Counter(drawn)[1] / 4000 == pytest.approx(0.75, abs=0.03)
    assert list(units.draw([1], 0, 0)) == [2]
    # without the other unit, and at another place, the draws are the same
    alone = Units(np.array([0, 1, 1]), np.array([9, 1, 3], np.int32), np.array([10, 11, 12], np.uint64))
    assert [next(alone.draw([1], 0, step)) - 1 for step in range(200)] == drawn[:200]
    assert [next(units.draw([0], 1, step)) for step in range(200)] != drawn[:200]
    assert content_key(b"ab", b"c") != content_key(b"a", b"bc")


def test_limits_and_ids_that_do_not_fit() -> None:
    with pytest.raises(CommandError, match="--max-length is 3; it must be at least 4"):
        encode_causal(RECORDS, facts(), TextOptions(max_length=3))
    with pytest.raises(CommandError, match="--max-length is 9, but the model reads at most 8"):
        encode_causal(RECORDS, facts(), TextOptions(max_length=9))
    few = TextFacts(tokenizer=words().tokenizer, context=None, vocabulary=7, pad=0)
    with pytest.raises(InputError, match="a.jsonl line 1 has the token id .* knows ids below 7"):
        encode_causal(RECORDS, few, TextOptions())
    with pytest.raises(InputError, match="no records to train on"):
        encode_causal([], facts(), TextOptions())


def test_words_come_from_records_or_from_a_public_file(tmp_path: Path) -> None:
    found = private_vocabulary(frequent_words(RECORDS, min_frequency=2, limit=3))
    assert found.from_private_data
    assert found.tokenizer.convert_ids_to_tokens(range(8)) == [*SPECIAL, "sat", "the", "."]
    with pytest.raises(InputError, match="no word occurs 99 times"):
        frequent_words(RECORDS, min_frequency=99)
    path = tmp_path / "words.txt.gz"
    path.write_bytes(gzip.compress(b"Cat\n\n dog \r\ncat\nmat\n,\n"))
    public = vocabulary_from_file(path, limit=3)
    assert not public.from_private_data
    assert public.tokenizer.convert_ids_to_tokens(range(5, len(public.tokenizer))) == ["cat", "dog", "mat"]
    ids = public.tokenizer("The CAT, dog!")["input_ids"]
    assert ids == [2, 1, 5, 1, 6, 1, 3]
    public.tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded("The CAT, dog!")["input_ids"] == ids
    assert (loaded.pad_token_id, loaded.mask_token_id, loaded.eos_token_id) == (0, 4, 3)
    # a word spelled like a special token does not take its place
    padded = frequent_words([TextRecord(stretch=Stretch("x"), text="pad <pad>")], min_frequency=1)
    assert private_vocabulary(padded).tokenizer("x")


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"", "holds no words"), (b"a\nb c\n", "line 2 holds 2 words"), (b"a\n\xff\n", "line 2 is not UTF-8")],
)
def test_bad_vocabulary_files_are_named(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=fault):
        vocabulary_from_file(path)


def test_a_split_task_visits_every_piece(tmp_path: Path) -> None:
    folder = architecture(tmp_path, "gpt2", n_positions=8)
    model = load_for_training(folder, TaskName.CAUSAL_LM, vocabulary=words())
    task = text_task(model, [LONG, RECORDS[4]], TextOptions(long=LongTextPolicy.SPLIT))
    assert len(task) == 2
    pieces = set()
    for step in range(60):
        (group,) = task.micro_batches([0, 1], step, 8)
        assert len(group) == 2
        pieces.update(group)
        batch = task.batch(group, torch.device("cpu"), step)
        assert batch["weights"].sum(1).tolist() == pytest.approx([1, 1])
    assert pieces == {0, 1, 2, 3}
    assert task.evaluate(model.network, torch.device("cpu"))["tokens"] == 21 + 4


def test_a_unit_takes_part_with_several_examples_whoever_else_is_there() -> None:
    owners, keys = np.array([0, 1, 0, 1, 1, 2, 1]), np.arange(10, 17, dtype=np.uint64)
    units = Units(owners, np.array([1, 1, 2, 1, 5, 3, 1], np.int32), keys)
    for step in range(20):
        drawn = list(units.draw_several([2, 1, 0], 3, step, 2))
        assert drawn[0] == (5,)
        assert drawn[2] == (0, 2)
        assert len(set(drawn[1])) == 2
        assert set(drawn[1]) <= {1, 3, 4, 6}
        assert drawn[1] == tuple(sorted(drawn[1]))
        (alone,) = units.draw_several([1], 3, step, 2)
        assert alone == drawn[1]
    # Of shares 1, 1, 5 and 1 the third is among two with 5/8 + 3 (1/8)(5/7).
    often = sum(4 in next(units.draw_several([1], 3, step, 2)) for step in range(2000)) / 2000
    chance = 5 / 8 + 3 / 8 * 5 / 7
    assert often == pytest.approx(chance, abs=5 * (chance * (1 - chance) / 2000) ** 0.5)
    assert [units.owner(example) for example in range(7)] == owners.tolist()


def test_a_group_has_equally_many_examples_of_each_of_its_units() -> None:
    has = [1, 2, 3, 5, 3, 1, 2]
    records = [
        TextRecord(stretch=Stretch("a"), text="the cat sat " * (1 + i), unit=str(who))
        for who, count in enumerate(has)
        for i in range(count)
    ]
    task = CorpusTask(corpus=encode_causal(records, facts(None), TextOptions()), facts=facts(None), per_draw=3)
    groups = list(task.micro_batches(range(len(has)), 0, 6, 100))
    group_units = []
    for group in groups:
        run = task.run_of(group)
        own = [{task.corpus.units.owner(e) for e in group[i : i + run]} for i in range(0, len(group), run)]
        assert all(len(owners) == 1 for owners in own)
        assert len(group) <= 6
        assert max(map(task.length, group)) * len(group) <= 100 or len(own) == 1
        group_units += [(next(iter(owners)), run) for owners in own]
    assert sorted(group_units) == [(who, min(count, 3)) for who, count in enumerate(has)]
    assert [len(group) for group in task.micro_batches([3, 4], 0, 1, 5)] == [3, 3]  # no user is taken apart
