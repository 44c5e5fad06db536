# ruff: noqa: E501 - a table of settings
"""Some sixty architectures of transformers as tiny random networks, by task: what the survey goes through."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers as hf

from privctl.models.choices import TaskName

#: Ids are those of ``privctl.models.vocabulary``: padding, unknown, begin, end, mask.
_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
_TEXT: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "initializer_range": 0.3, **_IDS,
}  # fmt: skip
_GROUPED = {**_TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_IMAGE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8, "num_channels": 3, "initializer_range": 0.3,
}  # fmt: skip
_STAGES = {"image_size": 32, "num_channels": 3, "depths": [1, 1], "hidden_sizes": [8, 16], "initializer_range": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A configuration to make a network of, for a task."""

    name: str
    task: TaskName
    make: Callable[[], Any]
    length: int | None = 64

    def config(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.make()


def _of(task: TaskName, rows: dict[str, tuple[str, dict[str, Any]]]) -> list[Architecture]:
    return [
        Architecture(
            name=name,
            task=task,
            make=lambda kind=kind, settings=settings: getattr(hf, kind)(**settings),
            # where the configuration has a limit of its own, that is the limit
            length=None if settings.get("max_position_embeddings") or settings.get("n_positions") else 64,
        )
        for name, (kind, settings) in rows.items()
    ]


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


CAUSAL = _of(TaskName.CAUSAL_LM, {
    "gpt2": ("GPT2Config", {**_IDS, "vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}),
    "gpt-neo": ("GPTNeoConfig", {**_TEXT, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8}),
    "gpt-neox": ("GPTNeoXConfig", _TEXT),
    "gpt-j": ("GPTJConfig", {**_IDS, "vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "rotary_dim": 4}),
    "codegen": ("CodeGenConfig", {**_IDS, "vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}),
    "llama": ("LlamaConfig", _GROUPED),
    "llama, dynamic rope": ("LlamaConfig", {**_GROUPED, "max_position_embeddings": 16, **_rope("dynamic", factor=4.0)}),
    "llama, yarn": ("LlamaConfig", {**_GROUPED, **_rope("yarn", factor=4.0, original_max_position_embeddings=16)}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 8}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _GROUPED),
    "gemma": ("GemmaConfig", _GROUPED),
    "gemma2": ("Gemma2Config", {**_GROUPED, "sliding_window": 8}),
    "gemma3": ("Gemma3TextConfig", {**_GROUPED, "sliding_window": 8}),
    "phi": ("PhiConfig", _TEXT),
    "phi3, longrope": ("Phi3Config", {**_TEXT, "original_max_position_embeddings": 16, **_rope(
        "longrope", short_factor=[1.0] * 4, long_factor=[4.0, 3.0, 2.0, 8.0], original_max_position_embeddings=16)}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "cohere": ("CohereConfig", _GROUPED),
    "falcon": ("FalconConfig", {**_TEXT, "alibi": True}),
    "bloom": ("BloomConfig", {**_IDS, "vocab_size": 90, "hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}),
    "mpt": ("MptConfig", {**_IDS, "vocab_size": 90, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "initializer_range": 0.3}),
    "opt": ("OPTConfig", {**_TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16, "init_std": 0.3}),
    "xglm": ("XGLMConfig", {**_IDS, "vocab_size": 90, "d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 64, "init_std": 0.3}),
    "openai-gpt": ("OpenAIGPTConfig", {**_IDS, "vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}),
    "ctrl": ("CTRLConfig", {**_IDS, "vocab_size": 90, "n_embd": 16, "dff": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "reformer": ("ReformerConfig", {**_IDS, "vocab_size": 90, "hidden_size": 16, "attention_head_size": 8, "num_attention_heads": 2, "feed_forward_size": 32, "attn_layers": ["local", "lsh"], "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "num_hashes": 1, "num_buckets": 4, "axial_pos_embds": False, "max_position_embeddings": 64, "is_decoder": True}),
    "mamba": ("MambaConfig", {**_IDS, "vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "rwkv": ("RwkvConfig", {**_IDS, "vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 2, "context_length": 64}),
    "mixtral": ("MixtralConfig", {**_EXPERTS, "num_local_experts": 4}),
    "qwen2-moe": ("Qwen2MoeConfig", {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16}),
    "olmoe": ("OlmoeConfig", {**_EXPERTS, "num_experts": 4}),
    "granite-moe": ("GraniteMoeConfig", {**_EXPERTS, "num_local_experts": 4}),
    "bert as a decoder": ("BertConfig", {**_TEXT, "is_decoder": True}),
})  # fmt: skip

MASKED = _of(TaskName.MASKED_LM, {
    "bert": ("BertConfig", _TEXT),
    "roberta": ("RobertaConfig", _TEXT),
    "albert": ("AlbertConfig", {**_TEXT, "embedding_size": 8}),
    "distilbert": ("DistilBertConfig", {**_IDS, "vocab_size": 90, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}),
    "electra": ("ElectraConfig", {**_TEXT, "embedding_size": 8}),
    "deberta": ("DebertaConfig", {**_TEXT, "relative_attention": True, "pos_att_type": "c2p|p2c"}),
    "deberta-v2": ("DebertaV2Config", {**_TEXT, "relative_attention": True, "pos_att_type": "c2p|p2c", "conv_kernel_size": 3, "conv_act": "gelu"}),
    "mpnet": ("MPNetConfig", _TEXT),
    "modernbert": ("ModernBertConfig", {**_TEXT, "local_attention": 8, "global_attn_every_n_layers": 2}),
    "esm": ("EsmConfig", {**_TEXT, "mask_token_id": 4, "position_embedding_type": "rotary", "token_dropout": True}),
    "roformer": ("RoFormerConfig", {**_TEXT, "embedding_size": 16}),
    "megatron-bert": ("MegatronBertConfig", _TEXT),
    "squeezebert": ("SqueezeBertConfig", {**_TEXT, "embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1}),
    "mobilebert": ("MobileBertConfig", {**_TEXT, "embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 1, "normalization_type": "layer_norm"}),
    "xlm": ("XLMConfig", {**_IDS, "vocab_size": 90, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64, "n_langs": 1, "embed_init_std": 0.3, "init_std": 0.3, "pad_index": 0}),
    "fnet": ("FNetConfig", _TEXT),
    "yoso": ("YosoConfig", {**_TEXT, "use_expectation": True}),
    "nystromformer": ("NystromformerConfig", {**_TEXT, "num_landmarks": 4, "segment_means_seq_len": 64, "conv_kernel_size": 5}),
    "convbert": ("ConvBertConfig", {**_TEXT, "embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3}),
    "funnel": ("FunnelConfig", {**_IDS, "vocab_size": 90, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "initializer_std": 0.3}),
    "longformer": ("LongformerConfig", {**_TEXT, "attention_window": 8}),
    "big-bird": ("BigBirdConfig", {**_TEXT, "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}),
    "reformer": ("ReformerConfig", {**_IDS, "vocab_size": 90, "hidden_size": 16, "attention_head_size": 8, "num_attention_heads": 2, "feed_forward_size": 32, "attn_layers": ["local", "local"], "local_attn_chunk_length": 8, "axial_pos_embds": False, "max_position_embeddings": 64, "is_decoder": False}),
    "mra": ("MraConfig", _TEXT),
})  # fmt: skip

CLASSIFIED = _of(TaskName.TEXT_CLASSIFICATION, {
    "bert": ("BertConfig", _TEXT),
    "gpt2": ("GPT2Config", {**_IDS, "vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}),
    "llama": ("LlamaConfig", _GROUPED),
    "xlnet": ("XLNetConfig", {**_IDS, "vocab_size": 90, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "initializer_range": 0.3}),
    "canine": ("CanineConfig", {**{k: v for k, v in _TEXT.items() if k not in ("vocab_size", "pad_token_id")}, "local_transformer_stride": 8, "num_hash_functions": 2, "num_hash_buckets": 64, "downsampling_rate": 4}),
    "fnet": ("FNetConfig", _TEXT),
    "longformer": ("LongformerConfig", {**_TEXT, "attention_window": 8}),
    "mobilebert": ("MobileBertConfig", {**_TEXT, "embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 1, "normalization_type": "layer_norm"}),
})  # fmt: skip

IMAGES = _of(TaskName.IMAGE_CLASSIFICATION, {
    "vit": ("ViTConfig", _IMAGE),
    "deit": ("DeiTConfig", _IMAGE),
    "beit": ("BeitConfig", _IMAGE),
    "dinov2": ("Dinov2Config", _IMAGE),
    "swin": ("SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "initializer_range": 0.3}),
    "convnext": ("ConvNextConfig", {**_STAGES, "num_stages": 2}),
    "convnextv2": ("ConvNextV2Config", {**_STAGES, "num_stages": 2}),
    "resnet": ("ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}),
    "mobilenet-v2": ("MobileNetV2Config", {"image_size": 32, "depth_multiplier": 0.25}),
    "poolformer": ("PoolFormerConfig", {"depths": [1, 1], "hidden_sizes": [8, 16], "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]}),
    "segformer": ("SegformerConfig", {"depths": [1, 1], "hidden_sizes": [8, 16], "num_encoder_blocks": 2, "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "initializer_range": 0.3}),
    "focalnet": ("FocalNetConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16], "focal_levels": [1, 1], "focal_windows": [3, 3], "initializer_range": 0.3}),
})  # fmt: skip

ALL = [*CAUSAL, *MASKED, *CLASSIFIED, *IMAGES]
