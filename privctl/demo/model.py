"""The demonstration's model: a small GPT-2 with random weights and a tokenizer made from public words."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from privctl.demo.records import WORDS

_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
LENGTH = 32


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, sign or digit; ``<s>`` and ``</s>`` around each text."""
    vocabulary = {word: i for i, word in enumerate((*_SPECIAL.values(), *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    ends = [(token, vocabulary[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LENGTH, padding_side="right", **_SPECIAL)
