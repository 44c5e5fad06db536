"""Writes a trained model as a Hugging Face directory, with its report next to it."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from privctl.domain.report import Artifact, PrivacyReport
from privctl.models.adapters import state_of
from privctl.models.language import CONFIG_NAME
from privctl.reports.files import POINTER, commit_with_report
from privctl.storage.atomic import PendingFile, PendingFolder, write_bytes, writing
from privctl.storage.digest import file_digest, hash_tensors
from privctl.storage.reader import ADAPTER_NAME, SINGLE_NAME, SafetensorsFile
from privctl.train.network.tensors import named_tensors, write_tensors
from privctl.train.preparation.places import RELEASED, report_path, require_places, run_folder
from privctl.train.release.adapter import ReleasedAdapter
from privctl.train.release.reload_check import ReferenceAnswers
from privctl.train.release.saved import saved_files

if TYPE_CHECKING:
    from torch import nn

#: Builds the report for a path from the output files.
Describe = Callable[[Path, tuple[Artifact, ...]], PrivacyReport]


def save_network(
    network: nn.Module,
    companion: Any,
    output: Path,
    describe: Describe,
    *,
    reference: ReferenceAnswers,
    adapter: ReleasedAdapter | None = None,
    public: bool,
    force: bool = False,
    beside: Sequence[PendingFile] = (),
) -> PrivacyReport:
    """Write the directory ``output`` and its report; returns the report.

    ``companion`` is a tokenizer or an image scaling, saved by its ``save_pretrained``. With an ``adapter`` only its
    tensors are written, in peft's format. Unless the model is ``public``, only its owner can read it. Directory, report
    and the files ``beside`` them appear together; with ``force`` they replace those of an earlier run. Raises
    CommandError if an output exists already; InputError for weights that are not finite or that the format cannot hold,
    and if transformers loads another network than the ``reference``; FileSystemError if writing fails.
    """
    place = report_path(output)
    require_places(output, force=force)
    with (
        _staged(network, companion, output, reference, adapter, public=public, replaces=force) as pending,
        _marked(output) as mark,
    ):
        report = describe(place, tuple(_outputs(pending.temporary, output.name)))
        require_places(output, force=force)  # again, as it took a while
        commit_with_report([pending, *beside, *mark], place, report, replace=force)
    return report


def rehearse(
    network: nn.Module,
    companion: Any,
    output: Path,
    reference: ReferenceAnswers,
    adapter: ReleasedAdapter | None = None,
) -> None:
    """Raise what ``save_network`` would raise, before the network is trained. Nothing is left on disk."""
    with _staged(network, companion, output, reference, adapter):
        pass


@contextmanager
def _staged(
    network: nn.Module,
    companion: Any,
    output: Path,
    reference: ReferenceAnswers,
    adapter: ReleasedAdapter | None,
    *,
    public: bool = False,
    replaces: bool = False,
) -> Iterator[PendingFolder]:
    """The directory under a temporary name, checked against the ``reference``; deleted if it is not committed."""
    with PendingFolder(output, public=public, replaces=replaces) as pending:
        place = pending.temporary
        pointer = {"format": "pt", POINTER: f"../{report_path(output).name}"}
        for name, content in _companions(network, companion) if adapter is None else adapter.files(companion):
            write_bytes(place / name, content, public=public)
        if adapter is None:
            write_tensors(place / SINGLE_NAME, named_tensors(network), pointer, public=public)
            reference.require(place, network, output)
        else:
            write_tensors(place / ADAPTER_NAME, state_of(network), pointer, public=public)
            adapter.require(place, reference, network, output)
        yield pending


@contextmanager
def _marked(output: Path) -> Iterator[list[PendingFile]]:
    """The file that marks in the state of a run that its model is in place; an empty list if there is no state."""
    folder = run_folder(output)
    if not folder.is_dir():
        yield []
        return
    with PendingFile(folder / RELEASED) as mark:
        yield [mark]


def _companions(network: Any, companion: Any) -> Iterator[tuple[str, bytes]]:
    """The saved configuration and tokenizer (or image scaling), by file name."""
    config = copy.deepcopy(network.config)
    config.architectures = [type(network).__name__]
    config.dtype = network.dtype
    with tempfile.TemporaryDirectory(prefix="privctl-") as scratch, writing(Path(scratch)):
        config.save_pretrained(scratch)
        _state_classes(Path(scratch) / CONFIG_NAME, config)
        if getattr(network, "generation_config", None) is not None:
            network.generation_config.save_pretrained(scratch)
        companion.save_pretrained(scratch)
        yield from saved_files(Path(scratch))


def _state_classes(path: Path, config: Any) -> None:
    """Write the class names into the file at ``path`` if it would be read with another number of classes.

    transformers omits two classes with default names, but BART models without names have three.
    """
    if AutoConfig.from_pretrained(path.parent, local_files_only=True).num_labels == config.num_labels:
        return
    stated = json.loads(path.read_text(encoding="utf-8"))
    stated |= {"id2label": {str(i): name for i, name in config.id2label.items()}, "label2id": config.label2id}
    path.write_text(json.dumps(stated, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _outputs(folder: Path, name: str) -> Iterator[Artifact]:
    """The report's entries of the files in ``folder``, whose final name is ``name``."""
    for path in sorted(folder.iterdir()):
        if path.name in (SINGLE_NAME, ADAPTER_NAME):
            with SafetensorsFile(path) as file:
                hasher = hash_tensors(file)
                yield Artifact(
                    role="model",
                    path=f"{name}/{path.name}",
                    digest=hasher.file_digest,
                    bytes=file.size,
                    tensors=hasher.tensors,
                )
        else:
            size = path.stat().st_size
            yield Artifact(role="companion", path=f"{name}/{path.name}", digest=file_digest(path), bytes=size)
