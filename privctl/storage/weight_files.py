"""Which files of a folder hold a model's weights, in the format of any framework."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: Suffixes of files that hold weights, in any framework's format.
WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".pkl", ".pickle"),
    *(".onnx", ".tflite", ".npz", ".npy", ".ot", ".nemo", ".mlmodel", ".safetensors.index.json", ".bin.index.json"),
)
#: A download that was cut off, such as model.safetensors.incomplete.
_CUT_OFF = re.compile(r".*\.safetensors\.[a-z]+")
#: Folders of a trainer's checkpoints, beside which it may leave a configuration.
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,18})")


def weight_files(folder: Path) -> list[str]:
    """The sorted names of the entries of ``folder`` that hold weights, or are called as if they did.

    Links without a target, folders and files that were cut off count, and so do checkpoints: where weights are lost,
    nothing should be trained from random ones in their place.
    """
    names = sorted(os.listdir(folder))
    own = [name for name in names if name.lower().endswith(WEIGHTS) or _CUT_OFF.fullmatch(name.lower())]
    last = last_checkpoint(folder)
    return own if last is None else [*own, last]


def last_checkpoint(folder: Path) -> str | None:
    """The name of the checkpoint in ``folder`` with the highest number, if any holds weights."""
    found = [(int(match[1]), match[0]) for name in os.listdir(folder) if (match := _CHECKPOINT.fullmatch(name))]
    return next((name for _, name in sorted(found, reverse=True) if _holds_weights(folder / name)), None)


def _holds_weights(folder: Path) -> bool:
    return folder.is_dir() and any(name.lower().endswith(WEIGHTS) for name in os.listdir(folder))
