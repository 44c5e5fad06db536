"""Loads models for training, with a checkpoint's weights or, given only an architecture, with random ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from privctl.data.columns import HeadKind
from privctl.data.pixels import ImageFacts, image_facts
from privctl.domain.errors import CommandError, InputError, PrivctlError
from privctl.models.adapters import trained_classes
from privctl.models.choices import CLASSIFICATION, NOT_ON_TEXTS, TaskName
from privctl.models.context import context_of
from privctl.models.encoding import TextFacts
from privctl.models.guard.loading import check_size
from privctl.models.images import check_reads_pixels, class_names
from privctl.models.kinds import KINDS, ModelClass, check_kind, wrong_kind
from privctl.models.language import pad_of, read_config, read_network, read_tokenizer, tokenizer_folder, vocabulary_of
from privctl.models.misfits import TensorMismatch, of_body, refuse
from privctl.models.normalisation import BATCH_NORM, FROZEN, checked_batch_norms, convert_batch_norms, freeze
from privctl.models.pairs import decoder_start
from privctl.models.purpose import checked_problem, task_named
from privctl.models.quiet import quiet_transformers
from privctl.models.sounds import SoundFacts, sound_facts
from privctl.models.unfilled import without_parameters
from privctl.models.vocabulary import Vocabulary
from privctl.storage.folder import check_links
from privctl.storage.reader import SafetensorsFile, open_checkpoint
from privctl.storage.weight_files import weight_files

#: Tasks whose head may be newly initialized.
_HEADED = (*CLASSIFICATION, TaskName.QUESTION_ANSWERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModel:
    """A network in float32 on the CPU whose parameters all require gradients, and the format of its data.

    ``text`` and ``tokenizer`` are set for tasks on text, ``images`` for tasks on images, ``sounds`` for tasks on
    sounds, and ``labels``, in the order of the network's outputs, for classification. ``tokenizer`` is only saved,
    never used to encode: a tokenizer stores whether it truncated its last text, which would leak into the saved files.
    ``fresh`` names tensors that were drawn at random from ``seed`` although there is a checkpoint, and ``frozen_norms``
    batch normalisation layers that keep their running statistics; ``converted`` is "batch-norm" if these were moved
    into scales and shifts. ``decoder_start`` is the first input id of a sequence-to-sequence model's decoder, None if
    that is the target's last token. ``problem`` is what a classifier predicts. ``files`` are those from which the
    weights were or will be read. ``by_main`` names a tensor due to which the main process alone reads the weights of a
    sharded model.
    """

    path: Path
    task: TaskName
    network: Any
    initial_weights: Literal["checkpoint", "random"]
    seed: int
    text: TextFacts | None = None
    tokenizer: Any = None
    images: ImageFacts | None = None
    sounds: SoundFacts | None = None
    labels: tuple[str, ...] | None = None
    fresh: tuple[str, ...] = ()
    frozen_norms: tuple[str, ...] = ()
    converted: str | None = None
    vocabulary_from_private_data: bool = False
    decoder_start: int | None = None
    problem: HeadKind = HeadKind.ONE
    files: tuple[SafetensorsFile, ...] = ()
    by_main: str | None = None

    @property
    def companion(self) -> Any:
        """The object whose ``save_pretrained`` saves the input format: the tokenizer, or the image or sound facts."""
        return self.tokenizer if self.text is not None else self.images or self.sounds


def load_for_training(
    path: Path,
    task: TaskName,
    *,
    labels: Sequence[str] | None = None,
    from_scratch: bool = False,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    norm: str | None = None,
    dropout: bool = False,
    adapter: Path | None = None,
    convert: str | None = None,
    unfilled: bool = False,
) -> TrainingModel:
    """Load the model at ``path`` (a Hugging Face directory, or a ``.safetensors`` file in one) for ``task``.

    Weights are drawn at random from ``seed`` with ``from_scratch``, and for a directory that has a config.json but no
    weights; ``vocabulary`` may then replace a tokenizer. ``labels`` name a classifier's outputs in order; None means
    the model's own. A classification head that is missing or of another size is drawn at random. With ``norm``
    "frozen", batch normalisation keeps its running statistics (0 and 1 with random weights) and trains scales and
    shifts; ``convert`` "batch-norm" does the same after moving the statistics into scales and shifts; without either,
    batch normalisation is refused. ``dropout`` enables dropout. ``adapter`` is the folder of an adapter that will be
    added to the model: its tokenizer is used if it has one, and its head replaces the model's. With ``unfilled`` no
    weights are read: the parameters are on the meta device, for a process that receives numbers that another process
    has loaded.

    Raises InputError for missing, unsupported or inconsistent files; CommandError for contradictory settings.
    """
    folder = path if path.is_dir() else path.parent
    random = from_scratch or without_weights(path)
    _check_settings(task, labels, random, vocabulary, norm, convert)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        config = read_config(folder, path)
        check_links(folder)
        check_kind(path, config, KINDS[task])
        _check_keeps_weights(path, config)
        tokenizer = (
            _tokenizer(tokenizer_folder(adapter) or folder, path, vocabulary) if task not in NOT_ON_TEXTS else None
        )
        problem = checked_problem(path, config, task)
        if problem is HeadKind.NUMBER and labels is not None:
            raise CommandError("--labels names classes, and the model predicts a number; remove it")
        _adapt_config(config, task, labels, vocabulary)
        files: tuple[SafetensorsFile, ...] = ()
        if unfilled:
            with without_parameters():
                network, misfits = _random_network(path, config, KINDS[task]), TensorMismatch()
        elif random:
            network, misfits = _random_network(path, config, KINDS[task]), TensorMismatch()
        else:
            with open_checkpoint(path) as checkpoint:
                network, misfits = read_network(checkpoint, folder, config, torch.float32, KINDS[task])
            files = checkpoint.files
            _check_misfits(path, task, network, misfits)
            _check_numbers(path, network)
    if adapter is not None:
        misfits = _without_head(path, adapter, misfits)
    if task is TaskName.IMAGE_CLASSIFICATION:
        check_reads_pixels(path, network)
    if task is TaskName.AUDIO_CLASSIFICATION and dropout:
        raise CommandError(
            f"--dropout does not apply to the task {task}: while it is on, networks of sounds also leave out stretches "
            "of time drawn for the whole batch; remove it"
        )
    norms = checked_batch_norms(path, network, norm, convert)
    network.float().requires_grad_(True).train(dropout)
    freeze(network, norms)
    if convert is not None:
        convert_batch_norms(network, norms)
    return TrainingModel(
        path=path,
        task=task,
        network=network,
        initial_weights="random" if random else "checkpoint",
        seed=seed,
        text=None if tokenizer is None else _text_facts(path, task, network, copy.deepcopy(tokenizer)),
        tokenizer=tokenizer,
        images=image_facts(folder, network.config) if task is TaskName.IMAGE_CLASSIFICATION else None,
        sounds=sound_facts(folder, network.config) if task is TaskName.AUDIO_CLASSIFICATION else None,
        labels=_names(network.config) if task in CLASSIFICATION and problem is not HeadKind.NUMBER else None,
        problem=problem,
        fresh=tuple(sorted({*misfits.missing, *misfits.mismatched})),
        frozen_norms=norms,
        converted=convert,
        vocabulary_from_private_data=vocabulary is not None and vocabulary.from_private_data,
        decoder_start=decoder_start(path, network) if task is TaskName.SEQ2SEQ_LM else None,
        files=files,
    )


def known_labels(path: Path) -> tuple[str, ...] | None:
    """The names of the labels in the config.json of the model at ``path``; None if they are only numbered."""
    folder = path if path.is_dir() else path.parent
    with quiet_transformers():
        names = _names(read_config(folder, path))
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def class_count(path: Path) -> int:
    """The number of classes in the config.json of the model at ``path``; transformers' default if not stated."""
    with quiet_transformers():
        return len(_names(read_config(path if path.is_dir() else path.parent, path)))


def trained_outputs(path: Path, task: TaskName) -> int | None:
    """The number of classes of the trained head of the model at ``path``; None if it has no head for ``task``."""
    return None if without_weights(path) or task_named(path) is not task else class_count(path)


def _names(config: Any) -> tuple[str, ...]:
    return tuple(class_names(config).values())


def without_weights(path: Path) -> bool:
    """Whether a folder holds only an architecture. Weights of other formats count as well; they must be converted."""
    return path.is_dir() and not weight_files(path)


def _check_settings(
    task: TaskName,
    labels: Sequence[str] | None,
    random: bool,
    vocabulary: Vocabulary | None,
    norm: str | None,
    convert: str | None,
) -> None:
    if labels is not None and task not in CLASSIFICATION:
        raise CommandError(f"--labels does not apply to the task {task}; remove it")
    if vocabulary is not None and task in NOT_ON_TEXTS:
        raise CommandError(f"a vocabulary does not apply to the task {task}; remove it")
    if vocabulary is not None and not random:
        raise CommandError(
            "--vocabulary does not fit weights that were trained with another vocabulary; add --from-scratch"
        )
    if norm not in (None, FROZEN):
        raise CommandError(f"--norm {norm} is unknown; choose {FROZEN}, or remove it")
    if convert not in (None, BATCH_NORM):
        raise CommandError(f"--convert {convert} is unknown; choose {BATCH_NORM}, or remove it")
    if convert is not None and norm is not None:
        raise CommandError(f"--convert {convert} freezes the normalisation already; remove --norm {norm}")


def _tokenizer(folder: Path, path: Path, vocabulary: Vocabulary | None) -> Any:
    return read_tokenizer(folder, path) if vocabulary is None else vocabulary.tokenizer


def _adapt_config(config: Any, task: TaskName, labels: Sequence[str] | None, vocabulary: Vocabulary | None) -> None:
    """Write labels and vocabulary into the configuration, which determines the network's shapes."""
    if task is TaskName.QUESTION_ANSWERING:
        config.num_labels = 2  # where an answer starts, and where it ends
    if labels is not None:
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: i for i, name in enumerate(labels)}
    if vocabulary is not None:
        config.vocab_size = len(vocabulary.tokenizer)
        if (start := getattr(config, "decoder_start_token_id", None)) is not None:
            # Targets begin with <bos>. After another <bos>, T5 could not tell the two apart, as it only uses distances.
            role = "pad_token_id" if start == getattr(config, "pad_token_id", None) else "eos_token_id"
            config.decoder_start_token_id = getattr(vocabulary.tokenizer, role)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, getattr(vocabulary.tokenizer, name))
        if getattr(config, "forced_eos_token_id", None) is not None:  # generate() ends texts of full length with it
            config.forced_eos_token_id = vocabulary.tokenizer.eos_token_id


def _random_network(path: Path, config: Any, kind: ModelClass) -> Any:
    try:
        check_size(kind.auto, config, path if path.is_dir() else path.parent, None)
        return kind.auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except PrivctlError:
        raise
    except Exception as error:
        if "Unrecognized configuration class" in str(error):
            raise wrong_kind(path, config, kind) from None
        raise InputError(f"{path} has a config.json that no network can be made of: {error}") from None


def _check_keeps_weights(path: Path, config: Any) -> None:
    """Refuse an RWKV that halves weights of later blocks at its first prediction: a training would write those."""
    every, blocks = getattr(config, "rescale_every", 0), getattr(config, "num_hidden_layers", 0)
    if config.model_type == "rwkv" and 0 < every < blocks:
        raise InputError(
            f"{path} halves weights of its later blocks when it predicts (rescale_every is {every} in config.json): "
            "other weights would be written than were trained; set rescale_every to 0 there, by which its "
            "answers change little more than by rounding"
        )


def _check_misfits(path: Path, task: TaskName, network: Any, misfits: TensorMismatch) -> None:
    """Raise InputError for misfits in the network's body: only a head may be new, and only heads may be unused."""
    head = task in _HEADED
    spare = head or task is TaskName.MASKED_LM
    refuse(
        path,
        TensorMismatch(
            mismatched=tuple(n for n in misfits.mismatched if not head or of_body(network, n)),
            missing=tuple(n for n in misfits.missing if not head or of_body(network, n)),
            unexpected=tuple(n for n in misfits.unexpected if not spare or of_body(network, n)),
        ),
    )


def _without_head(path: Path, adapter: Path, misfits: TensorMismatch) -> TensorMismatch:
    """The remaining ``misfits`` if the adapter has the head. Raises InputError if neither has one."""
    fresh = [*misfits.missing, *misfits.mismatched]
    if fresh and trained_classes(adapter) is None:
        raise InputError(
            f"{path} lacks {fresh[0]}, and the adapter {adapter} does not bring it; give the base that it was trained "
            "on, with its head, or all of its classes with --labels"
        )
    return replace(misfits, missing=(), mismatched=())


def _check_numbers(path: Path, network: Any) -> None:
    """Raise InputError for weights that are not finite, which training would otherwise seem to have caused."""
    for name, parameter in network.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InputError(f"{path}: {name!r} holds NaN or infinity, which cannot be trained; give other weights")


def _text_facts(path: Path, task: TaskName, network: Any, tokenizer: Any) -> TextFacts:
    vocabulary = vocabulary_of(network)
    if len(tokenizer) > vocabulary:
        raise InputError(
            f"{path} has a tokenizer of {len(tokenizer)} tokens and embeds {vocabulary}; use its own, or "
            "set vocab_size in config.json"
        )
    if task is TaskName.MASKED_LM and tokenizer.mask_token_id is None:
        raise InputError(f"{path} has a tokenizer without a mask token; the task {task} hides tokens behind one")
    pad = pad_of(network, tokenizer)
    masked, causal = (type(network.config) in KINDS[t].mapping for t in (TaskName.MASKED_LM, TaskName.CAUSAL_LM))
    last = task is TaskName.TEXT_CLASSIFICATION and not (masked and not causal)
    if last and getattr(network.config, "pad_token_id", None) is None:
        # Causal classifiers look for the last token that is not padding. This is set only now, because an embedding
        # built with a padding id never trains that row, and transformers sets it to zero when loading a Funnel.
        network.config.pad_token_id = pad
    reads_end = task is TaskName.TEXT_CLASSIFICATION and getattr(network.config, "is_encoder_decoder", False)
    return TextFacts(
        tokenizer=tokenizer,
        context=context_of(network, tokenizer),
        vocabulary=vocabulary,
        pad=pad,
        once=network.config.eos_token_id if reads_end else None,
    )
