"""What the tiny builder must know of single families of text models, beyond the names of sizes."""

from __future__ import annotations

from typing import Any

#: Settings by model type that go beside, or in place of, those found by name. None leaves a setting as it is derived.
BY_TYPE: dict[str, dict[str, Any]] = {
    # Without these, its router is asked for the best None experts.
    "deepseek_v2": {"num_experts_per_tok": 2, "head_dim": None},
    # A box's four coordinates, height and width share the hidden size.
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6},
    # A box's six numbers share it equally, and its layout has a quarter of it.
    "lilt": {"hidden_size": 48},
    # The head's size follows from its two parts.
    "mistral4": {"head_dim": None},
    # Loading checks that a checkpoint has as many layers as its windows say.
    "qwen2": {"max_window_layers": 2},
    # T5's classifier shifts its text behind this token; every published checkpoint names it.
    "t5": {"decoder_start_token_id": 0},
    # Each layer has an adapter for every language; a text is in the one that is set.
    "xmod": {"default_language": "en_XX"},
    # Attention reads two layers side by side, so these are twice what the hidden size says.
    "zamba2": {
        "attention_hidden_size": None, "head_dim": None, "kv_channels": None,
        "layer_types": None, "layers_block_type": ["linear_attention", "hybrid"],
        "chunk_size": 16,
    },
}  # fmt: skip


def with_own(model_type: str, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` as the family ``model_type`` needs them."""
    own = BY_TYPE.get(model_type, {})
    return {name: value for name, value in (settings | own).items() if value is not None}
