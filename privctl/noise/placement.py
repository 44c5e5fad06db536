"""Where a release is written: output names, temporary files, and the companion files copied with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import CommandError
from privctl.domain.report import Omission
from privctl.models.guard.adapters import adapter_config
from privctl.models.guard.keys import CONFIGURATIONS, check_keys, read_object, without_code
from privctl.reports.files import REPORT_SUFFIX
from privctl.storage.atomic import PendingFile, PendingFolder, require_name, require_regular, write_bytes
from privctl.storage.folder import check_links
from privctl.storage.reader import ADAPTER_CONFIG, INDEX_NAME, Checkpoint

#: Files of a Hugging Face directory that describe the model without holding weights or traces of its training.
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    INDEX_NAME,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A file released with the weights: its ``content``, and the keys of the original that were ``left_out``."""

    name: str
    content: bytes
    left_out: tuple[str, ...] = ()


def companions(checkpoint: Checkpoint) -> tuple[Companion, ...]:
    """The files copied along with ``checkpoint``; none if it is a single file.

    Keys that name code are left out. Raises InputError for a key that would make a loader run code, download, compile,
    or take weights from elsewhere, and for a link to outside the folder.
    """
    if not checkpoint.is_directory:
        return ()
    check_links(checkpoint.root)
    names = (ADAPTER_CONFIG, *COMPANIONS) if checkpoint.is_adapter else COMPANIONS
    return tuple(_companion(path) for path in (checkpoint.root / name for name in names) if path.is_file())


def _companion(path: Path) -> Companion:
    if path.name in CONFIGURATIONS or path.name == ADAPTER_CONFIG:
        if path.name == ADAPTER_CONFIG:
            data = adapter_config(path)
        else:
            data = read_object(path)
            check_keys(data, path)
        content_kept, left_out = without_code(data)
        if left_out:
            content = json.dumps(content_kept, indent=2, ensure_ascii=False).encode() + b"\n"
            return Companion(name=path.name, content=content, left_out=left_out)
    return Companion(name=path.name, content=path.read_bytes())


def report_path(model: Path) -> Path:
    """The path of the report of the model at ``model``: beside it, named after it."""
    return model.with_name(model.name.removesuffix(".safetensors") + REPORT_SUFFIX)


def output_path(checkpoint: Checkpoint, output: Path | None, mark: str, *, private: bool) -> Path:
    """The output's path: ``output`` if given, else ``NAME.private``, or ``NAME.noised``, beside the input.

    ``mark`` is added to the name to distinguish the candidates of one run. Raises CommandError if the path is the
    input, lies inside it, or is not a place for a regular file.
    """
    if output is not None:
        require_regular(output)
    root = Path(os.path.realpath(checkpoint.root))
    suffix = "" if checkpoint.is_directory else ".safetensors"
    stem, word = root.name.removesuffix(suffix), ".private" if private else ".noised"
    if output is None:
        # "." and ".." have no name to derive the output's from
        source = checkpoint.root if checkpoint.root.name not in ("", "..") else root
        return source.parent / f"{stem}{word}{mark}{suffix}"
    if output.is_dir() and not checkpoint.is_directory:
        return output / f"{stem}{word}{mark}{suffix}"
    require_name(output)
    path = output.with_name(output.name.removesuffix(suffix) + mark + suffix)
    place = Path(os.path.realpath(path))
    if place == root:
        raise CommandError(f"the output {path} is the input; choose another --output")
    if checkpoint.is_directory and root in place.parents:
        raise CommandError(f"the output {path} lies inside the input; choose another --output")
    return path


class CandidateOutput:
    """The file, or the folder with companions, in which one candidate is written under a temporary name."""

    def __init__(
        self,
        stack: ExitStack,
        checkpoint: Checkpoint,
        path: Path,
        companions: tuple[Companion, ...] = (),
        *,
        replaces: bool = False,
    ) -> None:
        """Create the temporary folder for ``path`` with its ``companions``, if the checkpoint is a folder.

        ``stack`` removes it unless it is committed. With ``replaces``, it may replace an existing folder.
        """
        self.path = path
        self._files: list[PendingFile] = []
        self._folder = None
        if checkpoint.is_directory:
            self._folder = stack.enter_context(PendingFolder(self.path, public=True, replaces=replaces))
        if self._folder is not None:
            for companion in companions:
                write_bytes(self._folder.temporary / companion.name, companion.content, public=True)

    @property
    def weights(self) -> Path:
        """The path from which a loader can read the weights before the commit."""
        return self._files[0].temporary if self._folder is None else self._folder.temporary

    @property
    def pointer(self) -> str:
        """The path of the report relative to the weight files, as written into their headers."""
        name = report_path(self.path).name
        return name if self._folder is None else f"../{name}"

    def open_file(self, stack: ExitStack, name: str, size: int) -> PendingFile:
        """Create a pending file for the shard ``name``, of ``size`` bytes."""
        path = self.path if self._folder is None else self._folder.temporary / name
        pending = stack.enter_context(PendingFile(path, size, public=True))
        self._files.append(pending)
        return pending

    def close_files(self) -> None:
        """If this is a folder, commit its files; the folder itself keeps its temporary name."""
        if self._folder is not None:
            for pending in self._files:
                pending.commit()

    @property
    def pending(self) -> PendingFile | PendingFolder:
        """The file or folder to be committed."""
        return self._files[0] if self._folder is None else self._folder


def omissions_of(checkpoint: Checkpoint, copied_companions: tuple[Companion, ...]) -> Iterator[Omission]:
    """Keys that were left out of the companion files, and files of the directory that were not copied.

    The latter may hold the weights without noise, or training logs.
    """
    if not checkpoint.is_directory:
        return
    for companion in copied_companions:
        for key in companion.left_out:
            yield Omission(
                what=f"{key} of {companion.name}", reason="it names code that a loader would import or download"
            )
    copied = {ADAPTER_CONFIG} if checkpoint.is_adapter else set()
    copied |= {*COMPANIONS, *(file.path.name for file in checkpoint.files)}
    for path in sorted(checkpoint.root.iterdir()):
        if path.name not in copied and not path.name.startswith("."):
            yield Omission(
                what=f"copy of {path.name}",
                reason="not known to be free of weights or traces of the data",
            )
