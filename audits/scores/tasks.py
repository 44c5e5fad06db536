"""The tasks of models, by the names that users give."""

from __future__ import annotations

CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM = "causal-lm", "masked-lm", "seq2seq-lm"
TEXT_CLASSIFICATION, IMAGE_CLASSIFICATION = "text-classification", "image-classification"
AUDIO_CLASSIFICATION = "audio-classification"
TOKEN_CLASSIFICATION, QUESTION_ANSWERING = "token-classification", "question-answering"
