"""Whether the released configuration is the one that the training began with, but for what a training changes.

A setting of the architecture changes what the weights compute, so that an audit may attack another model than the one
that was trained; an entry that no loader reads may hold anything. Both config.json are read by transformers, which
fills in what they leave out, and compared entry by entry. The released generation_config.json must be what transformers
writes for a network that begins as the training did.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.models.guard.keys import read_object
from privctl.storage.reader import SafetensorsFile, open_checkpoint
from verify.compare import shown
from verify.files.places import located
from verify.weights.settings import UncheckableError, facts_of
from verify.weights.start import Digest, built, unbuilt

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_START, _BEGUN = "start-", "the model that the training began with"
_WORDS = frozenset({"start-tokenizer.json", "start-tokenizer_config.json", "start-vocab.json", "start-vocab.txt"})
#: Entries that transformers writes into every configuration that it saves, and what they may hold.
_NOTES = {
    "_name_or_path": "", "architectures": r"\['{network}'\]", "dtype": "{numbers}", "torch_dtype": "{numbers}",
    "transformers_version": r"\d+\.[\w.]{1,20}", "_from_model_config": "True|False",
}  # fmt: skip
_NUMBERS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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


def changed_entries(path: Path, report: PrivacyReport, output: Path, digest: Digest) -> Iterator[tuple[str, str]]:
    """Yields a file beside ``output`` and a sentence for each of its entries that is not the start's.

    ``path`` is that of the report, ``output`` that of the model file; ``digest`` gives a file's digest. Raises
    UncheckableError if a configuration of the start is missing, or if one cannot be read.
    """
    parameters = facts_of(report)
    place = begun_with(path, report, _CONFIG, digest)
    if place is None:
        raise UncheckableError(f"the {_CONFIG} of the model that the training began with is not at hand, or not named")
    before, after = (_network(folder, output, parameters.task) for folder in (place.parent, output.parent))
    changes = frozenset(_NOTES) | (_OF_CLASSES if parameters.task in _WITH_CLASSES else frozenset())
    if not {artifact.role for artifact in report.inputs} & _WORDS:
        changes |= _OF_VOCABULARY
    beside = [_CONFIG, *([_GENERATION] if (output.parent / _GENERATION).is_file() else [])]
    for name in beside:
        released = read_settings(output.parent / name)
        if name == _CONFIG:
            first, now = _entries(before.config), _entries(after.config)
        else:
            first, now = _written_generation(before, path, report, place, digest), dict(flat(released))
        yield from ((name, text) for text in differences(first, now, changes))
        yield from ((name, text) for text in _odd_notes(released, type(after).__name__, output))


def begun_with(path: Path, report: PrivacyReport, name: str, digest: Digest) -> Path | None:
    """The file ``name`` that the training began with; None if it is not at hand as recorded, or not named."""
    begun = next((artifact for artifact in report.inputs if artifact.role == _START + name), None)
    place = None if begun is None else located(path, begun.path)
    return place if begun and place and os.path.isfile(place) and _is_same(place, begun, digest) else None


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], changes: frozenset[str], of: str = _BEGUN
) -> Iterator[str]:
    """Yields a sentence for each entry that is one thing ``before``, in ``of``, and another ``after``.

    Entries whose first or last name is in ``changes`` are not compared.
    """
    for entry in sorted(before.keys() | after.keys()):
        own = entry.rpartition(".")[2] not in changes and entry.split(".")[0] not in changes
        if own and before.get(entry) != after.get(entry):
            was, now = (_value(entries.get(entry)) for entries in (before, after))
            yield f"its entry {shown(entry)} {now}, where in {of} it {was}"


def _odd_notes(data: Mapping[str, Any], network: str, output: Path) -> Iterator[str]:
    """Yields a sentence for each note that transformers does not write for such a ``network`` and its tensors."""
    with SafetensorsFile(output) as file:
        numbers = "|".join({_NUMBERS[info.dtype] for info in file.tensors if info.dtype in _NUMBERS})
    for entry, pattern in _NOTES.items():
        written = pattern.replace("{network}", network).replace("{numbers}", numbers)
        if data.get(entry) is not None and not re.fullmatch(written, str(data[entry])):
            yield f"its entry {entry} is {shown(data[entry])}, which transformers does not write here"


def _is_same(place: Path, artifact: Artifact, digest: Digest) -> bool:
    try:
        return digest(place) == artifact.digest
    except PrivctlError:
        return False  # reported by the verdict on the inputs


def _value(value: Any) -> str:
    return "is not set" if value is None else f"is {shown(value)}"


def _network(folder: Path, output: Path, task: str) -> Any:
    """The network that the configuration in ``folder`` describes, without weights, of the size of ``output``."""
    with unbuilt(f"its network cannot be built from {folder / _CONFIG}"), open_checkpoint(output) as released:
        return built(folder, folder / _CONFIG, task, released)


def _entries(config: Any) -> Mapping[str, Any]:
    """The entries of a configuration; those of nested configurations have names with dots."""
    return dict(flat(json.loads(json.dumps(config.to_dict(), default=str))))


def _written_generation(
    network: Any, path: Path, report: PrivacyReport, place: Path, digest: Digest
) -> Mapping[str, Any]:
    """The entries of the generation configuration that transformers writes for a ``network`` before its training.

    They are those of the file that the training began with. Without one they follow from its config.json at ``place``,
    in one way if its weights were read and in another if they were drawn. Raises UncheckableError if the file is gone.
    """
    given = begun_with(path, report, _GENERATION, digest)
    if given is None and any(artifact.role == _START + _GENERATION for artifact in report.inputs):
        raise UncheckableError(f"the {_GENERATION} of the model that the training began with is not at hand")
    stated = getattr(network, "generation_config", None)
    with unbuilt(f"the generation configuration that transformers writes of {place.parent} is not known"):
        if stated is not None and given is not None:
            stated = type(stated).from_pretrained(given.parent, local_files_only=True)
        elif stated is not None and facts_of(report).initial_weights == "checkpoint":
            model = {"config_file_name": place.name, "_from_model_config": True}
            stated = type(stated).from_pretrained(place.parent, local_files_only=True, **model)
        written = {} if stated is None else json.loads(stated.to_json_string(keys_to_pop=["compile_config"]))
    return dict(flat(written))


def read_settings(place: Path) -> Mapping[str, Any]:
    """The JSON object in the file at ``place``; raises UncheckableError if there is none."""
    with unbuilt(f"{place} cannot be read"):
        return read_object(place)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries that are set; those of an object in it have names with dots."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value
