"""The values of options. The command line imports this module, so it imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class TaskName(StrEnum):
    """The tasks, by the names that users give."""

    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 -- a task, not a password
    QUESTION_ANSWERING = "question-answering"
    IMAGE_CLASSIFICATION = "image-classification"
    AUDIO_CLASSIFICATION = "audio-classification"


TASKS = tuple(str(task) for task in TaskName)
#: Tasks on data other than text.
NOT_ON_TEXTS = (TaskName.IMAGE_CLASSIFICATION, TaskName.AUDIO_CLASSIFICATION)
#: Tasks whose records are a single text, possibly with a label.
ONE_TEXT = (TaskName.CAUSAL_LM, TaskName.MASKED_LM, TaskName.TEXT_CLASSIFICATION)
#: Tasks that predict classes.
CLASSIFICATION = (TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION, *NOT_ON_TEXTS)
#: Tasks on records that have a label or a target.
LABELLED = (*CLASSIFICATION, TaskName.SEQ2SEQ_LM)


class FloatFormat(StrEnum):
    """The number format of the matrix products in a forward pass."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class LongTextPolicy(StrEnum):
    """How texts longer than the model's context are handled.

    ``SPLIT`` cuts a text into examples of one unit, of which a step uses one (see ``Units``): a long record has no more
    influence than a short one, and the unit of privacy remains the whole record.
    """

    REFUSE = "refuse"
    TRUNCATE = "truncate"
    SPLIT = "split"
