"""Training without clipping, whose networks no self-test runs beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

import privctl
from privctl.domain.errors import InputError
from tests.models.tasks.small import architecture, words
from tests.zoo.shrink import build, write_data


def test_a_network_that_cannot_be_differentiated_is_named(tmp_path: Path) -> None:
    """Reformer's backward pass computes its layers anew, in training mode only."""
    build("text-classification", "reformer", tmp_path / "model")
    with pytest.raises(InputError, match=r"cannot be differentiated as the run needs it \(AssertionError: .*Reformer"):
        privctl.retrain(
            "plain", tmp_path / "model", data=write_data("text-classification", tmp_path / "data"),
            output=tmp_path / "out", task="text-classification", steps=1, batch_size=2, device="cpu",
        )  # fmt: skip
    assert not (tmp_path / "out.run").exists(), "nothing was released, and nothing can be continued"


def test_a_batch_that_cannot_be_computed_is_not_blamed_on_the_backward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture(tmp_path / "model", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"text": "the cat sat"}\n' * 4)
    forward = GPT2LMHeadModel.forward

    def too_long(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            raise ValueError("3 tokens are more than 2")
        return forward(*args, **kwargs)

    monkeypatch.setattr(GPT2LMHeadModel, "forward", too_long)
    expected = r"cannot compute a batch of these records \(ValueError: 3 tokens are more than 2\); give records that it"
    with pytest.raises(InputError, match=expected):
        privctl.retrain(
            "plain", tmp_path / "model", data=tmp_path / "data.jsonl", output=tmp_path / "out", steps=1, batch_size=2,
            device="cpu",
        )  # fmt: skip


@pytest.mark.parametrize("method", ["plain", "dp-sgd"])
def test_a_model_that_cannot_be_computed_in_bfloat16_is_to_be_trained_in_float32(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture(tmp_path / "model", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"text": "the cat sat"}\n{"text": "on the mat"}\n' * 4)
    forward = GPT2LMHeadModel.forward

    def in_float32(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("the value overflows")
        return forward(*args, **kwargs)

    monkeypatch.setattr(GPT2LMHeadModel, "forward", in_float32)
    noise = {"noise_multiplier": 1.0} if method == "dp-sgd" else {}
    with pytest.raises(InputError, match=r"in bfloat16 \(RuntimeError: the value overflows\); give --float32"):
        privctl.retrain(
            method, tmp_path / "model", data=tmp_path / "data.jsonl", output=tmp_path / "out", steps=1, batch_size=2,
            device="cpu", bf16=True, **noise,
        )  # fmt: skip
