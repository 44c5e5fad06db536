"""Restricts what a loader can read to the checked configuration and the opened weights."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.models.guard.keys import STRIPPED, check_keys, read_object
from privctl.models.guard.sizes import check_built, check_counts, numbers_of
from privctl.storage.folder import strays_of
from privctl.storage.reader import INDEX_NAME, SINGLE_NAME, Checkpoint

_CONFIG, _GENERATION = "config.json", "generation_config.json"
#: Files that transformers' Trainer writes beside weights; no loader takes them for weights.
_OF_TRAINER = re.compile(r"training_args\.bin|(optimizer|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth")


def checked_config(folder: Path) -> dict[str, Any]:
    """The configuration in ``folder`` as JSON; raises InputError if it, or the generation configuration, is refused."""
    data = read_object(folder / _CONFIG)
    check_keys(data, folder / _CONFIG)
    check_counts(data, folder / _CONFIG, None)
    if (folder / _GENERATION).is_file():
        check_keys(read_object(folder / _GENERATION), folder / _GENERATION)
    return data


def strip(config: Any) -> None:
    """Remove the attributes that name code from a loaded configuration."""
    for name in STRIPPED:
        if hasattr(config, name):
            delattr(config, name)


def check_size(auto: Any, config: Any, folder: Path, checkpoint: Checkpoint | None) -> None:
    """Raise InputError if the network of ``config`` would be much larger than the weights in ``checkpoint``.

    ``auto`` is the transformers class that builds it, here on the meta device. None for ``checkpoint`` means random
    weights.
    """
    path = folder / _CONFIG
    tensors = None if checkpoint is None else [info for _, info in checkpoint.tensors()]
    check_counts(read_object(path), path, tensors)
    check_built(numbers_of(auto, config), path, tensors)


def check_alone(checkpoint: Checkpoint) -> None:
    """Raise InputError if the folder holds weights or adapters that are not part of ``checkpoint``.

    Files of the Trainer are allowed: no step reads them, or writes them beside a model.
    """
    names = (path.relative_to(checkpoint.root).as_posix() for path in strays_of(checkpoint))
    strays = [name for name in names if not _OF_TRAINER.fullmatch(name)]
    if strays:
        suffix = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
        raise InputError(
            f"{checkpoint.root} also holds weights that are not part of the model: {', '.join(strays[:3])}{suffix}; a "
            "loader may take those instead, or add them, so move them to another folder"
        )


@contextmanager
def as_folder(checkpoint: Checkpoint, folder: Path) -> Iterator[Path]:
    """A temporary folder with links to only the weights in ``checkpoint`` and the configuration in ``folder``."""
    with tempfile.TemporaryDirectory(prefix="privctl-") as scratch:
        place = Path(scratch)
        linked = {file.path.name if checkpoint.is_directory else SINGLE_NAME: file.path for file in checkpoint.files}
        if checkpoint.is_directory and (checkpoint.root / INDEX_NAME).is_file():
            linked[INDEX_NAME] = checkpoint.root / INDEX_NAME
        linked |= {name: folder / name for name in (_CONFIG, _GENERATION) if (folder / name).is_file()}
        for name, path in linked.items():
            (place / name).symlink_to(path.absolute())
        yield place
