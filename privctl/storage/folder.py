"""The files in a model's folder: those that loaders read, and those with weights that no index names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from privctl.domain.errors import InputError
from privctl.storage.reader import ADAPTER_CONFIG, INDEX_NAME, SINGLE_NAME, Checkpoint, open_checkpoint
from privctl.storage.weight_files import WEIGHTS

#: Prefix of the role, in a report, of a file of an adapter's base model.
BASE_ROLE = "base-"
#: Name prefixes of files that make a loader add an adapter's weights.
_ADAPTERS = ("adapter_config.json", "adapter_model")
#: Suffixes of files besides weights that only loaders read, and of all those that loaders read.
_SETTINGS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".vocab", ".bpe", ".yaml", ".yml")
_READ = (*_SETTINGS, ".txt")
#: Files beside a model that no loader reads.
_FOR_PEOPLE = (
    *(".md", ".report.json", ".audits.jsonl", ".pdf", ".png", ".jpg", ".svg", ".html"),
    *(".in-toto.json", ".dsse.json", ".sigstore.json", ".sig"),
)
_NOTICES = ("license", "notice", "copying", "readme")
#: Suffixes with which these are documents; with any other, such as an archive's, the file counts.
_NOTICE_SUFFIXES = ("", ".txt", ".rst", ".md")


def files_of(folder: Path) -> Iterator[Path]:
    """Every file under ``folder``, at any depth, sorted by name within each folder, except documents for people.

    Hidden files are included only if they hold weights. A link to another folder counts as a file and is not followed.
    """
    for root, folders, names in os.walk(folder):
        folders.sort()
        linked = {name for name in folders if os.path.islink(os.path.join(root, name))}
        for name in sorted({*names, *linked}):
            path = Path(root) / name
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if name in linked or (name.lower().endswith(WEIGHTS) if hidden else not _is_for_people(name)):
                yield path


def companions_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """The files that a loader reads besides the weights in a model's folder, including the index; none for one file."""
    if checkpoint.is_directory:
        weights = {file.path.name for file in checkpoint.files}
        for path in files_of(checkpoint.root):
            is_own = checkpoint.is_adapter and path == checkpoint.root / ADAPTER_CONFIG
            read = path.name.lower().endswith(_READ) and path.is_file()
            if read and path.name not in weights and (is_own or not holds_weights(path.name)):
                yield path


def base_files(base: Path) -> dict[str, Path]:
    """The weights of an adapter's ``base`` model and what a loader reads besides, by their role in a report."""
    with open_checkpoint(base) as checkpoint:
        files = [*(shard.path for shard in checkpoint.files), *companions_of(checkpoint)]
        beside = checkpoint.folder / "config.json"
        if not checkpoint.is_directory and beside.is_file():
            files.append(beside)
        return {BASE_ROLE + file.relative_to(checkpoint.folder).as_posix(): file for file in files}


def strays_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """Files in a model's folder that hold or add weights but do not belong to ``checkpoint``."""
    if not checkpoint.is_directory:
        return
    listed = {checkpoint.root / INDEX_NAME, *(file.path for file in checkpoint.files)}
    if checkpoint.is_adapter:
        listed.add(checkpoint.root / ADAPTER_CONFIG)
    for path in files_of(checkpoint.root):
        if path not in listed and holds_weights(path.relative_to(checkpoint.root).as_posix()):
            yield path


def check_links(folder: Path) -> None:
    """Raise InputError if a file that is copied from ``folder`` into a release is a link to outside of it.

    Otherwise a downloaded folder could cause a private file to be released. Links from the Hugging Face hub's cache to
    its own blobs are allowed.
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
    """Whether the file ``name`` in a model's folder holds weights, or makes a loader add some."""
    weights = PurePosixPath(name.lower()).name.endswith(WEIGHTS)
    return name not in (SINGLE_NAME, INDEX_NAME) and (weights or adds_weights(name))


def adds_weights(name: str) -> bool:
    """Whether the file ``name`` in a model's folder makes a loader add an adapter's weights to it."""
    return PurePosixPath(name.lower()).name.startswith(_ADAPTERS)


def never_released(name: str, *, adapter: bool) -> bool:
    """Whether ``name`` is never released with a model, as other weights, adapters and code are not.

    If the model is itself an ``adapter``, its configuration is released with it.
    """
    if adapter and name == ADAPTER_CONFIG:
        return False
    return holds_weights(name) or name.lower().endswith(".py")


def _is_for_people(name: str) -> bool:
    lower = name.lower()
    ending = PurePosixPath(lower).suffix
    named = lower.startswith(_NOTICES) and (ending in _NOTICE_SUFFIXES or ending[1:].isdigit())  # LICENSE-APACHE-2.0
    return lower.endswith(_FOR_PEOPLE) or named
