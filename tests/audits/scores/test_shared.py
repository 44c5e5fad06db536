"""Scoring rows with a common beginning, which is fed once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from audits.scores import shared
from audits.scores.causal import CausalScorer
from audits.scores.forward import Batching, score_rows
from audits.scores.shared import feed, score_shared, shared_beginnings
from privctl.models.language import LanguageModel, load_model
from tests.audits.extraction.test_greedy import sliding
from tests.audits.tiny import CONFIGS, SIZE, save_model
from tests.few import few

SMALL = Batching(tokens=130, logits=40 * SIZE)


def secrets(prefixes: int = 3, each: int = 40) -> list[np.ndarray]:
    """Rows of a few long beginnings with 1 to 6 ids of their own each, some rows alone, in no order."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(prefixes):
        before = random.integers(3, SIZE, 9)
        rows += [np.concatenate([before, random.integers(3, SIZE, random.integers(1, 7))]) for _ in range(each)]
    rows += [random.integers(3, SIZE, random.integers(2, 20)) for _ in range(20)]
    return [rows[i] for i in random.permutation(len(rows))]


def fed(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each later pass feeds the network's body."""
    passes: list[int] = []
    model.network.base_model.register_forward_pre_hook(
        lambda _, __, given: passes.append(given["input_ids"].numel()), with_kwargs=True
    )
    return passes


@pytest.mark.parametrize("kind", few([*CONFIGS, "sliding"], 0, 4))
def test_scores_are_those_of_whole_rows(kind: str, tmp_path: Path) -> None:
    model = sliding() if kind == "sliding" else load_model(save_model(tmp_path, kind), device="cpu")
    rows = secrets()
    expected, _ = score_rows(model, rows)
    found = score_shared(model, rows, batching=SMALL)
    assert sum(len(group.rows) for group in shared_beginnings(rows)) >= 100
    assert np.abs(found - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_a_beginning_is_fed_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(llama, device="cpu")
    random = np.random.default_rng(1)
    before = random.integers(3, SIZE, 30)
    rows = [np.concatenate([before, random.integers(3, SIZE, 4)]) for _ in range(100)]
    passes = fed(model, monkeypatch)
    counted: list[int] = []
    CausalScorer(model).score(rows, counted.append)
    assert sum(passes) < 30 + 100 * 4 + 200, "of 3400 ids"
    assert sum(counted) == 33 * 100


def test_a_network_whose_kept_state_gives_other_scores_gets_whole_rows(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(llama, device="cpu")
    rows = secrets()
    expected, _ = score_rows(model, rows)

    def forgetful(cache: Any, count: int) -> Any:
        kept = copies(cache, count)
        for layer in kept.layers:
            layer.keys = layer.keys + 1
        return kept

    copies = shared.copies
    monkeypatch.setattr(shared, "copies", forgetful)
    assert np.allclose(score_shared(model, rows), expected, atol=1e-5)


@pytest.mark.parametrize("variant", ["no layers", "no cache", "refuses one"])
def test_what_keeps_no_keys_and_values_is_fed_whole(variant: str, llama: Path) -> None:
    """A state-space model has a cache without layers, one of another kind, or takes none."""
    inner = load_model(llama, device="cpu").network

    def network(*, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool) -> Any:
        if variant == "refuses one" and past_key_values is not None:
            raise TypeError("unexpected past_key_values")
        logits = inner(input_ids=input_ids, use_cache=False).logits
        return SimpleNamespace(
            logits=logits, **({"past_key_values": past_key_values} if variant == "no layers" else {})
        )

    out, cache = feed(network, torch.arange(5)[None])
    assert cache is None
    assert out.logits.shape == (1, 5, SIZE)


@pytest.mark.parametrize("rows", [[], [np.array([5, 6])]])
def test_few_rows(rows: list[np.ndarray], llama: Path) -> None:
    model = load_model(llama, device="cpu")
    assert score_shared(model, rows).shape == (6, len(rows))
