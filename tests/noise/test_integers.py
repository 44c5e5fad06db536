"""Integer tensors: what quantizers write is refused, what architectures keep as tables and masks passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    BertModel,
    LevitConfig,
    LevitForImageClassification,
    SwinConfig,
    SwinForImageClassification,
)

from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.domain.guarantee import AssumptionState
from privctl.noise.selection import Selection, select
from privctl.storage.reader import open_checkpoint
from tests.models.tasks.small import config

RNG = np.random.default_rng(0)
W = RNG.standard_normal((64, 48)).astype(np.float32)
HALF = RNG.standard_normal((4, 64)).astype(np.float16)


def integers(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


#: One layer as each quantizer leaves it, and what its config.json says.
QUANTIZED: dict[str, tuple[Mapping[str, np.ndarray], str]] = {
    "GPTQ": (
        {
            "l.qweight": integers("int32", 8, 64),
            "l.qzeros": integers("int32", 4, 8),
            "l.scales": HALF,
            "l.g_idx": np.arange(64, dtype=np.int32) // 16,
        },
        "gptq",
    ),
    "AWQ": (
        {"l.qweight": integers("int32", 64, 8), "l.qzeros": integers("int32", 4, 8), "l.scales": HALF},
        "awq",
    ),
    "bitsandbytes, 8 bits": (
        {
            "l.weight": integers("int8", 64, 48),
            "l.SCB": W[:, 0].copy(),
            "l.weight_format": np.array(0, np.uint8),
        },
        "bitsandbytes",
    ),
    "bitsandbytes, 4 bits": (
        {
            "l.weight": integers("uint8", 1536, 1),
            "l.weight.absmax": integers("uint8", 48),
            "l.weight.quant_map": W[0, :16].copy(),
            "l.weight.nested_absmax": W[0, :1].copy(),
            "l.weight.quant_state.bitsandbytes__nf4": bytes_of('{"quant_type": "nf4"}'),
        },
        "bitsandbytes",
    ),
    "compressed-tensors": (
        {
            "l.weight_packed": integers("int32", 64, 6),
            "l.weight_scale": HALF,
            "l.weight_shape": np.array([64, 48]),
        },
        "compressed-tensors",
    ),
    "torchao": ({"l._weight_qdata": integers("int8", 64, 48), "l._weight_scale": HALF}, "torchao"),
    "MXFP4": ({"l.gate_blocks": integers("uint8", 64, 24), "l.gate_scales": integers("uint8", 64, 2)}, "mxfp4"),
    "dynamic": ({"l.weight": integers("int8", 64, 48), "l.scale": np.array(0.1, np.float32)}, ""),
    "packed by hand": ({"l.half_bytes": integers("uint8", 32, 48)}, ""),
    "of one bit": ({"l.signs": integers("int8", 64, 48) > 0}, ""),
}


@pytest.fixture
def choose(tmp_path: Path, write_model: Callable[..., Path]) -> Callable[..., Selection]:
    def chosen(tensors: Mapping[str, np.ndarray], method: str = "", **options: list[str]) -> Selection:
        write_model(tmp_path / "model.safetensors", {"embed.weight": W, **tensors})
        config = {"quantization_config": {"quant_method": method}} if method else {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with open_checkpoint(tmp_path) as checkpoint:
            return select(checkpoint, **options)  # type: ignore[arg-type]

    return chosen


@pytest.mark.parametrize("declared", [True, False], ids=["config.json says so", "config.json says nothing"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_refused(kind: str, declared: bool, choose: Callable[..., Selection]) -> None:
    tensors, method = QUANTIZED[kind]
    with pytest.raises(InputError, match=r"tensor 'l\..*dequantize the model first, or --exclude"):
        choose(tensors, method if declared else "")
    left_out = choose(tensors, method if declared else "", exclude=["l.*"])
    assert {a.name: a.state for a in left_out.assumptions} == {"excluded-tensors": AssumptionState.ASSERTED}


def test_every_integer_of_a_quantized_layer_is_refused(choose: Callable[..., Selection]) -> None:
    """Not only the first one: whichever is left when the others are excluded."""
    for tensors, _ in QUANTIZED.values():
        for name, tensor in tensors.items():
            if tensor.dtype.kind not in "iub":
                continue
            others = [other for other in tensors if other != name]
            with pytest.raises(InputError, match=f"tensor '{name}'"):
                choose(tensors, exclude=others) if others else choose(tensors)


def test_what_a_quantized_config_says_counts_for_unknown_names(choose: Callable[..., Selection]) -> None:
    """Positions that count up could be a permutation that a quantizer chose."""
    order = {"l.order": np.arange(64, dtype=np.int32)}
    assert choose(order).untouched == {"l.order": "integer type"}
    with pytest.raises(InputError, match=r"quantized \(gptq\)"):
        choose(order, "gptq")
    assert choose({"e.position_ids": np.arange(64)[None]}, "gptq").untouched == {"e.position_ids": "integer type"}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("e.position_ids", np.arange(512)[None]),
        ("e.position_ids", np.arange(2, 514)[None]),
        ("e.token_type_ids", np.zeros((1, 512), np.int64)),
        ("bn.num_batches_tracked", np.array(1234)),
        ("h.0.attn.bias", np.tril(np.ones((1, 1, 32, 32), bool))),
        ("h.0.attn.bias", np.tril(np.ones((1, 1, 32, 32), np.uint8))),
        ("h.1.attention.bias", np.tril(np.ones((32, 32), bool)) & ~np.tril(np.ones((32, 32), bool), -8)),
        ("a.attention_bias_idxs", RNG.integers(0, 49, (49, 49))),
        ("mask", np.ones(3, bool)),
        ("empty", np.zeros((0, 4), np.int64)),
    ],
)
def test_buffers_pass(name: str, tensor: np.ndarray, choose: Callable[..., Selection]) -> None:
    found = choose({name: tensor})
    assert found.untouched == {name: "integer type"}
    assert {a.name: a.state for a in found.assumptions} == {"integer-tensors": AssumptionState.ASSERTED}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("e.position_ids", integers("int8", 64, 48)),
        ("a.relative_position_index", integers("int32", 64, 6)),
        ("h.0.attn.bias", integers("int8", 64, 64)),
        ("h.0.attn.bias", integers("int8", 64, 64) > 0),
        ("prune.mask", integers("int8", 64, 48) > 0),
        ("l.weight", np.zeros((64, 48), np.int8)),
    ],
)
def test_a_buffers_name_alone_is_not_enough(name: str, tensor: np.ndarray, choose: Callable[..., Selection]) -> None:
    with pytest.raises(InputError, match=f"tensor '{name}'"):
        choose({name: tensor})


def test_tables_of_real_architectures_pass(tmp_path: Path) -> None:
    """As files with their buffers written out have them."""
    swin = SwinConfig(image_size=16, patch_size=2, window_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 1])
    levit = LevitConfig(
        image_size=32, key_dim=[4, 4, 4], hidden_sizes=[8, 8, 8], num_attention_heads=[1, 1, 1], depths=[1, 1, 1]
    )
    kinds: tuple[nn.Module, ...] = (
        SwinForImageClassification(swin),
        LevitForImageClassification(levit),
        BertModel(config("bert")),
    )
    for model in kinds:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        written = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
        save_file(written, tmp_path / "model.safetensors")
        held = {name for name, tensor in tensors.items() if tensor.dtype == torch.int64}
        assert held
        with open_checkpoint(tmp_path) as checkpoint:
            found = select(checkpoint)  # LeViT's batch normalisation was never used
        assert {name for name, why in found.untouched.items() if why == "integer type"} == held


def test_the_command_refuses_and_writes_nothing(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path / "m.safetensors", {"embed": W, **QUANTIZED["GPTQ"][0]})
    facts = ["--epochs", "10", "--learning-rate", "5e-5", "--clip-norm", "1"]
    assert run(["noise", str(path), *facts, "--dataset-size", "1000", "--batch-size", "5", "-q"]) == 3
    assert "'l.qweight' is I32 and has the name of a part of a quantized layer" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
