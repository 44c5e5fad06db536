"""Models: architecture, weights and tokenizer, from files only; causal language models ready to be evaluated.

Nothing is fetched, no code that comes with a model is run, and only safetensors is loaded.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Read once, when huggingface_hub is imported: some tokenizer classes ask the hub even for a local folder.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForAudioClassification,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from privctl.domain.errors import CommandError, InputError, PrivctlError
from privctl.models.adapters import adapter_at, on_base, trained_classes
from privctl.models.choices import FloatFormat
from privctl.models.context import context_of
from privctl.models.four_bit import in_four_bits
from privctl.models.guard.loading import as_folder, check_alone, check_size, checked_config, strip
from privctl.models.guard.tokenizers import check_tokenizer
from privctl.models.guard.weights import check_loaded
from privctl.models.misfits import TensorMismatch, of_body, refuse, without_heads
from privctl.models.precision import convert
from privctl.models.quiet import quiet_transformers
from privctl.models.running import check_text_alone
from privctl.storage.reader import Checkpoint, holds_adapter, missing_model, open_checkpoint, refuse_adapter_file

CONFIG_NAME = "config.json"
_OWN_CLASS = "for a network of your own class see docs/python.md#a-model-of-your-own-class"
#: Any one of these makes a folder hold a tokenizer.
TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
#: Everything a tokenizer is made of, for digests.
TOKENIZER_FILES = (
    *TOKENIZER_NAMES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
#: Where a chat template may lie beside them.
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """What a network is for: transformers' class that makes one, and how an error says what was expected.

    ``mapping`` has the classes of the configurations that such a network can be made of.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model ready to be evaluated; ``path`` is what the user named, ``folder`` holds configuration and tokenizer.

    ``network`` and ``tokenizer`` are transformers' own objects; only networks that read text have one. ``base``
    is what an adapter at ``path`` was loaded on, held in ``base_bits`` bits where that is not None. ``precision`` is
    the one that was asked for.
    """

    path: Path
    folder: Path
    network: Any
    tokenizer: Any
    device: torch.device
    base: Path | None = None
    base_bits: int | None = None
    precision: FloatFormat | None = None

    @property
    def tokenizer_from(self) -> Path:
        """What the tokenizer came with: the base, for an adapter without one of its own, else the model."""
        return self.path if self.base is None or tokenizer_folder(self.path) is not None else self.base

    @property
    def context(self) -> int | None:
        """The most tokens the model can see at once, where its configuration says."""
        return context_of(self.network, None)

    @property
    def vocabulary(self) -> int:
        """Token ids are below it; see ``vocabulary_of``."""
        return vocabulary_of(self.network)

    @property
    def dtype(self) -> str:
        """The format the weights are held in, such as ``float32``."""
        return str(self.network.dtype).removeprefix("torch.")


def load_model(
    path: Path,
    *,
    folder: Path | None = None,
    device: str | None = None,
    kind: ModelClass = CAUSAL,
    base: Path | None = None,
    base_bits: int | None = None,
    precision: FloatFormat | None = None,
) -> LanguageModel:
    """Load the model at ``path``: a Hugging Face directory, or a ``.safetensors`` file beside its config and tokenizer.

    It may be an adapter's folder, whose base is the model at ``base`` or else the one that the adapter names.
    ``kind`` is what it must be for. ``folder`` names another place for configuration and tokenizer. ``device`` None is
    CUDA where there is one, else the CPU. Weights are in ``precision``; None is float32 on a CPU, and the checkpoint's
    own format elsewhere.
    With ``base_bits`` 4 all but heads and adapter is held in 4 bits, as a training with ``--base-bits 4`` holds it.
    Raises InputError for what is missing, unsupported or disagrees; CommandError for a device that is not there.
    """
    target = choose_device(device)
    adapter = adapter_at(path, base)
    whole = path if adapter is None else adapter.base
    with open_checkpoint(whole) as checkpoint, quiet_transformers():
        check_alone(checkpoint)
        folder = folder or checkpoint.folder
        config = read_config(folder, whole)
        check_kind(whole, config, kind)
        reads = kind not in (IMAGE_CLASSIFIER, AUDIO_CLASSIFIER)
        own = tokenizer_folder(path)
        tokenizer = read_tokenizer(own or folder, path if own else whole) if reads else None
        as_stored = target.type != "cpu" and base_bits is None and precision is None
        dtype: torch.dtype | str = "auto" if as_stored else torch.float32
        if adapter is not None and kind in (TEXT_CLASSIFIER, IMAGE_CLASSIFIER, AUDIO_CLASSIFIER):
            _fit_head(config, adapter.adapter)
        network, misfits = read_network(checkpoint, folder, config, dtype, kind)
        if base_bits is not None:
            in_four_bits(network, target)
        if adapter is not None:
            # The same class as before, with the adapter in its layers.
            joined = on_base(network, adapter.adapter, trainable=False)
            network, misfits = joined.base_model.model, without_heads(misfits, joined)
    if kind is MASKED:
        # pretraining leaves other heads beside the one in question
        misfits = replace(misfits, unexpected=tuple(n for n in misfits.unexpected if of_body(network, n)))
    refuse(checkpoint.root, misfits)
    network.eval().requires_grad_(False)
    if precision is not None:
        convert(network, precision)
    return LanguageModel(
        path=path,
        folder=folder,
        network=network.to(target),
        tokenizer=tokenizer,
        device=target,
        base=None if adapter is None else adapter.base,
        base_bits=base_bits,
        precision=precision,
    )


def tokenizer_folder(path: Path | None) -> Path | None:
    """The folder ``path`` where it is an adapter's and holds a tokenizer, which then stands for the base's."""
    if path is None or not holds_adapter(path) or not any((path / name).is_file() for name in TOKENIZER_NAMES):
        return None
    return path


def _fit_head(config: Any, adapter: Path) -> None:
    """Let the network have as many classes as the head in the folder ``adapter``, if there is one."""
    classes = trained_classes(adapter)
    if classes not in (None, config.num_labels):
        config.num_labels = classes


def vocabulary_of(network: Any) -> int:
    """How many token ids the network takes: the rows of its input embedding, else its configuration's ``vocab_size``.

    A network with neither hashes characters (CANINE), and takes every code point.
    """
    try:
        table = getattr(network.get_input_embeddings(), "weight", None)
    except (NotImplementedError, AttributeError):
        table = None
    if isinstance(table, torch.Tensor) and table.ndim == 2:
        return int(table.shape[0])
    stated = getattr(network.config.get_text_config(), "vocab_size", None)
    return stated if isinstance(stated, int) and stated > 0 else sys.maxunicode + 1


def pad_of(network: Any, tokenizer: Any) -> int:
    """The id that fills rows up; not every configuration has a padding token, or a field for one."""
    vocabulary = vocabulary_of(network)
    stated = getattr(network.config, "pad_token_id", None)
    candidates = (stated, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(i) for i in candidates if isinstance(i, int) and 0 <= i < vocabulary)


def choose_device(name: str | None) -> torch.device:
    """The device called ``name``; None is CUDA where available, else the CPU. Raises CommandError for one not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise CommandError(
            f"--device {name} is not a device of this machine; use cpu, or cuda where PyTorch sees a GPU"
        ) from None
    if device.type == "meta":
        raise CommandError("--device meta holds no numbers; use cpu, or cuda where PyTorch sees a GPU")
    return device


def read_config(folder: Path, path: Path) -> Any:
    """The transformers configuration in ``folder``; ``path`` is what the user named.

    Raises InputError where there is none, one of an architecture that does not come with transformers, or one that
    makes a loader do more than build a network.
    """
    if not path.exists():
        raise missing_model(path)
    if not (folder / CONFIG_NAME).is_file():
        refuse_adapter_file(path)
        other = path.is_file() and path.suffix not in (".safetensors", ".json")
        if other or (path.is_dir() and not any(path.glob("*.safetensors"))):
            raise InputError(
                f"{path} is no model; give a Hugging Face model's folder, or a .safetensors file in one; {_OWN_CLASS}"
            )
        raise InputError(
            f"{path} has no {CONFIG_NAME} beside its weights; the architecture is read from it: copy the original's; "
            f"{_OWN_CLASS}"
        )
    data = checked_config(folder)
    if not isinstance(data.get("model_type"), str):
        raise InputError(f"{folder / CONFIG_NAME} names no model_type; give a Hugging Face model's own {CONFIG_NAME}")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        strip(config)
        return config
    except (ValueError, KeyError):
        raise InputError(
            f"{folder / CONFIG_NAME} has the model_type {data['model_type']!r}, which the installed transformers does "
            "not know; only architectures that come with transformers are run"
        ) from None
    except Exception as error:
        raise InputError(f"{folder / CONFIG_NAME} is refused by transformers: {error}") from None


def read_tokenizer(folder: Path, path: Path) -> Any:
    """The transformers tokenizer in ``folder``; raises InputError where there is none, or it cannot be loaded."""
    if not any((folder / name).is_file() for name in TOKENIZER_NAMES):
        raise InputError(
            f"{path} has no tokenizer beside its weights (such as {TOKENIZER_NAMES[0]}); copy the original model's"
        )
    check_tokenizer(folder)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # tokenizers reports a malformed file as a bare Exception
        raise InputError(
            f"{folder} has a tokenizer that cannot be loaded: {error}; copy the original model's"
        ) from None


def read_network(
    checkpoint: Checkpoint, folder: Path, config: Any, dtype: torch.dtype | str, kind: ModelClass
) -> tuple[Any, TensorMismatch]:
    """The network with the checkpoint's weights, and every tensor that did not fit: those were made up at random.

    Raises InputError for an architecture that is not of this ``kind``, for weights that cannot be read, and where the
    loaded numbers are not the checkpoint's.
    """
    try:
        check_size(kind.auto, config, folder, checkpoint)
        with as_folder(checkpoint, folder) as linked_folder:
            network, info = kind.auto.from_pretrained(
                linked_folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise InputError(f"{checkpoint.root} cannot be loaded: {error}") from None
        raise wrong_kind(checkpoint.root, config, kind) from None
    except PrivctlError:
        raise
    except Exception as error:
        # what an architecture makes of settings that contradict each other: no heads, an unknown activation
        detail = str(error) if isinstance(error, (RuntimeError, OSError)) else f"{type(error).__name__} {error}"
        raise InputError(
            f"{checkpoint.root} cannot be loaded: {detail}; "
            "check that config.json and the index belong to these weights"
        ) from None
    mismatch = TensorMismatch(
        mismatched=tuple(sorted(str(entry[0]) for entry in info.get("mismatched_keys", ()))),
        missing=tuple(sorted(info["missing_keys"])),
        unexpected=tuple(sorted(info["unexpected_keys"])),
    )
    check_loaded(network, checkpoint, mismatch.unexpected, {*mismatch.missing, *mismatch.mismatched})
    return network, mismatch


def check_kind(path: Path, config: Any, kind: ModelClass) -> None:
    """Raise InputError where a network of ``config`` cannot be of this ``kind``, before anything else is missed.

    A sequence-to-sequence model has the configuration of a decoder that stands alone, and other weights. X-MOD runs
    only where one of its languages is set.
    """
    if kind is CAUSAL and getattr(config, "is_encoder_decoder", False):
        raise encoder_decoder(path, config)
    if type(config) not in kind.mapping:
        raise wrong_kind(path, config, kind)
    check_text_alone(path, config, kind.noun)
    languages = getattr(config, "languages", None)
    if languages and getattr(config, "default_language", "") is None:
        raise InputError(
            f"{path} has adapters for {len(languages)} languages, and its {CONFIG_NAME} does not say which the texts "
            f"are in; set default_language there, such as {languages[0]!r}"
        )


def encoder_decoder(path: Path, config: Any) -> InputError:
    """The error for an encoder-decoder where a model of one text is needed."""
    text = type(config) in SEQ2SEQ.mapping
    advice = "give --task seq2seq-lm" if text else f"it reads no text, so give {CAUSAL.noun}"
    return InputError(
        f"{path} is an encoder-decoder model ({config.model_type}), which predicts a text from another input; {advice}"
    )


def wrong_kind(path: Path, config: Any, kind: ModelClass) -> InputError:
    """The error for an architecture that cannot be a network of this ``kind``."""
    auto = kind.auto.__name__
    named = (getattr(config, "architectures", None) or [""])[0]
    if named.endswith(auto.removeprefix("AutoModel")):
        return InputError(
            f"{path} names {named} in its config.json, and transformers' {auto} loads no {config.model_type} model; "
            f"that is part of a larger one, so {kind.advice} by itself"
        )
    return InputError(f"{path} is a {config.model_type} model, which is not {kind.noun}; {kind.advice}")
