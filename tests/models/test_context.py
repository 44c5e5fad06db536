"""The most tokens that a model reads: it runs on so many, and fails on one more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    BartConfig,
    BartForSequenceClassification,
    IBertConfig,
    IBertForMaskedLM,
    MptConfig,
    MptForCausalLM,
    ProphetNetConfig,
    ProphetNetForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    WhisperConfig,
    WhisperForCausalLM,
    XmodConfig,
)

from privctl.domain.errors import InputError
from privctl.models.context import context_of
from privctl.models.kinds import MASKED, check_kind
from privctl.train.release.model import _companions

_SIZES = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_ENCODER = {**_SIZES, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
_DECODER = {
    **_SIZES, "num_encoder_layers": 1, "num_decoder_layers": 1, "encoder_layers": 1, "decoder_layers": 1,
    "decoder_attention_heads": 2, "encoder_attention_heads": 2, "decoder_ffn_dim": 8, "encoder_ffn_dim": 8,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "mpt": lambda: MptForCausalLM(MptConfig(**_SIZES, d_model=8, n_heads=2, n_layers=1, max_seq_len=12)),
    "whisper": lambda: WhisperForCausalLM(
        WhisperConfig(**_DECODER, d_model=8, max_target_positions=12, max_source_positions=12, num_mel_bins=4)
    ),
    "prophetnet": lambda: ProphetNetForCausalLM(
        ProphetNetConfig(
            **_DECODER,
            hidden_size=8,
            num_decoder_attention_heads=2,
            max_position_embeddings=14,
            is_decoder=True,
            add_cross_attention=False,
            is_encoder_decoder=False,
        )
    ),
    "ibert": lambda: IBertForMaskedLM(IBertConfig(**_ENCODER, max_position_embeddings=13)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**_ENCODER, max_position_embeddings=13)),
}


@pytest.mark.parametrize("name", MODELS)
def test_so_many_tokens_are_read_and_no_more(name: str) -> None:
    network = MODELS[name]().eval()
    context = context_of(network, None)
    assert context == 12
    with torch.no_grad():
        assert network(torch.full((2, context), 5)).logits.shape[1] == context
        with pytest.raises((IndexError, RuntimeError)):
            network(torch.full((2, context + 1), 5))


def test_adapters_of_languages_ask_for_one() -> None:
    spoken = XmodConfig(languages=["de_DE", "en_XX"], default_language="en_XX")
    check_kind(Path("model"), spoken, MASKED)
    with pytest.raises(InputError, match="2 languages.*set default_language there, such as 'de_DE'"):
        check_kind(Path("model"), XmodConfig(languages=["de_DE", "en_XX"]), MASKED)


class _Tokenizer:
    def save_pretrained(self, folder: str) -> None:
        """Nothing to save."""


def test_two_classes_without_names_of_their_own_stay_two(tmp_path: Path) -> None:
    """BART's configuration has three classes where its file names none, and names of two are left out of it."""
    config = BartConfig(**_DECODER, d_model=8, max_position_embeddings=12, id2label={0: "LABEL_0", 1: "LABEL_1"})
    network = BartForSequenceClassification(config)
    for name, content in _companions(network, _Tokenizer()):
        (tmp_path / name).write_bytes(content)
    read = AutoConfig.from_pretrained(tmp_path)
    assert (read.num_labels, read.id2label) == (2, {0: "LABEL_0", 1: "LABEL_1"})
