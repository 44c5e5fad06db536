"""The model that is judged, by the digests of its files."""

from __future__ import annotations

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
    """A weight file's contents: its size in bytes, and name, dtype and shape of its tensors."""

    bytes: int
    tensors: frozenset[tuple[str, str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAtHand:
    """``weights`` are the digests of its weight files, ``held`` their contents by digest, ``folder`` their folder.

    ``others`` names the other files of a model's folder that programs read, relative to it, also where the model is
    named by the one weight file in it; empty for a file by itself.
    """

    path: Path
    folder: Path
    weights: Mapping[Path, str]
    others: tuple[str, ...] = ()
    held: Mapping[str, WeightFileContents] = field(default_factory=dict)

    @property
    def digests(self) -> frozenset[str]:
        """Digests of all weight files."""
        return frozenset(self.weights.values())

    def companion(self, name: str) -> str | None:
        """The digest of the file called ``name`` beside the weights; None where there is none that can be read."""
        path = self.folder / name
        try:
            return file_digest(path) if path.is_file() else None
        except PrivctlError:
            return None


def model_at(path: Path, advance: Advance = silent) -> ModelAtHand:
    """The model at ``path``, a safetensors file or a folder of them; raises InputError for anything else."""
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
            each.relative_to(whole).as_posix() for each in files if whole is not None and each not in contents
        ),
        held={digest: contents[file] for file, digest in weights.items()},
    )


def _contents_of(file: SafetensorsFile) -> WeightFileContents:
    return WeightFileContents(
        bytes=file.size, tensors=frozenset((each.name, each.dtype, each.shape) for each in file.tensors)
    )
