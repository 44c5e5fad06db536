"""The files in a model's folder that a loader may read, and those with weights that no index names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from privctl.storage.reader import ADAPTER_CONFIG, INDEX_NAME, SINGLE_NAME, Checkpoint

#: Endings of files that hold weights, in any framework's format.
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".pkl", ".pickle"),
    *(".onnx", ".tflite", ".npz", ".npy", ".ot", ".nemo", ".mlmodel", ".safetensors.index.json", ".bin.index.json"),
)
#: Files by which a loader adds an adapter's weights.
_ADAPTERS = ("adapter_config.json", "adapter_model")
#: Endings of what loaders read beside weights.
_READ = (".json", ".jinja", ".txt", ".model", ".py", ".tiktoken", ".vocab", ".bpe", ".yaml", ".yml")
#: Files beside a model that no loader reads.
_FOR_PEOPLE = (
    *(".md", ".report.json", ".audits.jsonl", ".pdf", ".png", ".jpg", ".svg", ".html"),
    *(".in-toto.json", ".dsse.json", ".sigstore.json", ".sig"),
)
_NOTICES = ("license", "notice", "copying", "readme")


def files_of(folder: Path) -> Iterator[Path]:
    """Every file under ``folder``, at any depth, by name; not the hidden ones, nor those that only people read."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not _for_people(name):
                yield Path(root) / name


def companions_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """What a loader reads beside the weights of a model's folder, its index included; nothing for a lone file."""
    if checkpoint.is_directory:
        weights = {file.path.name for file in checkpoint.files}
        for path in files_of(checkpoint.root):
            own = checkpoint.is_adapter and path == checkpoint.root / ADAPTER_CONFIG
            read = path.name.lower().endswith(_READ) and path.name not in weights and not holds_weights(path.name)
            if own or read:
                yield path


def strays_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """Files in a model's folder that hold or add weights, though ``checkpoint`` has no part of them."""
    if not checkpoint.is_directory:
        return
    listed = {checkpoint.root / INDEX_NAME, *(file.path for file in checkpoint.files)}
    if checkpoint.is_adapter:
        listed.add(checkpoint.root / ADAPTER_CONFIG)
    for path in files_of(checkpoint.root):
        if path not in listed and holds_weights(path.name):
            yield path


def holds_weights(name: str) -> bool:
    """Whether a file of this name holds weights, or makes a loader add some."""
    lower = name.lower()
    return name not in (SINGLE_NAME, INDEX_NAME) and (lower.endswith(_WEIGHTS) or lower.startswith(_ADAPTERS))


def _for_people(name: str) -> bool:
    lower = name.lower()
    return lower.endswith(_FOR_PEOPLE) or lower.startswith(_NOTICES)
