"""What a report says of a private search."""

from __future__ import annotations

from typing import Any

from privctl.accounting.runs_law import NumberOfRuns, name_of
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.train.settings.candidates import searched_by
from privctl.train.settings.request import RetrainRequest

PREMISE = Assumption(
    name="selection",
    statement="how many runs there were, and how long they took, stays with whoever made them; the operating system's "
    "coins drew that number and the candidate of each run before the first; of the runs the best on held-out examples, "
    "which are taken to be public, is released alone",
    state=AssumptionState.ASSERTED,
)
WARNINGS = (
    "the guarantee is for the whole search, given that it came to its end: one that is thrown away and begun again, or "
    "settings chosen by looking at other runs on the same data, cost more",
    "the held-out examples chose this run: no guarantee covers them, and their measures flatter it, so measure it on "
    "others",
)


def parameters_of(request: RetrainRequest, runs: NumberOfRuns) -> dict[str, Any]:
    """What a report says of the search."""
    return {
        "settings": searched_by(request),
        "expected_runs": runs.mean,
        "runs_law": name_of(runs.shape),
        "most_runs": runs.most,
    }
