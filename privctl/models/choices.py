"""What a user chooses among, by the names of the options; imports nothing heavy, for the command line reads it."""

from __future__ import annotations

from enum import StrEnum


class TaskName(StrEnum):
    """The tasks by the names users give."""

    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 -- a task, not a password
    QUESTION_ANSWERING = "question-answering"
    IMAGE_CLASSIFICATION = "image-classification"
    AUDIO_CLASSIFICATION = "audio-classification"


#: Tasks on something else than texts.
NOT_ON_TEXTS = (TaskName.IMAGE_CLASSIFICATION, TaskName.AUDIO_CLASSIFICATION)
#: Tasks whose records are a text each, some with a label.
ONE_TEXT = (TaskName.CAUSAL_LM, TaskName.MASKED_LM, TaskName.TEXT_CLASSIFICATION)
#: Tasks that tell classes apart.
CLASSIFICATION = (TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION, *NOT_ON_TEXTS)
#: Tasks on records that have a label or a target.
LABELLED = (*CLASSIFICATION, TaskName.SEQ2SEQ_LM)


class FloatFormat(StrEnum):
    """The format of the numbers that a forward pass multiplies."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class LongTextPolicy(StrEnum):
    """What becomes of a text that is longer than the model can read.

    ``SPLIT`` cuts it into pieces that are examples of one unit, of which a step sees one (see ``Units``): a record
    weighs no more for being long, and the unit of privacy stays the whole record.
    """

    REFUSE = "refuse"
    TRUNCATE = "truncate"
    SPLIT = "split"
