"""What a model is for, by the class that its config.json names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from privctl.data.columns import HeadKind
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import TaskName
from privctl.models.kinds import KINDS, SEQ2SEQ, encoder_decoder
from privctl.models.language import read_config
from privctl.models.quiet import quiet_transformers

#: How transformers ends the name of a task's class; GPT-2's language model is named in its own way.
_ENDINGS = {
    TaskName.CAUSAL_LM: ("ForCausalLM", "LMHeadModel"),
    TaskName.MASKED_LM: ("ForMaskedLM",),
    TaskName.TEXT_CLASSIFICATION: ("ForSequenceClassification",),
    TaskName.TOKEN_CLASSIFICATION: ("ForTokenClassification",),
    TaskName.QUESTION_ANSWERING: ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    TaskName.IMAGE_CLASSIFICATION: ("ForImageClassification",),
}
#: What the head of a task predicts whatever config.json says.
_HEADS = {TaskName.TOKEN_CLASSIFICATION: HeadKind.TOKENS, TaskName.QUESTION_ANSWERING: HeadKind.SPAN}
#: Tasks whose head predicts what config.json says.
_BY_PROBLEM = (TaskName.TEXT_CLASSIFICATION, TaskName.IMAGE_CLASSIFICATION, TaskName.AUDIO_CLASSIFICATION)


def class_named(path: Path) -> str:
    """The class that the config.json of the model at ``path`` names first; "" where it names none.

    Raises InputError as ``read_config`` does.
    """
    with quiet_transformers():
        names = getattr(read_config(path if path.is_dir() else path.parent, path), "architectures", None) or [""]
    return str(names[0])


def task_named(path: Path) -> TaskName | None:
    """The task of that class; None where config.json names none, or one without a head that is known."""
    name = class_named(path)
    if name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return TaskName.SEQ2SEQ_LM  # networks of sounds and images end in ForConditionalGeneration too
    if name in MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.values():
        return TaskName.AUDIO_CLASSIFICATION  # Wav2Vec2's ends in ForSequenceClassification, as those of texts do
    return next((task for task, endings in _ENDINGS.items() if name.endswith(endings)), None)


def checked_problem(path: Path, config: Any, task: TaskName) -> HeadKind:
    """What the head of a model of ``config`` predicts, a classifier's by its ``problem_type``; of other tasks ``ONE``.

    Raises InputError for a number of outputs that does not fit.
    """
    if task in _HEADS:
        return _HEADS[task]
    stated = getattr(config, "problem_type", None)
    if task not in _BY_PROBLEM or stated is None:
        return HeadKind.ONE
    problem = HeadKind(stated)
    if problem is HeadKind.NUMBER and config.num_labels != 1:
        raise InputError(
            f'{path} has "problem_type": "regression" and {config.num_labels} outputs in its config.json; regression '
            "predicts one number, so set num_labels to 1"
        )
    return problem


def problem_of(path: Path, task: TaskName) -> HeadKind:
    """What the classifier at ``path`` predicts; see ``checked_problem``."""
    with quiet_transformers():
        return checked_problem(path, read_config(path if path.is_dir() else path.parent, path), task)


def task_meant(path: Path) -> TaskName:
    """The task of the model at ``path`` where none was asked for.

    A model without a named head predicts text if that is all its kind does. Raises CommandError where its
    kind does several things, as BERT's, so that a guess could take it for something else than was meant,
    and InputError for an encoder-decoder that reads no text.
    """
    task = task_named(path)
    if task is not None:
        return task
    with quiet_transformers():
        config = read_config(path if path.is_dir() else path.parent, path)
    encodes = getattr(config, "is_encoder_decoder", False)
    if type(config) in MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING and not encodes:
        return TaskName.AUDIO_CLASSIFICATION
    if encodes and type(config) not in SEQ2SEQ.mapping:
        raise encoder_decoder(path, config)
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        name = class_named(path) or "no class"
        tasks = [task for task in TaskName if type(config) in KINDS[task].mapping]
        raise CommandError(
            f"{path} has a config.json that names {name}, and a {config.model_type} model may serve several tasks; "
            f"give --task: {', '.join(tasks)}"
        )
    if encodes:
        return TaskName.SEQ2SEQ_LM
    images = type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    return TaskName.IMAGE_CLASSIFICATION if images else TaskName.CAUSAL_LM
