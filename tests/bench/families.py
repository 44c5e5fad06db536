"""Private training steps of many architectures, against non-private ones.

The models are small, of transformers' own classes, untrained, without dropout. The parties of ``dp_sgd_parties`` make
the steps, each in a process of its own, on one thread, in turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

from tests.bench.common import publish, save

ROWS, POSITIONS, VOCABULARY, PIXELS = 8, 64, 4096, 64
SEED = 0
HEADINGS = ("architecture", "million numbers", "non-private, ms", "private / non-private")

_WIDE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_WORDS = {**_WIDE, "vocab_size": VOCABULARY}
_GATED = {**_WORDS, "num_key_value_heads": 2, "intermediate_size": 688}
_ENCODER = {**_WORDS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_PIXELS = {**_WIDE, "image_size": PIXELS}
_BART = {f"{side}_{name}": number for side in ("encoder", "decoder")
         for name, number in {"layers": 2, "ffn_dim": 1024, "attention_heads": 4}.items()}  # fmt: skip
_SOUND = {"conv_dim": (64, 64, 64), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 4), "num_feat_extract_layers": 3,
          "feat_extract_norm": "layer", "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
          "mask_time_prob": 0.0, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0,
          "activation_dropout": 0.0, "feat_proj_dropout": 0.0}  # fmt: skip

#: Name -> model class, configuration class, the latter's arguments, and what the model reads.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GATED, "text"),
    "Qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GATED, "head_dim": 64}, "text"),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GATED, "head_dim": 64}, "text"),
    "Mixtral, 4 experts": (
        "MixtralForCausalLM", "MixtralConfig",
        {**_GATED, "intermediate_size": 512, "num_local_experts": 4}, "text",
    ),
    "OPT": (
        "OPTForCausalLM", "OPTConfig",
        {**_WORDS, "ffn_dim": 1024, "word_embed_proj_dim": 256, "dropout": 0.0}, "text",
    ),
    "BLOOM": ("BloomForCausalLM", "BloomConfig",
              {"hidden_size": 256, "n_layer": 4, "n_head": 4, "vocab_size": VOCABULARY}, "text"),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _WORDS, "text"),
    "Mamba": ("MambaForCausalLM", "MambaConfig",
              {"hidden_size": 256, "num_hidden_layers": 4, "vocab_size": VOCABULARY}, "text"),
    "BERT, masked words": ("BertForMaskedLM", "BertConfig", _ENCODER, "text"),
    "DeBERTa v2": (
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 64}, "text",
    ),
    "T5": ("T5ForConditionalGeneration", "T5Config",
           {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4, "vocab_size": VOCABULARY,
            "dropout_rate": 0.0}, "pairs"),
    "BART": ("BartForConditionalGeneration", "BartConfig",
             {**_BART, "d_model": 256, "vocab_size": VOCABULARY, "dropout": 0.0}, "pairs"),
    "ViT": ("ViTForImageClassification", "ViTConfig", {**_PIXELS, "patch_size": 8}, "images"),
    "Swin": ("SwinForImageClassification", "SwinConfig",
             {"image_size": PIXELS, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
             "images"),
    "SegFormer": ("SegformerForImageClassification", "SegformerConfig",
                  {"depths": [1, 1, 1, 1], "hidden_sizes": [32, 64, 128, 256]}, "images"),
    "ConvNeXt": ("ConvNextForImageClassification", "ConvNextConfig",
                 {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}, "images"),
    "wav2vec 2": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", {**_WIDE, **_SOUND}, "sounds"),
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--family", action="append", help="only architectures whose names begin so; repeatable")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    from tests.bench.dp_sgd import load_parties

    load_parties()
    chosen = [name for name in FAMILIES if name.startswith(tuple(options.family or [""]))]
    data: dict[str, Any] = {"rounds": options.rounds, "threads": 1, "rows": ROWS, "families": {}}
    for name in chosen:
        print(name, file=sys.stderr, flush=True)
        data["families"][name] = measured(name, options.rounds)
        save("families", data, options.output)
    publish("families", list(HEADINGS), rows(data), data, options.output)


def measured(name: str, rounds: int) -> dict[str, float]:
    """The size of a model in millions, and medians over rounds of processor times."""
    from statistics import median

    from tests.bench.dp_sgd_parties import BASE, OURS, PARTIES
    from tests.bench.step_processes import in_turns

    def step(party: str) -> Any:
        return PARTIES[party](_work(name))

    taken = in_turns({party: partial(step, party) for party in (BASE, OURS)}, rounds)
    base, private = ([each["processor"] for each in taken[party]] for party in (BASE, OURS))
    size = sum(parameter.numel() for parameter in _work(name).model.parameters())
    return {
        "million": size / 1e6,
        "non_private_ms": 1e3 * median(base),
        "ratio": median(ours / its for ours, its in zip(private, base, strict=True)),
    }


def rows(data: dict[str, Any]) -> list[list[str]]:
    """The table, one line for each architecture."""
    return [
        [name, f"{found['million']:.1f}", f"{found['non_private_ms']:.0f}", f"{found['ratio']:.2f}"]
        for name, found in data["families"].items()
    ]


def _work(name: str) -> Any:
    """A new model with its batch; always the same."""
    import torch
    import transformers
    from torch.nn import functional

    from tests.bench.dp_sgd_parties import Work

    model_class, configuration, sizes, reads = FAMILIES[name]
    torch.manual_seed(SEED)
    model = getattr(transformers, model_class)(getattr(transformers, configuration)(**sizes)).train()
    words = torch.randint(3, VOCABULARY, (ROWS, POSITIONS))
    batch = {
        "text": {"input_ids": words},
        "pairs": {"input_ids": words, "decoder_input_ids": words},
        "images": {"pixel_values": torch.randn(ROWS, 3, PIXELS, PIXELS)},
        "sounds": {"input_values": torch.randn(ROWS, 8000)},
    }[reads]
    targets = torch.arange(ROWS) % 2 if reads in ("images", "sounds") else words[:, 1:]

    def losses_of(network: Any) -> torch.Tensor:
        logits = network(**batch).logits
        if targets.dim() == 1:
            return functional.cross_entropy(logits, targets, reduction="none")
        return functional.cross_entropy(logits[:, :-1].mT, targets, reduction="none").mean(1)

    return Work(
        model=model, losses_of=losses_of, count=ROWS, clip=1.0, noise=1.0, device=torch.device("cpu"), origin=()
    )
