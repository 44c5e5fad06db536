"""The model that scores are said to be of: its files by digest, and what its own report says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from audits.lineage import Lineage, lineage_of
from audits.mechanism_curve import Profile
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import Artifact
from privctl.reports.audit_parameters import SCORES_OF_MODEL
from privctl.reports.files import checkpoint_artifacts
from privctl.storage.reader import open_checkpoint

_OF_FILE = (
    "each score in the file is what this model gives to its record, by nothing but the two, and whether the model was "
    "trained on the record is as the file says"
)
_OF_FUNCTION = (
    "the caller's function scored each record by nothing but the record and the network that it was given, whose "
    "weights were compared with the files of this model, and whether the model was trained on the record is as the "
    "caller says"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOfScores:
    """The files of a model as ``inputs`` of a report, its ``lineage``, and the ``condition`` that its scores rest on.

    ``profile`` gives points of a mechanism's trade-off curve; without it, none is tested.
    """

    inputs: tuple[Artifact, ...]
    lineage: Lineage
    condition: Assumption
    profile: Profile | None = None


def scored_model(
    path: Path, report: Path, profile: Profile | None = None, *, by_function: bool = False
) -> ModelOfScores:
    """The model at ``path``, a safetensors file or folder, as referred to by the audit's report at ``report``.

    With ``by_function``, privctl called the caller's function on a network that it compared with these files; otherwise
    the scores come from a file. Raises InputError if ``path`` is not a model, CommandError for a report within its
    folder.
    """
    if path.is_dir() and os.path.dirname(os.path.realpath(report)) == os.path.realpath(path):
        raise CommandError(f"--output {report} lies in the folder of the model, which it would change; choose another")
    with open_checkpoint(path) as checkpoint:
        inputs = checkpoint_artifacts(checkpoint, report)
    return ModelOfScores(
        inputs=inputs,
        lineage=lineage_of(path, inputs, report),
        condition=Assumption(
            name=SCORES_OF_MODEL,
            statement=_OF_FUNCTION if by_function else _OF_FILE,
            state=AssumptionState.ASSERTED,
        ),
        profile=profile,
    )
