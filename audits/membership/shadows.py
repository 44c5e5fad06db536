"""Scores of shadow models: the files that ``privctl shadow`` writes, and how an audit finds its records in them.

Each shadow model has one file with the mean log-probability of every record of the pool, the records' digests, the
coins that decided which records the model was trained on, and, in its header, the settings shared by all models of a
folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from audits.membership.attack import Shadows
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import TensorDigest
from privctl.reports.files import POINTER
from privctl.storage.arrays import staged_arrays
from privctl.storage.journal import recover
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.storage.atomic import PendingFile

#: The name of the report in a folder of shadow models, and the header key of a model's description.
REPORT_NAME, _KEY = "shadow.report.json", "privctl.shadow"
_PATTERN = "shadow-*.scores.safetensors"
_TYPES = {"lp": "F64", "included": "BOOL", "digests": "U8"}
_DIGEST_SIZE = 16
#: The first word of the coins' seed, so that no other draw under the same seed repeats them.
_COINS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowScores:
    """One shadow model's scores of the pool.

    ``settings`` are shared by all models of a folder and include ``seed`` and ``scoring`` as given by
    ``AuditedModel.describe``. ``weights`` is the model's ``weights_digest``. ``lp`` [records] float64 is the mean
    log-probability (nats), NaN if a record cannot be scored; ``included`` [records] says whether the model was trained
    on it; ``digests`` [records, 16] uint8 identify the records.
    """

    index: int
    settings: Mapping[str, Any]
    weights: str
    lp: NDArray[np.float64]
    included: NDArray[np.bool_]
    digests: NDArray[np.uint8]


def scores_path(folder: Path, index: int) -> Path:
    """The path of the scores of a folder's shadow model."""
    return folder / f"shadow-{index:04d}.scores.safetensors"


def shadow_paths(folder: Path) -> list[Path]:
    """The scores files of a folder's shadow models, in order."""
    return sorted(folder.glob(_PATTERN))


def coins(seed: int, index: int, records: int) -> NDArray[np.bool_]:
    """Which of the ``records`` shadow model ``index`` is trained on: fair coins from numpy's PCG64.

    Models 2 i and 2 i + 1 share coins and take opposite sides, so exactly half of the models are trained on each
    record. With independent coins, one record in 30 would have fewer than two models without it among 8, and one in
    4000 among 16.
    """
    bits = np.random.default_rng((_COINS, seed, index // 2)).integers(2, size=records, dtype=np.uint8)
    return np.asarray(bits == index % 2, dtype=np.bool_)


def weights_digest(tensors: Iterable[TensorDigest]) -> str:
    """Identifies a model independently of its files: BLAKE3 over its tensors' names and digests."""
    lines = (f"{tensor.name} {tensor.digest}\n" for tensor in sorted(tensors, key=lambda tensor: tensor.name))
    return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


def staged_shadow(folder: Path, scores: ShadowScores) -> AbstractContextManager[PendingFile]:
    """One model's scores, written but not yet committed."""
    path = scores_path(folder, scores.index)
    about = {"index": scores.index, "settings": dict(scores.settings), "weights": scores.weights}
    arrays: dict[str, NDArray[Any]] = {name: getattr(scores, name) for name in _TYPES}
    return staged_arrays(path, arrays, {POINTER: REPORT_NAME, _KEY: json.dumps(about, sort_keys=True)})


def read_shadow(path: Path) -> ShadowScores:
    """One model's scores. Raises InputError for a file without scores, or whose coins do not match its seed."""
    with SafetensorsFile(path) as file:
        about = parse_json(file.metadata.get(_KEY, "{}"), f"{path} (header)")
        tensors = {tensor.name: tensor for tensor in file.tensors}
        arrays = {
            name: np.frombuffer(file.read(tensors[name]), {"F64": "<f8", "BOOL": "?", "U8": "u1"}[kind])
            for name, kind in _TYPES.items()
            if name in tensors and tensors[name].dtype == kind
        }
    try:
        digests = arrays["digests"].reshape(-1, _DIGEST_SIZE)
        index, settings, weights = int(about["index"]), dict(about["settings"]), str(about["weights"])
        lp, included, seed = arrays["lp"], arrays["included"], int(settings["seed"])
        if index < 0 or seed < 0:
            raise ValueError("a generator takes no such seed")
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} does not hold the scores of a shadow model; give what privctl shadow wrote") from None
    if not len(lp) == len(included) == len(digests):
        raise InputError(f"{path} holds scores, coins and records of different numbers; run privctl shadow again")
    if not np.array_equal(included, coins(seed, index, len(included))):
        raise InputError(
            f"{path} says that it was trained on records that the coins of its seed {seed} did not choose; halves that "
            "are not random prove nothing, so run privctl shadow again"
        )
    return ShadowScores(index=index, settings=settings, weights=weights, lp=lp, included=included, digests=digests)


def difference(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """The first setting in which the two differ, for an error message; empty if none does."""
    for name in sorted(stored.keys() | expected.keys()):
        if stored.get(name) != expected.get(name):
            return f"{name} {stored.get(name)!r}, not {expected.get(name)!r}"
    return ""


def read_shadows(folder: Path, digests: Sequence[bytes], target: str, scoring: Mapping[str, Any]) -> Shadows:
    """The scores by all shadow models in ``folder`` of the records with ``digests``, in their order.

    ``target`` is the audited model's ``weights_digest``, ``scoring`` how it was scored (``scoring_of``). Raises
    InputError for files that are damaged or inconsistent, for records that are not in the pool, and if some record has
    fewer than 2 models that did not see it; CommandError if the target is one of the models or was scored differently.
    """
    recover(folder)
    paths = shadow_paths(folder)
    if not paths:
        raise InputError(f"{folder} holds no shadow scores ({_PATTERN}); give the folder that privctl shadow wrote")
    models = [read_shadow(path) for path in paths]
    first = models[0]
    for path, model in zip(paths, models, strict=True):
        difference_found = difference(first.settings, model.settings)
        if difference_found or not np.array_equal(first.digests, model.digests):
            raise InputError(
                f"{path} is of another run than {paths[0].name} ({difference_found or 'other records'}); keep "
                "one run per folder"
            )
        if model.weights == target:
            raise CommandError(
                f"the audited model is itself the shadow model of {path}, which knows its own answers; audit another, "
                "or move that file away"
            )
    # Older files do not state a precision; they were scored in float32.
    stored, requested = (
        {"precision": "float32", **scoring_settings}
        for scoring_settings in (first.settings.get("scoring", {}), scoring)
    )
    difference_found = difference(stored, requested)
    if difference_found:
        raise CommandError(
            f"the shadow models in {folder} were scored with {difference_found}; score the model the same way"
        )
    columns = _columns(first.digests, digests, folder)
    shadows = Shadows(
        lp=np.stack([model.lp[columns] for model in models]),
        included=np.stack([model.included[columns] for model in models]),
    )
    if not np.isfinite(shadows.lp).all():
        raise InputError(f"{folder} holds NaN or infinite scores of records to be audited; run privctl shadow again")
    lacking = int(((~shadows.included).sum(axis=0) < 2).sum())
    if lacking:
        raise InputError(
            f"{lacking} of {len(columns)} records have fewer than 2 of the {len(models)} shadow models in {folder} "
            "that were not trained on them; train more with a greater --count"
        )
    return shadows


def summary(shadows: Shadows) -> dict[str, int]:
    """The number of shadow models with and without a record, for a report."""
    inside = shadows.included.sum(axis=0)
    models = len(shadows.lp)
    return {"models": models, "fewest_in": int(inside.min()), "fewest_out": int(models - inside.max())}


def _columns(pool: NDArray[np.uint8], digests: Sequence[bytes], folder: Path) -> NDArray[np.int64]:
    row_indices = {row.tobytes(): i for i, row in enumerate(pool)}
    missing = sum(digest not in row_indices for digest in digests)
    if missing:
        raise InputError(
            f"{missing} of {len(digests)} records are not among those that the shadow models in {folder} were trained "
            "and scored on; run privctl shadow with --data for both files"
        )
    return np.array([row_indices[digest] for digest in digests], dtype=np.int64)
