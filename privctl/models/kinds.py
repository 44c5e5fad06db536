"""Which class of transformers makes the network of each task."""

from __future__ import annotations

from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
)

from privctl.models.choices import TaskName
from privctl.models.language import (
    AUDIO_CLASSIFIER,
    CAUSAL,
    IMAGE_CLASSIFIER,
    MASKED,
    SEQ2SEQ,
    TEXT_CLASSIFIER,
    ModelClass,
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
