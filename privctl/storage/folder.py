"""The files in a model's folder that a loader may read, and those with weights that no index names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from privctl.domain.errors import InputError
from privctl.storage.reader import ADAPTER_CONFIG, INDEX_NAME, SINGLE_NAME, Checkpoint, open_checkpoint

#: What the role of a file of an adapter's base begins with in a report.
BASE_ROLE = "base-"
#: Endings of files that hold weights, in any framework's format.
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".pkl", ".pickle"),
    *(".onnx", ".tflite", ".npz", ".npy", ".ot", ".nemo", ".mlmodel", ".safetensors.index.json", ".bin.index.json"),
)
#: Files by which a loader adds an adapter's weights.
_ADAPTERS = ("adapter_config.json", "adapter_model")
#: Endings of what only loaders read beside weights, and of all that they read.
_SETTINGS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".vocab", ".bpe", ".yaml", ".yml")
_READ = (*_SETTINGS, ".txt")
#: Files beside a model that no loader reads.
_FOR_PEOPLE = (
    *(".md", ".report.json", ".audits.jsonl", ".pdf", ".png", ".jpg", ".svg", ".html"),
    *(".in-toto.json", ".dsse.json", ".sigstore.json", ".sig"),
)
_NOTICES = ("license", "notice", "copying", "readme")
#: Endings with which these are texts; another ending, such as that of an archive, is looked at.
_OF_NOTICES = ("", ".txt", ".rst", ".md")


def files_of(folder: Path) -> Iterator[Path]:
    """Every file under ``folder``, at any depth, by name; not those that only people read.

    Of what is hidden, only weights. A link to another folder counts as a file: what it leads to is not looked at.
    """
    for root, folders, names in os.walk(folder):
        folders.sort()
        linked = {name for name in folders if os.path.islink(os.path.join(root, name))}
        for name in sorted({*names, *linked}):
            path = Path(root) / name
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if name in linked or (name.lower().endswith(_WEIGHTS) if hidden else not _for_people(name)):
                yield path


def companions_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """What a loader reads beside the weights of a model's folder, its index included; nothing for a lone file."""
    if checkpoint.is_directory:
        weights = {file.path.name for file in checkpoint.files}
        for path in files_of(checkpoint.root):
            own = checkpoint.is_adapter and path == checkpoint.root / ADAPTER_CONFIG
            read = path.name.lower().endswith(_READ) and path.is_file()
            if read and path.name not in weights and (own or not holds_weights(path.name)):
                yield path


def base_files(base: Path) -> dict[str, Path]:
    """The weights of an adapter's ``base`` and what a loader reads beside them, each under its role in a report."""
    with open_checkpoint(base) as checkpoint:
        files = [*(shard.path for shard in checkpoint.files), *companions_of(checkpoint)]
        beside = checkpoint.folder / "config.json"
        if not checkpoint.is_directory and beside.is_file():
            files.append(beside)
        return {BASE_ROLE + file.relative_to(checkpoint.folder).as_posix(): file for file in files}


def strays_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """Files in a model's folder that hold or add weights, though ``checkpoint`` has no part of them."""
    if not checkpoint.is_directory:
        return
    listed = {checkpoint.root / INDEX_NAME, *(file.path for file in checkpoint.files)}
    if checkpoint.is_adapter:
        listed.add(checkpoint.root / ADAPTER_CONFIG)
    for path in files_of(checkpoint.root):
        if path not in listed and holds_weights(path.relative_to(checkpoint.root).as_posix()):
            yield path


def check_links(folder: Path) -> None:
    """Raise InputError where a file that is copied from ``folder`` into a release is a link to a place outside it.

    A folder from elsewhere could have a private file released in this way. The hub's cache links to its own store.
    """
    roots = [Path(os.path.realpath(folder))]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.name.lower().endswith(_READ):
            target = Path(os.path.realpath(path))
            if not any(target.is_relative_to(root) for root in roots):
                raise InputError(
                    f"{path} is a link to {target}, outside the model's folder, and would be released with the model; "
                    "put a copy in its place if it is meant to be"
                )


def holds_weights(name: str) -> bool:
    """Whether the file called ``name`` in a model's folder holds weights, or makes a loader add some."""
    last = PurePosixPath(name.lower()).name
    return name not in (SINGLE_NAME, INDEX_NAME) and (last.endswith(_WEIGHTS) or last.startswith(_ADAPTERS))


def never_released(name: str, *, adapter: bool) -> bool:
    """Whether no step writes the file called ``name`` beside a model: other weights, adapters and code.

    ``adapter``: the model is itself one, whose configuration is written with it.
    """
    if adapter and name == ADAPTER_CONFIG:
        return False
    return holds_weights(name) or name.lower().endswith(".py")


def _for_people(name: str) -> bool:
    lower = name.lower()
    ending = PurePosixPath(lower).suffix
    named = lower.startswith(_NOTICES) and (ending in _OF_NOTICES or ending[1:].isdigit())  # LICENSE-APACHE-2.0
    return lower.endswith(_FOR_PEOPLE) or named
