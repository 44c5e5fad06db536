"""Everything that must stay the same when a run is resumed, and messages for what changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from privctl.data.recorded import data_digest, digest_of
from privctl.models.language import CHAT_TEMPLATES, CONFIG_NAME, TOKENIZER_FILES
from privctl.models.loading import without_weights
from privctl.storage.digest import file_digest
from privctl.storage.reader import ADAPTER_CONFIG, open_checkpoint
from privctl.train.preparation.job import TrainingJob
from privctl.train.settings.method_settings import OPTION, MethodSettings, flag_of
from privctl.train.settings.request import Method, PublicRequest, RetrainRequest

#: Settings that may change when a run is resumed, as the help of --resume says: device, memory, output and evaluation.
_MAY_CHANGE = {
    "output", "resume", "force", "show_unprotected", "device", "checkpointing", "held_out", "logs",
    "micro_examples", "micro_tokens", "clipping_passes", "fsdp",
}  # fmt: skip
#: Settings that follow from the options and the data, with their names in messages.
_DERIVED = {
    "sample_rate": "the sampling rate", "noise_multiplier": "the noise multiplier", "delta": "delta",
    "coefficients": "the coefficients", "matrix": "the matrix of the noise",
}  # fmt: skip
#: Compared last, so that the message names the cause: the steps may be given, or follow from epochs and batch size.
_COMPARED_LAST = ("steps", *_DERIVED)
#: Keys for the digests of the initial weights and of files beside them, which runs of earlier versions do not state.
_WEIGHTS, BESIDE = "weights", "beside"
#: Key for the digests of the records that the method's own settings name, by setting; older runs do not state them.
_OWN_RECORDS = "own_records"
_READ_BESIDE = (
    CONFIG_NAME, "generation_config.json", "preprocessor_config.json", "processor_config.json", ADAPTER_CONFIG,
    *TOKENIZER_FILES, *CHAT_TEMPLATES,
)  # fmt: skip
#: Prefix of the digest of a file.
_DIGEST = "blake3:"
#: Settings whose option has a different name.
_NAMES = {"model.path": "MODEL", "data.train": "--data", "examples": "--data",
    "public.data": "--public", "public.weight": "--public-weight", "public.batch_size": "--public-batch-size",
    "public.overlap": "--public-overlap",
    "data.columns.text": "--text-column", "data.columns.label": "--label-column"}  # fmt: skip


def fingerprint_of(job: TrainingJob, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that must stay the same when a run is resumed. ``files`` is ``files_of(job)``, if that is known."""
    request = job.request
    read = files_of(job) if files is None else files
    facts = {
        **_settings_of(request),
        **_settings_of(job.recipe),  # overrides settings of the request with the same name
        "examples": len(job.task),
        "data": {**_settings_of(request.data), "train": read["data"]},
        "public": _public_of(request, read["public"]),
        "delta": job.delta,
        "secrets": None if job.plan is None else job.plan.digest,
        "labels": job.model.labels,
        **{name: read[name] for name in (_WEIGHTS, BESIDE, _OWN_RECORDS) if name in read},
    }
    fingerprint: dict[str, Any] = json.loads(json.dumps(facts))
    return fingerprint


def files_of(job: TrainingJob) -> dict[str, Any]:
    """The digests of the files that a run reads: private and public data, weights and what is beside them."""
    request = job.request
    own = own_records(request)
    return {
        "data": digest_of(job.read["data"]) if "data" in job.read else data_digest(request.data.train),
        "public": None if request.public is None else data_digest(request.public.data),
        _WEIGHTS: list(_digests(request, random=job.model.initial_weights == "random")),
        BESIDE: files_beside(request),
        **({_OWN_RECORDS: own} if own else {}),
    }


def own_records(request: RetrainRequest) -> dict[str, str]:
    """The digest of each file of records that the method's own settings name, by setting."""
    values = {setting.name: getattr(request.settings, setting.name) for setting in fields(request.settings)}
    return {name: data_digest(value) for name, value in values.items() if isinstance(value, Path)}


def search_fingerprint(request: RetrainRequest) -> dict[str, Any]:
    """Everything that must stay the same when a search is resumed: also the held-out examples, which choose."""
    requested, data = _settings_of(request), request.data
    facts = {
        **requested,
        "data": {**_settings_of(data), "train": data_digest(data.train)},
        "public": _public_of(request, None if request.public is None else data_digest(request.public.data)),
        "held_out": None if data.held_out is None else data_digest(data.held_out),
        _WEIGHTS: list(_digests(request, random=request.model.from_scratch or without_weights(request.model.path))),
        BESIDE: files_beside(request),
    }
    fingerprint: dict[str, Any] = json.loads(json.dumps(facts))
    return fingerprint


def _public_of(request: RetrainRequest, digest: str | None) -> dict[str, Any]:
    """How public records of this ``digest`` are mixed in; None for each setting if there are none."""
    if request.public is None:
        return dict.fromkeys(each.name for each in fields(PublicRequest))
    return {**_settings_of(request.public), "data": digest}


def _digests(request: RetrainRequest, *, random: bool) -> Iterator[str]:
    """The digests of the files of the initial weights, the same in every process, whichever reads them."""
    model = request.model
    places = (None if random else model.path, model.adapter)
    for place in filter(None, places):
        with open_checkpoint(place) as checkpoint:
            yield from (file_digest(file.path) for file in checkpoint.files)


def files_beside(request: RetrainRequest) -> list[str]:
    """The names and digests of the files that a run reads beside weights: configuration, tokenizer, vocabulary."""
    model = request.model
    folders = [place if place.is_dir() else place.parent for place in (model.path, model.adapter) if place is not None]
    files = [folder / name for folder in folders for name in _READ_BESIDE]
    if model.vocabulary not in (None, "private"):
        files.append(Path(model.vocabulary))
    return [f"{file.name} {file_digest(file)}" for file in files if file.is_file()]


def difference(
    before: Mapping[str, Any], now: Mapping[str, Any], own: type[MethodSettings] = MethodSettings
) -> str | None:
    """The first option in which the fingerprint ``before`` of a run differs from ``now``; None if they agree.

    It completes the phrase "was begun", for example ``with --steps 4, not 5``. Settings that follow from options and
    data are compared last. ``own`` is the method's settings class, for the flags.
    """
    old, new = dict(_leaves(before)), dict(_leaves(now))
    for name in sorted(new, key=_COMPARED_LAST.__contains__):
        if name not in old and (name in (_WEIGHTS, BESIDE) or name.startswith(f"{_OWN_RECORDS}.")):
            continue
        if old.get(name) != new[name]:  # an option that is newer than the saved run was not given then
            return _describe(name, old.get(name), new[name], own)
    return None


def _describe(name: str, before: Any, now: Any, own: type[MethodSettings]) -> str:
    if name == "method":
        return f"as {before}, not {now}"
    if name == _WEIGHTS:
        return "from other weights than MODEL now holds"
    if name == BESIDE:
        changed = sorted({each.partition(" ")[0] for each in {*before} ^ {*now}})
        return f"with another {changed[0] if changed else 'order of files'} beside the weights"
    if name == "examples":
        return f"with {before} records in --data, which now holds {now}"
    if name in _DERIVED:
        return f"with {_DERIVED[name]} {_shown(before)}, which would now be {_shown(now)}"
    flag = _flag(name, own)
    if _absent(before) and not _absent(now):
        return f"without {flag}, which is given now"
    if _absent(now):
        return f"with {flag}{'' if before is True else f' {_shown(before)}'}, which is not given now"
    if str(now).startswith(_DIGEST):
        return f"with another file as {flag}"
    return f"with {flag} {_shown(before)}, not {_shown(now)}"


def _absent(value: Any) -> bool:
    """Whether the option of a setting was not given."""
    return value is None or value is False or value == [] or value == ""


def _flag(name: str, own: type[MethodSettings]) -> str:
    first, _, last = name.rpartition(".")
    if first in ("settings", _OWN_RECORDS):
        return next((flag_of(each) for each in fields(own) if each.name == last and OPTION in each.metadata), last)
    return _NAMES.get(name, "--" + last.replace("_", "-"))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if str(value).startswith(_DIGEST):
        return "FILE"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _leaves(settings: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def _may_change(settings: Any, setting: Field[Any]) -> bool:
    """Whether a setting may change. A method's own settings state it, as their names may equal shared ones."""
    if isinstance(settings, MethodSettings):
        return OPTION in setting.metadata and setting.metadata[OPTION].may_change
    return setting.name in _MAY_CHANGE


def _settings_of(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values, nested dataclasses included."""
    values: dict[str, Any] = {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if _may_change(settings, setting):
            continue
        if isinstance(value, Method):
            values[setting.name] = value.name
        elif is_dataclass(value):
            values[setting.name] = _settings_of(value)
        elif isinstance(value, bytes):
            values[setting.name] = value.hex()
        else:
            values[setting.name] = str(value) if isinstance(value, Path) else value
    return values
