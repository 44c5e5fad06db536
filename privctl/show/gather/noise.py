"""The root mean square of released tensors with noise, from the released weights alone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import NoiseParameters, parameters_as
from privctl.show.page_data import MODEL_ROLE, TensorNoiseSummary
from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DECODED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_BLOCK = 1 << 22
#: Most tensors of a file that are measured.
_MOST = 2000


def tensors_of(report: PrivacyReport, report_path: Path, largest: int) -> Iterator[TensorNoiseSummary]:
    """The released tensors of the ``report`` at ``report_path``, from files of at most ``largest`` bytes.

    Raises InputError for a malformed file or report, FileSystemError if a file cannot be read.
    """
    if not isinstance(report.mechanism, WeightNoise):
        return
    without_noise = set(parameters_as(NoiseParameters, report).tensors_untouched or ())
    for artifact in report.outputs:
        path = report_path.parent / artifact.path
        if artifact.role != MODEL_ROLE or not os.path.isfile(path) or path.stat().st_size > largest:
            continue
        with SafetensorsFile(path) as file:
            for tensor in file.tensors[:_MOST]:
                if tensor.dtype in _DECODED and tensor.size:
                    rms = _rms(file, tensor)
                    size = tensor.size // _DECODED[tensor.dtype].itemsize
                    if math.isfinite(rms):
                        yield TensorNoiseSummary(
                            name=tensor.name, size=size, rms=rms, noised=tensor.name not in without_noise
                        )


def _rms(file: SafetensorsFile, tensor: TensorInfo) -> float:
    """The root mean square of a tensor, in double precision, read in blocks."""
    total, kind = 0.0, _DECODED[tensor.dtype]
    for start in range(0, tensor.size, _BLOCK):
        values = _decode(np.frombuffer(file.read(tensor, start, min(_BLOCK, tensor.size - start)), kind), tensor.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(np.dot(values, values))
    return math.sqrt(total / (tensor.size // kind.itemsize)) if total >= 0 else math.nan


def _decode(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "BF16":  # the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
    return values.astype(np.float64)
