"""The options of a private search, which several methods share. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from privctl.domain.errors import CommandError
from privctl.domain.ranges import Range
from privctl.train.settings.candidates import candidates_of, require_searchable
from privctl.train.settings.choices import RunsLaw
from privctl.train.settings.method_settings import option

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.train.settings.request import RetrainRequest

_EXPECTED_RUNS = 5.0


class SearchOptions(Protocol):
    """Settings of a method that have the three options below."""

    @property
    def search(self) -> str | None:
        """The candidates; None for a single run."""
        ...

    @property
    def expected_runs(self) -> float | None:
        """Mean of the number of runs."""
        ...

    @property
    def runs_law(self) -> RunsLaw | None:
        """Distribution of the number of runs."""
        ...


def search_option() -> Any:
    """The field ``search``."""
    return option(
        None,
        "Choose settings by results on --held-out: train a random number of times, each with values drawn from these "
        "lists, and release only the best run. Example: 'learning-rate=1e-4,1e-3 clip-norm=0.5,1'. Epsilon covers the "
        "whole search.",
    )


def expected_runs_option() -> Any:
    """The field ``expected_runs``."""
    return option(None, "Mean of the number of runs of --search.  [default: 5]", within=Range(low=1, high=1000))


def runs_law_option() -> Any:
    """The field ``runs_law``."""
    return option(
        None,
        "Distribution of the number of runs. logarithmic costs less, and more often gives a single run; poisson varies "
        "least, and may give no run at all, and no model.  [default: geometric]",
    )


def number_of_runs(settings: SearchOptions) -> NumberOfRuns | None:
    """The distribution of the number of runs of which the best is released; None for a single run."""
    from privctl.accounting.runs_law import NumberOfRuns, shape_of

    if settings.search is None:
        return None
    return NumberOfRuns(
        mean=_EXPECTED_RUNS if settings.expected_runs is None else settings.expected_runs,
        shape=shape_of(settings.runs_law or RunsLaw.GEOMETRIC),
    )


def check_search(request: RetrainRequest, settings: SearchOptions, unsearched: Iterable[tuple[str, bool]] = ()) -> None:
    """Raise CommandError for an invalid search, and for ``unsearched`` flags, which do not go with one, if given."""
    if settings.search is None:
        for flag, given in (("--expected-runs", settings.expected_runs), ("--runs-law", settings.runs_law)):
            if given is not None:
                raise CommandError(f"{flag} needs a search; add --search with what to choose among, or remove it")
        return
    for flag, excluded in unsearched:
        if excluded:
            raise CommandError(
                f"--search is accounted for with independent noise, Poisson batches and fixed clip norms; remove {flag}"
            )
    require_searchable(request, candidates_of(settings.search))
