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


def weight_files(folder: Path) -> list[str]:
    """The sorted names of the entries of ``folder`` that hold weights, or are called as if they did.

    Links without a target, folders and files that were cut off count: where weights are lost, nothing should be trained
    from random ones in their place.
    """
    names = sorted(os.listdir(folder))
    return [name for name in names if name.lower().endswith(WEIGHTS) or _CUT_OFF.fullmatch(name.lower())]
