"""The ROC curves and exposure histograms in an audit's scores file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.report import PrivacyReport
from privctl.show.page_data import ExposureGroup, RocCurve
from privctl.storage.arrays import read_arrays
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCORE = "score."
_WHAT = "an audit's scores"
#: Most curves of one figure.
_MOST = 24
#: Corners closer than this share of a logarithmic axis are drawn as one: a third of a unit in a figure of 350 by 270.
_APART = 4e-3
_LEAST = 1e-4
_BAND_POINTS = 160
_CANARIES = {"canary.exposure": "F64", "canary.included": "BOOL", "canary.copies": "I64", "canary.scored": "BOOL",
             "canary.among": "I64"}  # fmt: skip
_MOST_BITS = 64
_MOST_COPIES = 8


def curves_of(file: SafetensorsFile, report: PrivacyReport) -> Iterator[RocCurve]:
    """The ROC curve of every score in the file, thinned to what is visible, with a band at the audit's confidence.

    Raises InputError if the file is not as an audit writes it.
    """
    names = [t.name for t in file.tensors if t.name.startswith(_SCORE) and t.dtype == "F64" and len(t.shape) == 1]
    if not names:
        return
    arrays = read_arrays(file, {"member": "BOOL", **dict.fromkeys(names[:_MOST], "F64")}, _WHAT)
    member = arrays["member"]
    confidence = {item.method: item.confidence for item in report.evidence if item.quantity == "AUC"}
    for name in names[:_MOST]:
        scores, attack = arrays[name], name.removeprefix(_SCORE)
        if len(scores) != len(member):
            continue
        judged = np.isfinite(scores)  # an attack may omit records, such as those that it was calibrated on
        if member[judged].any() and not member[judged].all():
            yield _curve(attack, scores[judged], member[judged], confidence.get(attack))


def exposures_of(file: SafetensorsFile) -> Iterator[ExposureGroup]:
    """Histograms of exposure in whole bits: included canaries by number of copies, then those left out.

    Raises InputError if the canaries in the file are not as an audit writes them.
    """
    if not any(tensor.name == "canary.exposure" for tensor in file.tensors):
        return
    arrays = read_arrays(file, _CANARIES, _WHAT)
    if len({len(array) for array in arrays.values()}) != 1:
        return
    scored, included = arrays["canary.scored"], arrays["canary.included"]
    for copies in np.unique(arrays["canary.copies"]).tolist()[:_MOST_COPIES]:
        side = scored & included & (arrays["canary.copies"] == copies)
        yield from _group(f"included, {copies} {'copy' if copies == 1 else 'copies'}", side, arrays, included=True)
    yield from _group("left out", scored & ~included, arrays, included=False)


def _group(
    name: str, side: NDArray[Any], arrays: Mapping[str, NDArray[Any]], *, included: bool
) -> Iterator[ExposureGroup]:
    values = arrays["canary.exposure"][side]
    values = values[np.isfinite(values) & (values >= 0) & (values < _MOST_BITS)]
    if len(values):
        ceiling = float(np.log2(max(2, int(arrays["canary.among"][side].max()))))
        counts = np.bincount(np.floor(values + 1e-9).astype(np.int64), minlength=int(np.ceil(min(ceiling, _MOST_BITS))))
        yield ExposureGroup(name=name, counts=tuple(counts.tolist()), ceiling=ceiling, included=included)


def _curve(name: str, scores: NDArray[Any], member: NDArray[Any], confidence: float | None) -> RocCurve:
    members, others = int(member.sum()), int((~member).sum())
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    inside = np.concatenate([[0], np.cumsum(member[order])[last]])
    outside = np.concatenate([[0], last + 1]) - inside
    kept = _kept_corners(outside / others, inside / members)
    points = tuple(zip((outside[kept] / others).tolist(), (inside[kept] / members).tolist(), strict=True))
    band: tuple[tuple[float, float, float], ...] = ()
    if confidence is not None:
        band = tuple(_band(inside[kept], outside[kept] / others, members, 1 - confidence))
    return RocCurve(name=name, points=points, corners=len(inside), band=band, confidence=confidence or 0.95)


def _kept_corners(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
    """The indices of the corners to keep: the first and last in each cell of a grid too fine to see. Shape (n,)."""
    span = -np.log10(_LEAST) * _APART
    cells = [np.floor(np.log10(np.maximum(v, _LEAST)) / span).astype(np.int64) for v in (x, y)]
    change = np.flatnonzero((np.diff(cells[0]) != 0) | (np.diff(cells[1]) != 0))
    return np.unique(np.concatenate([[0], change, change + 1, [len(x) - 1]]))


def _band(hits: NDArray[Any], rates: NDArray[Any], trials: int, alpha: float) -> Iterator[tuple[float, float, float]]:
    """Clopper-Pearson intervals (confidence 1 - ``alpha``) of the true positive rate, as in ``RocCurve.band``."""
    from scipy.special import betaincinv  # here, as importing it takes longer than a page without scores

    within = np.flatnonzero(rates >= _LEAST)
    sampled = (
        within[np.unique(np.linspace(0, len(within) - 1, _BAND_POINTS).astype(np.int64))] if len(within) else within
    )
    count = hits[sampled].astype(np.float64)
    with np.errstate(invalid="ignore"):
        lower = np.where(count == 0, 0.0, betaincinv(np.maximum(count, 1), trials - count + 1, alpha / 2))
        inner = betaincinv(count + 1, np.maximum(trials - count, 1), 1 - alpha / 2)
    upper = np.where(count == trials, 1.0, inner)
    yield from zip(rates[sampled].tolist(), lower.tolist(), upper.tolist(), strict=True)


def scores_path(report: PrivacyReport, report_path: Path) -> Path | None:
    """The path of the scores file that the report names; None if it names none."""
    named = next((artifact for artifact in report.outputs if artifact.role == "scores"), None)
    return None if named is None else report_path.parent / named.path
