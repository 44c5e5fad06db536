"""Whether the released config.json is the one that the training began with, but for what a training changes.

A setting of the architecture changes what the weights compute, so that an audit may attack another model than the one
that was trained; an entry that no loader reads may hold anything. Both files are read by transformers, which fills in
what they leave out, and compared entry by entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.storage.reader import open_checkpoint
from verify.compare import shown
from verify.files.places import located
from verify.weights.settings import UncheckableError, facts_of
from verify.weights.start import Digest, built, unbuilt

_CONFIG = "config.json"
_START = f"start-{_CONFIG}"
_WORDS = frozenset({"start-tokenizer.json", "start-tokenizer_config.json", "start-vocab.json", "start-vocab.txt"})
#: Entries that transformers writes into every configuration that it saves.
_NOTES = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
#: Entries that follow from the names of classes, for tasks whose heads have classes.
_OF_CLASSES = frozenset({"id2label", "label2id", "num_labels", "pad_token_id"})
_WITH_CLASSES = (
    "text-classification", "token-classification", "question-answering", "image-classification",
    "audio-classification",
)  # fmt: skip
#: Entries that follow from a vocabulary of the training's own.
_OF_VOCABULARY = frozenset({
    "vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id",
})  # fmt: skip


def changed_entries(path: Path, report: PrivacyReport, output: Path, digest: Digest) -> Iterator[str]:
    """Yields a sentence for each entry of the configuration beside ``output`` that is not the start's.

    ``path`` is that of the report, ``output`` that of the model file; ``digest`` gives a file's digest. Raises
    UncheckableError if the start's configuration is missing, or if one of the two cannot be read.
    """
    parameters = facts_of(report)
    if parameters.adapter:
        return  # its configuration is that of peft, whose base is compared with the recorded one
    begun = next((artifact for artifact in report.inputs if artifact.role == _START), None)
    place = None if begun is None else located(path, begun.path)
    if begun is None or place is None or not os.path.isfile(place) or not _is_same(place, begun, digest):
        raise UncheckableError("that of the model that the training began with is not at hand, or not named")
    before, after = (_entries(folder, output, parameters.task) for folder in (place.parent, output.parent))
    changes = _NOTES | (_OF_CLASSES if parameters.task in _WITH_CLASSES else frozenset())
    if not {artifact.role for artifact in report.inputs} & _WORDS:
        changes |= _OF_VOCABULARY
    for entry in sorted(before.keys() | after.keys()):
        own = entry.rpartition(".")[2] not in changes and entry.split(".")[0] not in changes
        if own and before.get(entry) != after.get(entry):
            was, now = (_value(entries.get(entry)) for entries in (before, after))
            yield f"its entry {shown(entry)} {now}, where in the model that the training began with it {was}"


def _is_same(place: Path, artifact: Artifact, digest: Digest) -> bool:
    try:
        return digest(place) == artifact.digest
    except PrivctlError:
        return False  # reported by the verdict on the inputs


def _value(value: Any) -> str:
    return "is not set" if value is None else f"is {shown(value)}"


def _entries(folder: Path, output: Path, task: str) -> Mapping[str, Any]:
    """The entries of the configuration in ``folder``, as a network of the size of ``output`` states them once built.

    Those of nested configurations have names with dots.
    """
    with unbuilt(f"its network cannot be built from {folder / _CONFIG}"), open_checkpoint(output) as released:
        network = built(folder, folder / _CONFIG, task, released)
    return dict(_flat(json.loads(json.dumps(network.config.to_dict(), default=str)), ""))


def _flat(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value
