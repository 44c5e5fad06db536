"""The model at hand, by the digests of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.progress import Advance, silent
from privctl.storage.digest import file_digest
from privctl.storage.folder import files_of
from privctl.storage.reader import open_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAtHand:
    """``weights`` are the digests of its weight files; ``folder`` is where they lie.

    ``others`` names, relative to a model's folder, what else is in it but for people; nothing for a lone file.
    """

    path: Path
    folder: Path
    weights: Mapping[Path, str]
    others: tuple[str, ...] = ()

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


def model_bytes(path: Path) -> int:
    """How much there is to read; raises InputFault where there is no model."""
    with open_checkpoint(path) as checkpoint:
        return sum(file.size for file in checkpoint.files)


def model_at(path: Path, advance: Advance = silent) -> ModelAtHand:
    """The model at ``path``, a safetensors file or a folder of them; raises InputFault for anything else."""
    with open_checkpoint(path) as checkpoint:
        files = [file.path for file in checkpoint.files]
    found = files_of(path) if path.is_dir() else ()
    return ModelAtHand(
        path=path,
        folder=path if path.is_dir() else path.parent,
        weights={file: file_digest(file, advance) for file in files},
        others=tuple(each.relative_to(path).as_posix() for each in found if each not in files),
    )
