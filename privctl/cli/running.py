"""The terminal output of a training: the measures of each epoch, then the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from privctl.cli.options import verbose

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport

_COUNT = ",.0f"
STOPPING = "stopping after this step to save it; interrupt again to stop now and lose unsaved progress"


def on_epoch(measures: Mapping[str, float], *, quiet: bool) -> None:
    """Print an epoch's ``measures`` to standard error, unless ``quiet``."""
    from privctl.show.progress import note

    if measures:
        shown = {name: _COUNT if name.endswith("_tokens") else ".4g" for name in measures}
        parts = (f"{name.replace('_', ' ')} {value:{shown[name]}}" for name, value in measures.items())
        note(", ".join(parts), quiet=quiet)


def rendered(report: PrivacyReport, caveat: str, *, quiet: bool = False, resumed: bool = False) -> str:
    """The report as text for a terminal; when ``quiet``, ``caveat`` is its only note.

    Epochs are listed with ``--verbose``, and where ``on_epoch`` did not print all of them.
    """
    from privctl.show.text.retrain import retrain_text

    return retrain_text(report, verbose=verbose(), only=caveat if quiet else None, epochs=quiet or resumed or verbose())
