"""``privctl.from_elsewhere``: a report of a finished model of which only the files are known."""

from __future__ import annotations

import os
from pathlib import Path

from privctl.domain.errors import CommandError
from privctl.domain.report import PrivacyReport
from privctl.reports.chain import absolute_path
from privctl.reports.files import checkpoint_artifacts, now, pointer_of, report_beside, versions, write_report
from privctl.reports.of_model import own_reports
from privctl.storage.reader import open_checkpoint

_NAME = "unknown"
_NOTHING_KNOWN = (
    "no privacy guarantee: how this model was trained is not known here, so nothing bounds what it gives away about "
    "the examples that it was trained on"
)


def from_elsewhere(model: str | os.PathLike[str]) -> PrivacyReport:
    """Write a report beside the finished ``model``, with the digests of its files and no guarantee, and return it.

    ``model`` is a safetensors file or a Hugging Face directory that another program made. Reports of later audits,
    noise and trainings refer to this report as their parent.

    Raises CommandError for a model that already has a report, or names one, and for another file in its place;
    InputError for a model that is not in safetensors format.
    """
    place = report_beside(absolute_path(Path(model)))
    with open_checkpoint(Path(model)) as checkpoint:
        if (named := pointer_of(checkpoint)) is not None:
            raise CommandError(f"{model} names its report, {named}; use that one, or ask the maker of the model for it")
        if existing := own_reports(Path(model)):
            raise CommandError(f"{model} has a report already, {os.path.relpath(existing[0].path)}; use that one")
        if os.path.lexists(place):
            raise CommandError(f"{os.path.relpath(place)} exists and is no report of this model; move it away")
        outputs = checkpoint_artifacts(checkpoint, place)
    report = PrivacyReport(
        step="external-training",
        created=now(),
        versions=versions(("blake3",)),
        outputs=outputs,
        parameters={"program": _NAME},
        warnings=(_NOTHING_KNOWN,),
    )
    write_report(place, report)
    return report
