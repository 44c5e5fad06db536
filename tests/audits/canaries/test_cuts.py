"""Words around a secret, tokenised without the rest of the text: the same tokens as of the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from audits.canaries import rows
from audits.canaries.cuts import can_be_cut, cuts_around
from audits.canaries.rows import locate_secrets
from audits.secrets.candidates import Problem, Sources, make_problem
from audits.secrets.fresh_values import WordFrequencies, fresh_value
from audits.secrets.rows import CausalReader, SecretSpan
from audits.secrets.targets import SecretPassage, SecretTarget
from privctl.models.language import LanguageModel

WORDS = [
    *("call", "Ann", "re\u0301cord", "caf\u00e9", "o'clock's", "\u4f60\u597d", "12", "1234567"),
    *("x.", "(y)", "<s>", "ab1", "\u03a3\u0399\u03a3", "it's"),
]
SPACES = [" ", " ", " ", " ", "  ", "\n", " \n ", "\u00a0", ", "]
SECRETS = ["(555) 012-3456", "ann.lee@x.org", "MRN 00123", "caf\u00e9", "'s", " ", "call Ann"]
WHOLE_RUNS = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
THREE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Holder:
    """What the functions here read of a model."""

    tokenizer: Any
    folder: Path = Path("m")


def joined(source: random.Random, count: int) -> str:
    return "".join(source.choice(WORDS) + source.choice(SPACES) for _ in range(count))


def tokenizer(pre: Any = None, normal: Any = None, added: Sequence[Any] = (), *, model: str = "bpe") -> LanguageModel:
    """One trained on such texts, so that its tokens are of several characters."""
    source = random.Random(1)
    texts = [joined(source, 20) + source.choice(SECRETS) for _ in range(60)]
    kinds: dict[str, Any] = {
        "bpe": models.BPE(unk_token="<s>"),
        "unigram": models.Unigram(),
        "dropout": models.BPE(dropout=0.5),
    }
    tokenizer = Tokenizer(kinds[model])
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normal is not None:
        tokenizer.normalizer = normal
    more: dict[str, Any] = {"vocab_size": 300, "special_tokens": ["<s>"], "show_progress": False}
    trainer: Any = trainers.BpeTrainer(**more)
    if model == "unigram":
        trainer = trainers.UnigramTrainer(unk_token="<s>", **more)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_tokens(list(added))
    return cast("LanguageModel", Holder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")))


CUT: dict[str, Callable[[], LanguageModel]] = {
    "GPT-2": lambda: tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "RoBERTa": lambda: tokenizer(
        pre_tokenizers.ByteLevel(add_prefix_space=True), added=[AddedToken("<mask>", lstrip=True)]
    ),
    "expression": lambda: tokenizer(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(THREE_DIGITS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        normalizers.NFC(),
    ),
    "removed": lambda: tokenizer(pre_tokenizers.Split(Regex(WHOLE_RUNS), "removed", invert=True)),
    "digits": lambda: tokenizer(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel()])
    ),
    "BERT": lambda: tokenizer(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()),
    "words": lambda: tokenizer(
        pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    ),
    "metaspace": lambda: tokenizer(pre_tokenizers.Metaspace(), model="unigram"),
    "metaspace, first": lambda: tokenizer(pre_tokenizers.Metaspace(prepend_scheme="first"), normalizers.Lowercase()),
    "T5's": lambda: tokenizer(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "runs of spaces": lambda: tokenizer(pre_tokenizers.ByteLevel(), added=["  ", "    "]),
}
#: What tokenises the parts of a text in another way than the whole.
WHOLE: dict[str, Callable[[], LanguageModel]] = {
    "no pre-tokenizer": lambda: tokenizer(),
    "digits alone": lambda: tokenizer(pre_tokenizers.Digits()),
    "spaces gone before": lambda: tokenizer(
        pre_tokenizers.Sequence(
            [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.WhitespaceSplit()]
        )
    ),
    "unsplit metaspace": lambda: tokenizer(pre_tokenizers.Metaspace(split=False)),
    "another expression": lambda: tokenizer(pre_tokenizers.Split(Regex(r"\w+ \w+|\s+"), "isolated")),
    "merged": lambda: tokenizer(pre_tokenizers.Split(Regex(r"\s+"), "merged_with_previous")),
    "stripped": lambda: tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip()),
    "prepended": lambda: tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Prepend("_")),
    "an added token of two words": lambda: tokenizer(pre_tokenizers.ByteLevel(), added=["call Ann", "12 12"]),
    "an added token that takes a space": lambda: tokenizer(
        pre_tokenizers.ByteLevel(add_prefix_space=False), added=[AddedToken("Ann", rstrip=True)]
    ),
}


def places(model: LanguageModel) -> list[list[tuple[list[int], int, int]]]:
    """Secrets within random texts, all of a text at once."""
    source = random.Random(2)
    # The last text is of such words that each space is one where it can be cut.
    texts = [(joined(source, source.randrange(12)), joined(source, source.randrange(12))) for _ in range(60)]
    plain = [" ".join(source.choices(["call", "Ann", "12", "ab1"], k=9)) for _ in range(20)]
    texts += [(f"{text} ", f" {text}") for text in plain]
    return [list(locate_secrets(model, prefix, SECRETS, after)) for prefix, after in texts]


def taken_as(monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    monkeypatch.setattr(rows, "can_be_cut", lambda _: cut)


@pytest.mark.parametrize("name", CUT)
def test_parts_give_the_tokens_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CUT[name]()
    assert can_be_cut(model.tokenizer)
    parts = places(model)
    taken_as(monkeypatch, cut=False)
    assert parts == places(model)


@pytest.mark.parametrize("name", WHOLE)
def test_whose_parts_differ_is_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = WHOLE[name]()
    assert not can_be_cut(model.tokenizer)
    whole = places(model)
    taken_as(monkeypatch, cut=True)
    assert places(model) != whole


def test_merges_left_out_at_random_are_not_cut() -> None:
    assert not can_be_cut(tokenizer(pre_tokenizers.ByteLevel(), model="dropout").tokenizer)


def test_few_words_are_kept_on_either_side() -> None:
    prefix, after = "one two three four (", "), five six seven"
    front, back = cuts_around(prefix, after)
    assert (prefix[front:], after[:back]) == (" three four (", "), five")
    assert cuts_around("one (", ") five") == (0, 6)


def test_all_candidates_at_once_are_those_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the whole text: the same problem for the same seed."""
    model = CUT["digits"]()
    text = " ".join(["call", "Ann", "ab1"] * 6) + " at (555) 012-3456 or 12 call Ann ab1"
    begin = text.index("(")
    spot = SecretPassage(text=text, begin=begin, end=begin + 14)
    target = SecretTarget(
        position=3, kind="phone", value=spot.value, passages=(spot,), candidates=(), control=False, allowance=None,
        format=None,
    )  # fmt: skip
    words = WordFrequencies({})
    sources = Sources(values={"phone": ["(555) 999-0000", "1234567"]}, words=words, excluded=())
    reader = CausalReader(model, 64)

    def problem() -> list[tuple[list[int], list[int]]]:
        problem = make_problem(reader, target, sources, 10, 7)
        assert isinstance(problem, Problem)
        return shape(problem.places[0])

    values = [spot.value, "1", *(str(fresh_value(spot.value, words, random.Random(i))) for i in range(20))]
    at_once, fast = shape(reader.places(spot, values)), problem()
    assert len(fast) > 5
    assert shape([reader.places(spot, [value])[0] for value in values]) == at_once
    taken_as(monkeypatch, cut=False)
    assert shape([reader.places(spot, [value])[0] for value in values]) == at_once
    assert problem() == fast


def shape(spans: Sequence[SecretSpan]) -> list[tuple[list[int], list[int]]]:
    return [(span.before.tolist(), span.tokens.tolist()) for span in spans]
