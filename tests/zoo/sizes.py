"""Tiny values of the settings that configurations have, by the setting's name, and what single architectures need."""

from __future__ import annotations

from typing import Any

SIZE = 32
PIXELS = 32
#: Of a sound.
SAMPLES = 1600
#: Marks a setting that keeps its configuration's own value.
KEPT: Any = ...

_WIDTH, _HEADS, _HEAD, LAYERS, _INNER = 32, 4, 8, 2, 48
#: Settings by name. A setting that a configuration lacks is not given to it.
TINY: dict[str, Any] = {
    "vocab_size": SIZE, "hidden_size": _WIDTH, "d_model": _WIDTH, "n_embd": _WIDTH, "embedding_size": _WIDTH,
    "dim": _WIDTH, "emb_dim": _WIDTH, "n_embed": _WIDTH, "embed_dim": _WIDTH, "word_embed_proj_dim": _WIDTH,
    "attention_hidden_size": _WIDTH, "projection_dim": _WIDTH, "hidden_dim": _WIDTH, "n_inner": _INNER,
    "num_hidden_layers": LAYERS, "num_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS,
    "encoder_layers": LAYERS, "decoder_layers": LAYERS, "num_decoder_layers": LAYERS, "num_encoder_layers": LAYERS,
    "num_attention_heads": _HEADS, "n_head": _HEADS, "n_heads": _HEADS, "num_heads": _HEADS,
    "encoder_attention_heads": _HEADS, "decoder_attention_heads": _HEADS, "num_key_value_heads": 2,
    "head_dim": _HEAD, "d_kv": _HEAD, "d_head": _HEAD, "kv_channels": _HEAD, "attention_head_size": _HEAD,
    "intermediate_size": _INNER, "ffn_dim": _INNER, "d_ff": _INNER, "encoder_ffn_dim": _INNER,
    "decoder_ffn_dim": _INNER, "d_inner": _INNER, "moe_intermediate_size": _INNER, "ffn_hidden_size": _INNER,
    "shared_expert_intermediate_size": _INNER, "intermediate_size_mlp": _INNER, "shared_intermediate_size": _INNER,
    "expert_ffn_hidden_size": _INNER, "hidden_size_global": _WIDTH,
    "moe_shared_expert_intermediate_size": _INNER,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "context_length": 64,
    "image_size": PIXELS, "patch_size": 8, "num_labels": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": _HEAD, "qk_rope_head_dim": _HEAD, "v_head_dim": _HEAD,
    "num_hash_buckets": 64, "rotary_dim": 4, "state_size": 8, "mamba_d_state": 8, "time_step_rank": 4,
    "linear_key_head_dim": _HEAD, "linear_value_head_dim": _HEAD, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_head_dim": _HEAD, "linear_num_heads": 4,
    "mamba_num_heads": 8, "mamba_n_heads": 8, "mamba_head_dim": 8, "mamba_d_head": 8,
    "ssm_state_size": 8, "chunk_size": 8, "mamba_chunk_size": 8,
    "vocab_size_per_layer_input": SIZE, "hidden_size_per_layer_input": 8,
    "index_head_dim": _HEAD, "index_n_heads": 2, "index_topk": 8,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
    "mask_token_id": 4, "decoder_start_token_id": 2, "unk_token_id": 1,
    "sliding_window": 8, "attention_window": 8,
}  # fmt: skip

#: The same for settings that are lists with one number for each stage of a network.
STAGES: dict[str, int] = {
    "hidden_sizes": 32, "embed_dim": 32, "out_channels": 32, "neck_hidden_sizes": 32,
    "num_attention_heads": 4, "num_heads": 4, "depths": 1, "depth": 1, "num_block_repeats": 1, "image_size": PIXELS,
}  # fmt: skip

#: Convolutions over samples: 1600 of them become 79 frames.
_SOUND: dict[str, Any] = {
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "xvector_output_dim": 16,
    "tdnn_dim": [16] * 5,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "num_codevectors_per_group": 8,
    "num_adapter_layers": 1,
}
_SEW = _SOUND | {"squeeze_factor": 2}

_PERCEIVER = {
    "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2, "num_self_attention_heads": 4,
    "num_cross_attention_heads": 4, "vocab_size": SIZE, "image_size": PIXELS, "max_position_embeddings": 64,
}  # fmt: skip
_WINDOWS = {"embed_dim": 16, "window_size": 4, "depths": [1, 1], "num_heads": [2, 4], "hidden_size": KEPT}
_ROTATION: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}

#: What single architectures need besides, by model type, also of the parts of a larger model.
SPECIAL_SETTINGS: dict[str, dict[str, Any]] = {
    "rwkv": {"rescale_every": 0},  # otherwise the first prediction writes to weights
    "audio-spectrogram-transformer": {"num_mel_bins": 16, "max_length": 32, "patch_size": 8, "frequency_stride": 8,
                                      "time_stride": 8},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "blt": {"encoder_hash_byte_group_size": [3], "encoder_hash_byte_group_vocab": 64},
    "causal-lm/reformer": {"is_decoder": True},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROTATION | {"mrope_section": [2, 1, 1]}, "sliding_attention": None},
    },
    "cvt": {"num_heads": [1, 2, 4], "embed_dim": [16, 32, 32], "depth": [1, 2, 3]},
    "data2vec-audio": _SOUND | {"num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
             "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "donut-swin": _WINDOWS,
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_vision_encoder": {"adapter_in_dim": 32, "adapter_out_dim": 32},
    "dots3_note_audio_encoder": {"adapter_out_dim": 32},
    "dots3_note_text": {
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16,
        "swa_head_dim": 16, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 16, "shared_experts_intermediate_size": 48, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8, "sliding_window": 8,
    },
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320, "image_size": PIXELS,
                     "in_channels": KEPT, "out_channels": KEPT},
    "esm": {"vocab_size": SIZE, "mask_token_id": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "funnel": {"pad_token_id": KEPT},  # as youtu's
    "gemma3n_text": {"num_kv_shared_layers": 0, "laurel_rank": 8, "num_hidden_layers": 2, "intermediate_size": 48},
    "gemma4_text": {"global_head_dim": 16},
    "gemma4_unified_text": {"global_head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "hgnet_v2": {
        "stem_channels": [3, 8, 16], "stage_in_channels": [16, 32, 32, 32], "stage_mid_channels": [16, 16, 16, 16],
        "stage_out_channels": [32, 32, 32, 32], "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2],
    },
    "hiera": {"embed_dim": 16, "num_heads": [1, 2, 4, 4], "hidden_size": KEPT, "patch_size": KEPT},
    "hubert": _SOUND,
    "imagegpt": {"vocab_size": 513, "n_positions": 1024},
    # A box's four coordinates, height and width share the hidden size; in LiLT its six numbers do equally.
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6},
    "levit": {"down_ops": [["Subsample", 8, 4, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]], "key_dim": [8, 8, 8],
              "patch_size": KEPT},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "longcat_flash": {"zero_expert_num": 2},
    "luke": {"entity_vocab_size": 32, "entity_emb_size": 16},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "mistral4": {"head_dim": KEPT},
    "mobilevitv2": {"base_attn_unit_dims": [32, 32, 32], "n_attn_blocks": [1, 1, 1], "width_multiplier": 0.5,
                    "output_stride": 16},
    "perceiver": _PERCEIVER,
    "pp_lcnet": {"class_expand": 64, "scale": 0.5},
    "qwen2": {"max_window_layers": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "hc_lowrank": 8,
    },
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "feed_forward_size": 48,
        "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 2,
    },
    "regnet": {"groups_width": 8},
    "roc_bert": {"pronunciation_vocab_size": 32, "pronunciation_embed_dim": 32, "shape_vocab_size": 32,
                 "shape_embed_dim": 32},
    "sew": _SEW,
    "sew-d": _SEW | {"position_buckets": 8, "max_position_embeddings": 64},
    "swin": _WINDOWS,
    "swinv2": _WINDOWS,
    "t5": {"decoder_start_token_id": 0},  # its classifier shifts its text behind this token
    "textnet": {"stem_out_channels": 16, "depths": KEPT, "hidden_sizes": [16, 16, 16, 32, 32]},
    "unispeech": _SOUND,
    "unispeech-sat": _SOUND,
    "wav2vec2": _SOUND,
    "wav2vec2-bert": _SOUND | {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 5},
    "wav2vec2-conformer": _SOUND | {"conv_depthwise_kernel_size": 5},
    "wavlm": _SOUND | {"num_buckets": 8, "max_bucket_distance": 16},
    "audio-classification/whisper": {"max_source_positions": 50, "num_mel_bins": 16},
    "youtu": {"pad_token_id": KEPT},  # loading sets the padding token's row to zero, also of the head tied to it
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3,
        "attention_hidden_size": 64, "attention_head_dim": 16, "head_dim": KEPT, "mamba_dt_rank": 4,
        "layer_types": KEPT, "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "layer_types": KEPT, "attention_hidden_size": KEPT,
        "head_dim": KEPT, "kv_channels": KEPT,
    },
}  # fmt: skip
