"""The configurations beside a model that privctl made: none may make a loader take other weights or code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.models.guard.adapters import BASE
from privctl.models.guard.keys import check_keys, read_object
from privctl.storage.reader import ADAPTER_CONFIG

#: Steps that read a model only after such a check, and write what they read.
_MAKERS = ("retrain", "noise", "replay")
_NAMES = ("config.json", "generation_config.json", ADAPTER_CONFIG)


def check_configurations(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refute each file, as far as it is at hand, whose keys no step lets through; the digest does not excuse it."""
    if report.step not in _MAKERS:
        return
    for artifact in report.outputs:
        place = Path(os.path.normpath(path.parent.absolute() / artifact.path))
        name = PurePosixPath(artifact.path).name
        if name not in _NAMES or not os.path.isfile(place):
            continue
        try:
            data = read_object(place)
            check_keys({key: value for key, value in data.items() if (key, name) != (BASE, ADAPTER_CONFIG)}, place)
        except InputError as fault:
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=str(fault))
