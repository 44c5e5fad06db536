"""The model that is judged, identified by the digests of its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.progress import Advance, silent
from privctl.storage.digest import file_digest
from privctl.storage.folder import files_of
from privctl.storage.reader import SINGLE_NAME, SafetensorsFile, open_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFileContents:
    """A weight file's size in bytes, and the name, dtype and shape of each of its tensors."""

    bytes: int
    tensors: frozenset[tuple[str, str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAtHand:
    """The model given: ``weights`` has the digest of each weight file, ``contents`` what each digest's file contains.

    ``others`` lists the folder's other files that programs read, as paths relative to ``folder``. It is empty for a
    single file, unless that file has the standard name of a model's only weight file.
    """

    path: Path
    folder: Path
    weights: Mapping[Path, str]
    others: tuple[str, ...] = ()
    contents: Mapping[str, WeightFileContents] = field(default_factory=dict)

    @property
    def digests(self) -> frozenset[str]:
        """The digests of all weight files."""
        return frozenset(self.weights.values())

    def companion_digest(self, name: str) -> str | None:
        """The digest of the file ``name`` next to the weights; None if there is none or it cannot be read."""
        path = self.folder / name
        try:
            return file_digest(path) if os.path.isfile(path) else None
        except PrivctlError:
            return None


def model_at(path: Path, advance: Advance = silent) -> ModelAtHand:
    """Read the model at ``path``, a safetensors file or a folder of them. Raises InputError for anything else."""
    with open_checkpoint(path) as checkpoint:
        contents = {file.path: _contents_of(file) for file in checkpoint.files}
    weights = {file: file_digest(file, advance) for file in contents}
    whole = path if path.is_dir() else path.parent if path.name == SINGLE_NAME else None
    files = () if whole is None else files_of(whole)
    return ModelAtHand(
        path=path,
        folder=path if path.is_dir() else path.parent,
        weights=weights,
        others=tuple(
            file.relative_to(whole).as_posix() for file in files if whole is not None and file not in contents
        ),
        contents={digest: contents[file] for file, digest in weights.items()},
    )


def _contents_of(file: SafetensorsFile) -> WeightFileContents:
    return WeightFileContents(
        bytes=file.size, tensors=frozenset((tensor.name, tensor.dtype, tensor.shape) for tensor in file.tensors)
    )
