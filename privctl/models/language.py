"""Loads models for evaluation: architecture, weights and tokenizer.

Nothing is downloaded, no code that comes with a model is run, and weights are only read from safetensors files.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from privctl.domain.errors import CommandError, InputError, PrivctlError
from privctl.models.adapters import adapter_at, on_base, trained_classes
from privctl.models.choices import FloatFormat
from privctl.models.context import context_of
from privctl.models.four_bit import in_four_bits
from privctl.models.guard.loading import as_folder, check_alone, check_size, checked_config, strip
from privctl.models.guard.tokenizers import check_tokenizer
from privctl.models.guard.weights import check_loaded
from privctl.models.kinds import (
    AUDIO_CLASSIFIER,
    CAUSAL,
    IMAGE_CLASSIFIER,
    MASKED,
    TEXT_CLASSIFIER,
    ModelClass,
    check_kind,
    wrong_kind,
)
from privctl.models.misfits import TensorMismatch, of_body, refuse, without_heads
from privctl.models.precision import convert
from privctl.models.quiet import quiet_transformers
from privctl.storage.reader import (
    Checkpoint,
    holds_adapter,
    missing_model,
    no_weights,
    open_checkpoint,
    refuse_adapter_file,
)

CONFIG_NAME = "config.json"
_OWN_CLASS = "for a network of your own class see docs/python.md#a-model-of-your-own-class"
#: A folder with any of these files holds a tokenizer.
TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
#: All files of a tokenizer, for digests.
TOKENIZER_FILES = (
    *TOKENIZER_NAMES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
#: Files that may hold a chat template beside them.
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LanguageModel:
    """A model ready for evaluation, whose weights do not change.

    ``path`` is what the user named, ``folder`` holds configuration and tokenizer.
    ``network`` and ``tokenizer`` are transformers objects; the tokenizer is None unless the network reads text.
    ``base`` is the base of an adapter at ``path``, in ``base_bits`` bits unless that is None. ``precision`` is the
    requested one.
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
        """The path of the tokenizer's model: the base for an adapter without its own tokenizer, else ``path``."""
        return self.path if self.base is None or tokenizer_folder(self.path) is not None else self.base

    @property
    def context(self) -> int | None:
        """The context length in tokens; None if it is not stated."""
        return context_of(self.network, None)

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary; see ``vocabulary_of``."""
        return vocabulary_of(self.network)

    @property
    def dtype(self) -> str:
        """The number format of the weights, such as ``float32``."""
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

    ``path`` may be an adapter's folder, whose base is the model at ``base``, or else the one that the adapter names.
    The model must be of this ``kind``. ``folder`` is another place for configuration and tokenizer. ``device`` None
    means CUDA if available, else the CPU. Weights are in ``precision``; None means float32 on a CPU, and the format of
    the checkpoint elsewhere. With ``base_bits`` 4, all but heads and adapter is in 4 bits, as in training with
    ``--base-bits 4``. Raises InputError for missing, unsupported or inconsistent files; CommandError for a device that
    is not available.
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
        tokenizer_path = tokenizer_folder(path)
        tokenizer = read_tokenizer(tokenizer_path or folder, path if tokenizer_path else whole) if reads else None
        as_stored = target.type != "cpu" and base_bits is None and precision is None
        dtype: torch.dtype | str = "auto" if as_stored else torch.float32
        if adapter is not None and kind in (TEXT_CLASSIFIER, IMAGE_CLASSIFIER, AUDIO_CLASSIFIER):
            _fit_head(config, adapter.adapter)
        network, misfits = read_network(checkpoint, folder, config, dtype, kind)
        if base_bits is not None:
            in_four_bits(network, target)
        if adapter is not None:
            # The network's class is unchanged; the adapter is in its layers.
            joined = on_base(network, adapter.adapter, trainable=False)
            network, misfits = joined.base_model.model, without_heads(misfits, joined)
    if kind is MASKED:
        # Pretrained checkpoints may contain heads of other tasks.
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
    """``path`` if it is the folder of an adapter with its own tokenizer, which replaces the base's; else None."""
    if path is None or not holds_adapter(path) or not any((path / name).is_file() for name in TOKENIZER_NAMES):
        return None
    return path


def _fit_head(config: Any, adapter: Path) -> None:
    """Set the number of classes to that of the head in the folder ``adapter``, if it has one."""
    classes = trained_classes(adapter)
    if classes not in (None, config.num_labels):
        config.num_labels = classes


def vocabulary_of(network: Any) -> int:
    """The number of token ids: the rows of the input embedding, else ``vocab_size`` of the configuration.

    A network with neither hashes characters (CANINE), and accepts every code point.
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
    """A token id for padding, even for models without a padding token."""
    vocabulary = vocabulary_of(network)
    stated = getattr(network.config, "pad_token_id", None)
    candidates = (stated, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(i) for i in candidates if isinstance(i, int) and 0 <= i < vocabulary)


def choose_device(name: str | None) -> torch.device:
    """The device ``name``; None means CUDA if available, else the CPU. Raises CommandError for an unknown device."""
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
    """The transformers configuration in ``folder``; ``path`` names the model in errors.

    Raises InputError if there is none, if its architecture does not come with transformers, or if it would make a
    loader do more than build a network.
    """
    if not path.exists():
        raise missing_model(path)
    if not (folder / CONFIG_NAME).is_file():
        refuse_adapter_file(path)
        if path.is_dir() and not any(path.glob("*.safetensors")):
            raise InputError(f"{no_weights(path)}; {_OWN_CLASS}")
        if path.is_file() and path.suffix not in (".safetensors", ".json"):
            with open_checkpoint(path):  # raises the error for what the file is
                pass
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
    """The transformers tokenizer in ``folder``; raises InputError if there is none, or if it cannot be loaded."""
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
    """The network with the checkpoint's weights, and the tensors that did not fit, which are random in the network.

    Raises InputError for an architecture that is not of this ``kind``, for weights that cannot be read, and if the
    loaded numbers differ from the checkpoint's.
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
        # Contradictory settings, such as no attention heads or an unknown activation, raise anything.
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
