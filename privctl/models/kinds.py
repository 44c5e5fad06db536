"""Kinds of networks: the transformers class of each task, and checks that a model is of that kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForAudioClassification,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.running import check_text_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """A kind of network: the transformers class ``auto`` that builds it, and its description in errors.

    ``mapping`` has the configuration classes from which such a network can be built.
    """

    auto: Any
    mapping: Any
    noun: str
    advice: str


CAUSAL = ModelClass(
    auto=AutoModelForCausalLM,
    mapping=MODEL_FOR_CAUSAL_LM_MAPPING,
    noun="a causal language model",
    advice="give one that predicts the next token",
)
MASKED = ModelClass(
    auto=AutoModelForMaskedLM,
    mapping=MODEL_FOR_MASKED_LM_MAPPING,
    noun="a masked language model",
    advice="give one such as BERT",
)
SEQ2SEQ = ModelClass(
    auto=AutoModelForSeq2SeqLM,
    mapping=MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    noun="a sequence-to-sequence model",
    advice="give an encoder-decoder such as T5 or BART",
)
TEXT_CLASSIFIER = ModelClass(
    auto=AutoModelForSequenceClassification,
    mapping=MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    noun="a text classifier",
    advice="give one that reads text",
)
IMAGE_CLASSIFIER = ModelClass(
    auto=AutoModelForImageClassification,
    mapping=MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    noun="an image classifier",
    advice="give one such as ViT or ResNet",
)
AUDIO_CLASSIFIER = ModelClass(
    auto=AutoModelForAudioClassification,
    mapping=MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
    noun="a classifier of sounds",
    advice="give one such as Wav2Vec2 or AST",
)
KINDS: dict[TaskName, ModelClass] = {
    TaskName.CAUSAL_LM: CAUSAL,
    TaskName.MASKED_LM: MASKED,
    TaskName.SEQ2SEQ_LM: SEQ2SEQ,
    TaskName.TEXT_CLASSIFICATION: TEXT_CLASSIFIER,
    TaskName.TOKEN_CLASSIFICATION: ModelClass(
        auto=AutoModelForTokenClassification,
        mapping=MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        noun="a token classifier",
        advice="give one such as BERT",
    ),
    TaskName.QUESTION_ANSWERING: ModelClass(
        auto=AutoModelForQuestionAnswering,
        mapping=MODEL_FOR_QUESTION_ANSWERING_MAPPING,
        noun="a model that answers questions from a text",
        advice="give one such as BERT",
    ),
    TaskName.IMAGE_CLASSIFICATION: IMAGE_CLASSIFIER,
    TaskName.AUDIO_CLASSIFICATION: AUDIO_CLASSIFIER,
}


def check_kind(path: Path, config: Any, kind: ModelClass) -> None:
    """Raise InputError if a network of ``config`` cannot be of this ``kind``, before any other check.

    An encoder-decoder is refused as a causal model although some configurations also allow a stand-alone decoder, whose
    weights differ. X-MOD is refused unless its configuration selects a language.
    """
    if kind is CAUSAL and getattr(config, "is_encoder_decoder", False):
        raise encoder_decoder(path, config)
    if type(config) not in kind.mapping:
        raise wrong_kind(path, config, kind)
    check_text_alone(path, config, kind.noun)
    languages = getattr(config, "languages", None)
    if languages and getattr(config, "default_language", "") is None:
        raise InputError(
            f"{path} has adapters for {len(languages)} languages, and its config.json does not say which the texts "
            f"are in; set default_language there, such as {languages[0]!r}"
        )


def encoder_decoder(path: Path, config: Any) -> InputError:
    """The error for an encoder-decoder where a causal model is needed."""
    text = type(config) in SEQ2SEQ.mapping
    advice = "give --task seq2seq-lm" if text else f"it reads no text, so give {CAUSAL.noun}"
    return InputError(
        f"{path} is an encoder-decoder model ({config.model_type}), which predicts a text from another input; {advice}"
    )


def wrong_kind(path: Path, config: Any, kind: ModelClass) -> InputError:
    """The error for an architecture that has no network of this ``kind``."""
    auto = kind.auto.__name__
    named = (getattr(config, "architectures", None) or [""])[0]
    if named.endswith(auto.removeprefix("AutoModel")):
        return InputError(
            f"{path} names {named} in its config.json, and transformers' {auto} loads no {config.model_type} model; "
            f"that is part of a larger one, so {kind.advice} by itself"
        )
    return InputError(f"{path} is a {config.model_type} model, which is not {kind.noun}; {kind.advice}")
