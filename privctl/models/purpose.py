"""The task of a model, from the class that its config.json names."""

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

#: Suffixes of the names of transformers' classes for each task; GPT-2's language model has its own.
_ENDINGS = {
    TaskName.CAUSAL_LM: ("ForCausalLM", "LMHeadModel"),
    TaskName.MASKED_LM: ("ForMaskedLM",),
    TaskName.TEXT_CLASSIFICATION: ("ForSequenceClassification",),
    TaskName.TOKEN_CLASSIFICATION: ("ForTokenClassification",),
    TaskName.QUESTION_ANSWERING: ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    TaskName.IMAGE_CLASSIFICATION: ("ForImageClassification",),
}
#: Tasks whose head always predicts the same kind of target.
_HEADS = {TaskName.TOKEN_CLASSIFICATION: HeadKind.TOKENS, TaskName.QUESTION_ANSWERING: HeadKind.SPAN}
#: Tasks whose head predicts what ``problem_type`` in config.json says.
_BY_PROBLEM = (TaskName.TEXT_CLASSIFICATION, TaskName.IMAGE_CLASSIFICATION, TaskName.AUDIO_CLASSIFICATION)


def class_named(path: Path) -> str:
    """The first class that the config.json of the model at ``path`` names; "" if it names none.

    Raises InputError as ``read_config`` does.
    """
    with quiet_transformers():
        names = getattr(read_config(path if path.is_dir() else path.parent, path), "architectures", None) or [""]
    return str(names[0])


def task_named(path: Path) -> TaskName | None:
    """The task of the class that config.json names; None if it names none, or a class without a known head."""
    name = class_named(path)
    if name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return TaskName.SEQ2SEQ_LM  # not by suffix: speech and image models end in ForConditionalGeneration too
    if name in MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.values():
        return TaskName.AUDIO_CLASSIFICATION  # before text: Wav2Vec2's class ends in ForSequenceClassification too
    return next((task for task, endings in _ENDINGS.items() if name.endswith(endings)), None)


def checked_problem(path: Path, config: Any, task: TaskName) -> HeadKind:
    """What the head of a model of ``config`` predicts, for a classifier by its ``problem_type``; by default ``ONE``.

    Raises InputError for regression with more than one output.
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
    """``checked_problem`` of the model at ``path``."""
    with quiet_transformers():
        return checked_problem(path, read_config(path if path.is_dir() else path.parent, path), task)


def task_meant(path: Path) -> TaskName:
    """The task of the model at ``path`` if the user named none.

    A model whose config.json names no head is taken for the only task of its architecture. Raises CommandError if the
    architecture serves several tasks, as BERT does, so that a guess might be wrong, and InputError for an
    encoder-decoder that does not read text.
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
