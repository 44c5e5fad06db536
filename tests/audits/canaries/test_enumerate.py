from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedTokenizerFast, RwkvConfig

from audits.canaries import enumerate as enumeration
from audits.canaries.enumerate import is_affordable, is_piecewise, losses, spaces
from audits.canaries.formats import DIGITS, SecretAlphabet, format_of
from audits.canaries.rows import secret_rows, secret_sums
from audits.scores.forward import score_rows
from privctl.models.language import LanguageModel, load_model
from tests.audits.canaries.small import VOCABULARY, new_model
from tests.audits.tiny import CONFIGS, save_model
from tests.audits.turns import Turns
from tests.few import few


def direct(model: LanguageModel, prefix: str, secrets: list[str], after: str = "") -> dict[tuple[int, ...], float]:
    """Each secret's loss by whole rows, by its tokens."""
    rows = secret_rows(model, prefix, secrets, after)
    sums = -secret_sums(score_rows(model, [row.ids for row in rows])[0][0], rows)
    return {tuple(row.ids[row.start :].tolist()): float(loss) for row, loss in zip(rows, sums, strict=True)}


def compare(model: LanguageModel, space: enumeration.SecretSpace, expected: dict[tuple[int, ...], float]) -> None:
    found = losses(model, space)
    assert found == pytest.approx([expected[tuple(row)] for row in space.tokens.tolist()], abs=1e-4)


@pytest.mark.parametrize("kind", few(CONFIGS, *range(0, len(CONFIGS), 2)))
@pytest.mark.parametrize("held", few([1 << 25, 3000], 1))
def test_the_tree_agrees_with_whole_rows(kind: str, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "CACHE_NUMBERS", held)  # the smaller, the more chunks
    model = load_model(save_model(tmp_path, kind, bos=kind == "gpt2"), device="cpu")
    words = tuple(f"w{i}" for i in (3, 50, 17, 8, 21))
    form = format_of(SecretAlphabet.TOKENS, words, 4)
    (space,) = spaces(model, form, "w1 w2 w3 ")
    assert space.tokens.shape == (625, 4)
    every = [" ".join(each) for each in itertools.product(words, repeat=4)]
    compare(model, space, direct(model, "w1 w2 w3 ", every))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_model(new_model(tmp_path_factory.mktemp("digits"), scale=3), device="cpu")


def test_digits_are_laid_out_without_the_tokenizer(digits: LanguageModel) -> None:
    form = format_of(SecretAlphabet.DIGITS, DIGITS, 3)
    assert is_piecewise(digits, form)
    (space,) = spaces(digits, form, "pin ")
    every = [f"{i:03}" for i in range(1000)]
    rows = secret_rows(digits, "pin ", every, "")
    assert (space.tokens == np.stack([row.ids[row.start :] for row in rows])).all()
    assert {row.kind for row in rows} == {space.kind}
    assert space.place(rows[123]) == 123
    alone, workers = losses(digits, space), Turns()
    assert np.exp(-alone).sum() < 1
    np.testing.assert_allclose(losses(digits, space, workers=workers), alone, rtol=1e-5)
    assert workers.shares == [[1, 1, 1]]
    compare(digits, space, direct(digits, "pin ", every))


def test_a_network_without_keys_and_values(digits: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    (space,) = spaces(digits, format_of(SecretAlphabet.DIGITS, DIGITS, 2), "pin ")
    tree = losses(digits, space)
    monkeypatch.setattr(enumeration, "feed", lambda network, ids: (network(input_ids=ids), None))
    assert losses(digits, space) == pytest.approx(tree, abs=1e-4)


@pytest.mark.parametrize("kind", [MambaConfig, RwkvConfig])
def test_a_network_with_a_recurrent_state(kind: Any, tmp_path: Path) -> None:
    """One takes a cache that it gives no layers, the other returns a state under another name."""
    new_model(tmp_path, scale=3)
    torch.manual_seed(0)
    config = kind(vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    (space,) = spaces(model, format_of(SecretAlphabet.DIGITS, DIGITS, 2), "pin ")
    compare(model, space, direct(model, "pin ", [f"{i:02}" for i in range(100)]))


def test_digits_that_merge_fall_into_classes(tmp_path: Path) -> None:
    new_model(tmp_path, scale=3)
    signs = ["<unk>", " ", *"pin", *DIGITS, "12", "00", "123"]
    assert len(signs) <= len(VOCABULARY)
    merges = [("1", "2"), ("0", "0"), ("12", "3")]
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    form = format_of(SecretAlphabet.DIGITS, DIGITS, 3)
    assert not is_piecewise(model, form)
    found = {space.tokens.shape[1]: space for space in spaces(model, form, "pin ")}
    assert {length: len(space.tokens) for length, space in found.items()} == {3: 1000 - 39, 2: 38, 1: 1}
    every = direct(model, "pin ", [f"{i:03}" for i in range(1000)])
    for space in found.values():
        compare(model, space, every)


def test_what_is_enumerated_unasked(digits: LanguageModel) -> None:
    def digits_of(length: int) -> list[object]:
        return [format_of(SecretAlphabet.DIGITS, DIGITS, length)]

    assert is_affordable(digits, digits_of(4))
    assert is_affordable(digits, digits_of(6))
    assert not is_affordable(digits, digits_of(7))
    assert not is_affordable(digits, digits_of(6) * 3)
    assert not is_affordable(digits, [format_of(SecretAlphabet.TOKENS, ("waa", "wab"), 16)])
