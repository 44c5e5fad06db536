"""The parameters, assumptions and warnings of a private search in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privctl.accounting.runs_law import NumberOfRuns, name_of
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
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
    """The report's parameters of the search."""
    return {
        "settings": searched_by(request),
        "expected_runs": runs.mean,
        "runs_law": name_of(runs.shape),
        "most_runs": runs.most,
    }


def earlier_searches_warning(earlier: int) -> str:
    """The warning that ``earlier`` searches of the same data were begun for the same output."""
    searches = counted(earlier, "earlier search", "earlier searches")
    return (
        f"{searches} of these data for this output began before, by the log beside it: whatever anyone learned from "
        "what they showed costs privacy beside what is reported; searches elsewhere are not in that log"
    )


def with_earlier(report: PrivacyReport, search: Mapping[str, Any], earlier: int) -> PrivacyReport:
    """``report`` with the number of ``earlier`` searches of these data in its parameters, an assumption and a warning.

    ``search`` holds the parameters of the search.
    """
    if not earlier:
        return report
    report = replace(report, parameters={**report.parameters, "search": {**search, "earlier": earlier}})
    premise = Assumption(
        name="earlier searches",
        statement=f"what {counted(earlier, 'earlier search', 'earlier searches')} of these data for the same output "
        "showed decided nothing here, and nobody was told of it",
        state=AssumptionState.ASSERTED,
    )

    def resting(guarantee: Guarantee) -> Guarantee:
        assumptions = (*guarantee.assumptions, premise)
        return replace(guarantee, assumptions=assumptions, status=status_of(assumptions))

    return replace(
        report,
        guarantees=tuple(map(resting, report.guarantees)),
        warnings=(*report.warnings, earlier_searches_warning(earlier)),
    )
