"""What decoding writes beyond the first mismatch, and what may be said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from audits.extraction import decoding, near
from audits.extraction.distance import EditDistance, string_distances
from audits.extraction.near import FARTHEST, near_matches
from audits.extraction.summary import NEAR_BEYOND, near_quantity
from audits.findings import Findings
from privctl.domain.verdict import Outcome
from privctl.models.language import LanguageModel, load_model
from tests.audits.extraction.test_greedy import generated, sliding
from tests.audits.extraction.test_part import PREFIX, SUFFIX, judged, named, noise, words
from tests.audits.tiny import SIZE, WORDS, save_model, write_jsonl

LENGTH = 12


def table(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Levenshtein's recursion as it is written."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (x != y)))
        rows.append(row)
    return rows[-1][-1]


def longest_run(a: list[int], b: list[int]) -> int:
    found = 0
    for i in range(len(a)):
        for j in range(len(b)):
            size = 0
            while i + size < len(a) and j + size < len(b) and a[i + size] == b[j + size]:
                size += 1
            found = max(found, size)
    return found


def test_distances_are_those_of_the_recursion() -> None:
    random = np.random.default_rng(0)
    targets, texts = random.integers(0, 3, (2, 60, 9))
    progress = EditDistance(targets)
    least = []
    for column in texts.T:
        progress.add(column)
        least.append(progress.least)
    expected = [table(a, b) for a, b in zip(texts.tolist(), targets.tolist(), strict=True)]
    assert progress.distance.tolist() == expected
    runs = [longest_run(a, b) for a, b in zip(texts.tolist(), targets.tolist(), strict=True)]
    assert progress.run.tolist() == runs
    assert (np.diff(least, axis=0) >= 0).all()
    assert (np.array(least) <= expected).all(), "a text may be given up for its least distance"


def test_strings_of_any_length() -> None:
    pairs = [
        ("kitten", "sitting"),
        ("", ""),
        ("", "ab"),
        ("abc", ""),
        ("same", "same"),
        ("naïve", "naive"),
        ("a", "😀a"),
    ]
    found = string_distances(*zip(*pairs, strict=True)).tolist()
    assert found[0] == pytest.approx(3 / 7)
    assert found == pytest.approx([table(a, b) / max(1, len(a), len(b)) for a, b in pairs])


def mamba(folder: Path) -> LanguageModel:
    """A model that keeps a recurrent state, from which no text can be selected here."""
    torch.manual_seed(0)
    save_model(folder)
    config = MambaConfig(vocab_size=SIZE, hidden_size=16, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return load_model(folder, device="cpu")


@pytest.mark.parametrize(
    "kind",
    ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt2", "gemma2", "sliding")), "mamba"],
)
def test_what_is_compared_is_what_generate_writes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "TOGETHER", 7)
    if kind in ("sliding", "mamba"):
        model = sliding() if kind == "sliding" else mamba(tmp_path)
    else:
        model = load_model(save_model(tmp_path, kind), device="cpu")
    monkeypatch.setattr(near, "decoded", lambda _, tokens: [" ".join(map(str, ids)) for ids in tokens])
    random = np.random.default_rng(0)
    decoded = generated(model, random.integers(3, SIZE, (40, PREFIX)), LENGTH)
    rows = decoded.copy()
    for i in range(40):  # from equal to altogether different
        places = PREFIX + random.permutation(LENGTH)[: i // 3]
        rows[i, places] = random.integers(3, SIZE, len(places))
    ends = rows[:, PREFIX:]
    exact = (ends == decoded[:, PREFIX:]).all(axis=1)
    found = near_matches(model, list(rows), LENGTH, exact)
    assert found is not None
    expected = np.array([table(a, b) for a, b in zip(decoded[:, PREFIX:], ends, strict=True)]) / LENGTH
    close = expected <= FARTHEST
    assert found.distance[close] == pytest.approx(expected[close])
    assert (found.distance[~close] > FARTHEST).all()
    assert (found.distance <= expected + 1e-6).all()
    runs = [longest_run(a.tolist(), b.tolist()) for a, b in zip(decoded[:, PREFIX:], ends, strict=True)]
    assert found.run[close].tolist() == np.array(runs)[close].tolist()
    assert (exact.sum(), (~close).sum()) >= (3, 5)


def test_white_space_is_left_out_of_a_comparison_of_its_own(llama: Path) -> None:
    """Ids 10 and 11 stand for the same letters with other white space."""
    model = load_model(llama, device="cpu")
    spelling = {10: "a b", 11: "a\n b"}
    tokenizer = SimpleNamespace(
        batch_decode=lambda rows, **_: ["".join(spelling.get(i, str(i)) for i in ids) for ids in rows]
    )
    network = model.network

    class Constant(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full(hidden.shape[:-1], 10), SIZE).float()

    network.set_output_embeddings(Constant())
    odd = LanguageModel(path=model.path, folder=model.folder, network=network, tokenizer=tokenizer, device=model.device)
    rows = [np.array([5, 6, *suffix]) for suffix in ([10, 10, 10], [10, 11, 10], [10, 12, 10], [11, 13, 14])]
    found = near_matches(odd, rows, 3, np.array([True, False, False, False]))
    assert found is not None
    assert found.but_for_spaces.tolist() == [True, True, False, False]
    assert found.distance[:3].tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert found.distance[3] > FARTHEST
    assert found.characters[1] == pytest.approx(1 / 10)


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


@pytest.fixture(scope="module")
def nearly(model: LanguageModel) -> list[str]:
    """Texts that decoding writes but for one word, the first of the suffix or a later one."""
    prefixes = np.random.default_rng(3).integers(3, SIZE, (300, PREFIX))
    rows = [row for row in generated(model, prefixes, SUFFIX) if (row > 2).all()]
    distinct = list({words(row[PREFIX:]): row for row in rows}.values())[:60]
    assert len(distinct) == 60
    for i, row in enumerate(distinct):
        row[PREFIX + i % SUFFIX] = 3 + (row[PREFIX + i % SUFFIX] - 2) % len(WORDS)
    return [words(row) for row in distinct]


def audited(model: LanguageModel, train: list[str], held: list[str], folder: Path, **settings: Any) -> Findings:
    files = [write_jsonl(folder / name, texts) for name, texts in (("train.jsonl", train), ("held.jsonl", held))]
    return judged(model, *files, greedy_only=True, **settings)


def test_text_that_comes_out_but_for_a_word_refutes(model: LanguageModel, nearly: list[str], tmp_path: Path) -> None:
    found = audited(model, nearly[:40], noise(40, 2), tmp_path)
    rates = named(found)
    assert rates["rate on training text"].details["extracted"] == 0
    assert rates[near_quantity("training", 0.1)].details["extracted"] == 0, "one of five words is a fifth"
    assert rates[near_quantity("training", 0.3)].details["extracted"] == 40
    assert rates[near_quantity("held-out", 0.3)].details["extracted"] == 0
    (verdict,) = found.verdicts
    assert verdict.outcome is Outcome.REFUTED
    assert "within an edit distance of 0.3 " in verdict.reason
    (verdict,) = audited(model, nearly[:40], noise(40, 2), tmp_path, exact_only=True).verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("both", [True, False])
def test_what_held_out_text_does_too_refutes_nothing(
    both: bool, model: LanguageModel, nearly: list[str], tmp_path: Path
) -> None:
    train, held = (nearly[:30], nearly[30:]) if both else (noise(30, 5), noise(30, 6))
    found = audited(model, train, held, tmp_path)
    assert named(found)[near_quantity("held-out", 0.3)].details["extracted"] == (30 if both else 0)
    beyond = named(found)[NEAR_BEYOND]
    assert beyond.lower is not None
    assert beyond.lower <= 0 <= beyond.upper
    assert found.verdicts[0].outcome is Outcome.INCONCLUSIVE
