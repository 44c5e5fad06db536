from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig

from audits.extraction.greedy import GreedyMatches, decide, in_float32, margin_scores, rounding_margin
from audits.extraction.screen import screen
from audits.scores.forward import Batching, measure_rows, score_rows
from audits.scores.table import FIELDS
from privctl.models.language import LanguageModel, load_model
from tests.audits.tiny import CONFIGS, SIZE, save_model
from tests.audits.turns import Turns
from tests.few import few

PREFIX, SUFFIX = 9, 12


def sliding() -> LanguageModel:
    """A model that sees only the last 8 tokens."""
    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.mul_(8)
    return LanguageModel(
        path=Path("sliding"), folder=Path("sliding"), network=network, tokenizer=None, device=torch.device("cpu")
    )


def paired(folder: Path) -> LanguageModel:
    """Ids 2i and 2i + 1 always have the same logit."""
    model = load_model(save_model(folder), device="cpu")
    head = model.network.lm_head.weight
    head[1::2] = head[: len(head) - 1 : 2]
    return model


def zero(folder: Path) -> LanguageModel:
    model = load_model(save_model(folder), device="cpu")
    for parameter in model.network.parameters():
        parameter.zero_()
    return model


MODELS: dict[str, Callable[[Path], LanguageModel]] = {
    **{kind: lambda folder, kind=kind: load_model(save_model(folder, kind), device="cpu") for kind in CONFIGS},
    "sliding": lambda _: sliding(),
    "paired": paired,
    "zero": zero,
}


def generated(model: LanguageModel, prefixes: np.ndarray, count: int = SUFFIX) -> np.ndarray:
    """What transformers' own greedy decoding says after each prefix."""
    ids = torch.from_numpy(prefixes)
    out = model.network.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return np.asarray(out.numpy())


def texts(model: LanguageModel, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Windows that greedy decoding gives whole, up to one token, or not; and its own suffixes."""
    random = np.random.default_rng(seed)
    decoded = generated(model, random.integers(3, SIZE, (40, PREFIX)))
    rows = decoded.copy()
    for i in range(10, 40):
        place = PREFIX + i % SUFFIX
        rows[i, place] = min(rows[i, place] ^ 1, SIZE - 2)  # in a paired model, the id with the same logit
        if i >= 30:
            rows[i, place:] = random.integers(3, SIZE, PREFIX + SUFFIX - place)
    return list(rows), decoded[:, PREFIX:]


def verdicts(model: LanguageModel, rows: list[np.ndarray], method: str, suffix: int = SUFFIX) -> GreedyMatches:
    small = Batching(tokens=130, logits=40 * SIZE)
    if method == "screen":
        margin, own = screen(model, rows, suffix, batching=small)
    elif method == "margins":
        values, _ = measure_rows(model, rows, margin_scores, 2, last=suffix, batching=small)
        margin, own = values.reshape(2, len(rows), suffix)
    else:
        values, offsets = score_rows(model, rows, batching=small)
        places = offsets[1:, None] - suffix + np.arange(suffix)
        margin = values[FIELDS.index("margin")][places]
        own = (values[FIELDS.index("lp")] + values[FIELDS.index("lse")])[places]
    return decide(model, rows, margin, own)


@pytest.mark.parametrize("method", few(["screen", "margins", "scores"], 0, 2))
@pytest.mark.parametrize("kind", few(MODELS, 0, 1, 4, 5, 6))
def test_verdicts_are_those_of_generate(kind: str, method: str, tmp_path: Path) -> None:
    model = MODELS[kind](tmp_path)
    rows, decoded = texts(model)
    missed = np.stack(rows)[:, PREFIX:] != decoded
    expected = np.where(missed.any(axis=1), missed.argmax(axis=1), SUFFIX)
    found = verdicts(model, rows, method)
    assert found.matched.tolist() == expected.tolist()
    assert found.extracted.tolist() == (expected == SUFFIX).tolist()
    assert not found.undecided.any()
    assert found.extracted.sum() >= 10
    assert kind not in ("paired", "zero") or found.rerun >= 10


def test_prefixes_of_different_lengths(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path), device="cpu")
    whole, _ = texts(model)
    rows = [row[i % 5 :] for i, row in enumerate(whole)]
    found, other = (verdicts(model, rows, method) for method in ("screen", "scores"))
    assert found.matched.tolist() == other.matched.tolist()
    assert 0 < found.extracted.sum() < len(rows)
    (one,) = verdicts(model, rows[:1], "screen", suffix=1).extracted
    assert one


def test_a_slice_off_by_one_is_caught(tmp_path: Path) -> None:
    """Positions -51 to -1 drop the last suffix token and judge the last prefix token in its place."""
    model = load_model(save_model(tmp_path), device="cpu")
    rows, decoded = texts(model)
    values, _ = measure_rows(model, rows, margin_scores, 2, last=SUFFIX + 1)
    shifted = values[0].reshape(len(rows), -1)[:, :-1]
    right = (np.stack(rows)[:, PREFIX:] == decoded).all(axis=1)
    assert ((shifted > 0).all(axis=1) != right).any()
    assert (verdicts(model, rows, "margins").extracted == right).all()


def test_processes_share_the_texts_that_are_run_again(tmp_path: Path) -> None:
    model = paired(tmp_path)
    rows, _ = texts(model)
    margin, own = screen(model, rows, SUFFIX)
    alone, workers = decide(model, rows, margin, own), Turns()
    shared = decide(model, rows, margin, own, workers)
    assert shared.rerun == alone.rerun >= 10
    assert workers.shares == [[1, 1, 1]]
    for field in ("matched", "extracted", "undecided"):
        assert getattr(shared, field).tolist() == getattr(alone, field).tolist()


@pytest.mark.parametrize("kind", ["paired", "zero"])
def test_ties_do_not_count_as_matches(kind: str, tmp_path: Path) -> None:
    """No other logit is greater than that of a tied id, and none greater or equal would mean no tie may win."""
    model = MODELS[kind](tmp_path)
    rows, decoded = texts(model)
    values, _ = measure_rows(model, rows, margin_scores, 2, last=SUFFIX)
    margin = values[0].reshape(len(rows), SUFFIX)
    right = (np.stack(rows)[:, PREFIX:] == decoded).all(axis=1)
    assert ((margin >= 0).all(axis=1) & ~right).any(), "a tie that always matches finds too much"
    assert (~(margin > 0).all(axis=1) & right).any(), "a tie that never matches finds too little"


def test_no_margin_is_nan_and_no_verdict_follows_from_weights_of_zero(tmp_path: Path) -> None:
    model = zero(tmp_path)
    rows = [np.array([5, 6, 7, *suffix]) for suffix in ((0, 0, 0), (0, 8, 0), (9, 9, 9))]
    margin, own = screen(model, rows, 3)
    assert (margin == 0).all()
    assert (own == 0).all()
    assert decide(model, rows, margin, own).matched.tolist() == [3, 1, 0]


def test_coarse_formats_are_decided_in_float32(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path), device="cpu")
    rows, _ = texts(model)
    model.network.to(torch.bfloat16)
    with in_float32(model.network):
        exact = verdicts(model, rows, "screen")
    held = [parameter.data_ptr() for parameter in model.network.parameters()]
    coarse = verdicts(model, rows, "screen")
    assert coarse.extracted.tolist() == exact.extracted.tolist()
    assert coarse.matched.tolist() == exact.matched.tolist()
    assert coarse.rerun > exact.rerun
    assert [parameter.data_ptr() for parameter in model.network.parameters()] == held
    assert model.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_coarse_formats_move_is_within_the_rounding_margin(dtype: torch.dtype, tmp_path: Path) -> None:
    """Even of tokens whose logit is near 0, as all numbers in the network are rounded."""
    model = load_model(save_model(tmp_path), device="cpu")
    rows, _ = texts(model)
    model.network.to(dtype)

    def measured() -> np.ndarray:
        return measure_rows(model, rows, margin_scores, 2, last=SUFFIX)[0].reshape(2, len(rows), SUFFIX)

    margin, target_logit = measured()
    with in_float32(model.network):
        exact = measured()[0]
    moved = np.abs(margin - exact)
    assert (moved <= rounding_margin(margin, target_logit, model.dtype) / 2).all()
    own = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[model.dtype] * np.abs(target_logit)
    assert (moved > own).mean() > 0.1  # the token's own logit would not bound it


@pytest.mark.parametrize(
    ("gap", "undecided", "extracted"), [(1e-6, True, True), (-1e-6, True, False), (0.0, False, True)]
)
def test_what_rounding_decides_stays_undecided(gap: float, undecided: bool, extracted: bool, tmp_path: Path) -> None:
    """Two ids that lead with logits this far apart; a text with one miss for certain is decided all the same."""
    model = load_model(save_model(tmp_path), device="cpu")

    class Constant(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(*hidden.shape[:-1], SIZE)
            logits[..., 4], logits[..., 5] = 1 + gap, 1
            return logits

    model.network.set_output_embeddings(Constant())
    rows = [np.array([9, 9, 4, 4, 4]), np.array([9, 9, 4, 7, 4])]
    found = verdicts(model, rows, "screen", suffix=3)
    assert found.undecided.tolist() == [undecided, False]
    assert found.extracted.tolist() == [extracted, False]


def test_logits_of_masked_vocabulary() -> None:
    margin, own = margin_scores(torch.tensor([[1.0, 2.0, -math.inf]]), torch.tensor([1])).tolist()
    assert (margin, own) == ([1], [2])
