"""What the engine would ask of a GPU: how often it waits for one, starts an operation, and keeps the same numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample, embedding, gram, linear, sinks
from privctl.train.clipping.gram import outer_squares
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.measure import merge, squares_by_parameter
from tests.launches import Launches
from tests.train.clipping.support import causal, distance, run, tokens
from tests.train.clipping.test_families import NO_IDS

BATCH = tokens(3, 128, 40)


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    torch.manual_seed(0)


def llama() -> nn.Module:
    """Wide enough that the gradients of its layers are measured by Gram matrices; the head is not."""
    config = hf.LlamaConfig(
        vocab_size=40, hidden_size=160, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, **NO_IDS,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


def bf16(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return causal(model, batch)


def launched(model: nn.Module, *, look: bool = False) -> Launches:
    """What a micro-batch after the first takes."""
    with PerExample(model, Clipping(norm=0.5)) as each, Launches() as counted:
        for _ in range(2):
            counted.kernels.clear()
            counted.syncs.clear()
            each.accumulate(lambda: causal(model, BATCH), check_finite=look)
    return counted


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (linear, embedding):
        monkeypatch.setattr(module, "readable", lambda _: False)
    monkeypatch.setattr(gram, "on_gpu", lambda _: True)
    monkeypatch.setattr(gram, "suits_code", lambda *_: False)


def test_a_micro_batch_is_waited_for_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whether all of it is finite; the counts that nobody asked for stay on the device."""
    as_on_a_gpu(monkeypatch)
    with Launches() as alone:  # transformers looks for itself, at the mask
        causal(model := llama(), BATCH)
    assert launched(model).syncs == alone.syncs
    assert launched(model, look=True).syncs - alone.syncs == Counter({"_local_scalar_dense": 1})


def test_rows_of_gram_matrices_are_computed_together_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.zeros(1, 40, 2)
    few = gram._block(inputs)
    as_on_a_gpu(monkeypatch)
    assert gram._block(inputs) == gram.LONGEST_BLOCK > few


@pytest.mark.slow
def test_on_a_gpu_gram_matrices_are_not_cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = sum(launched(llama()).kernels.values())
    gradients = run(model := llama(), causal, BATCH, 0.5)[0]
    as_on_a_gpu(monkeypatch)
    assert sum(launched(llama()).kernels.values()) < 0.85 * on_cpu
    assert distance(run(model, causal, BATCH, 0.5)[0], gradients) < 1e-6


@pytest.mark.parametrize("losses", [causal, bf16])
def test_layers_that_read_one_tensor_share_it(losses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven layers in each block, query, key and value read one tensor, and gate and up another."""
    read = list[set[int]]()

    def watching(terms: Any) -> Any:
        uses = [use for term in terms.values() for use in merge(term)]
        read.append({use.inputs.data_ptr() for use in uses if isinstance(use, Outer)})
        return squares_by_parameter(terms)

    monkeypatch.setattr(sinks, "squares_by_parameter", watching)
    run(llama(), losses, BATCH, 0.5)
    assert [len(places) for places in read] == [2 * 4]


@pytest.mark.parametrize("length", [1, 31, 130, 700])
def test_every_block_gives_the_same_squares(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, gradients = torch.randn(2, length, 9), torch.randn(2, length, 5)
    expected = torch.einsum("ntd,ntp->ndp", inputs, gradients).flatten(1).norm(dim=1).double().square()
    for on_gpu in (False, True):
        monkeypatch.setattr(gram, "on_gpu", lambda _, on_gpu=on_gpu: on_gpu)
        torch.testing.assert_close(outer_squares(inputs, [gradients])[0].square, expected, rtol=1e-4, atol=0)
