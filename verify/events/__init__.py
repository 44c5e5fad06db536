"""A second implementation of each kind of event, for verification: one module and one row of ``ROWS`` per kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.events import (
    BandedGaussian,
    BestOfLaplaceRuns,
    BestOfRuns,
    BufferedGaussian,
    DiscreteGaussianNoise,
    DiscreteLaplaceNoise,
    EpsilonDeltaDp,
    Event,
    ExponentialChoice,
    GroupGaussian,
    LaplaceNoise,
    ManyWayResponse,
    MixtureOfGaussians,
    RandomizedResponse,
    RedrawnGaussian,
    ReplacedGaussian,
    SampledGaussian,
    SecretMixture,
    SignBits,
    TreeGaussian,
    TruncatedGaussian,
    UnprotectedRelease,
    ZeroConcentratedDp,
)
from verify.events import (
    approximate_dp,
    banded_gaussian,
    best_of_laplace_runs,
    best_of_runs,
    buffered_gaussian,
    discrete_gaussian,
    discrete_laplace,
    exponential_choice,
    gaussian_mixture,
    group_gaussian,
    laplace,
    many_way_response,
    randomized_response,
    redrawn_gaussian,
    replaced_gaussian,
    sampled_gaussian,
    secret_mixture,
    sign_bits,
    tree_gaussian,
    truncated_gaussian,
    unprotected_release,
    zero_concentrated,
)
from verify.events.row import EventVerification, PlannedAs

#: How each kind of event that composes is verified.
ROWS: dict[type[Event], EventVerification[Any]] = {
    SampledGaussian: sampled_gaussian.ROW,
    GroupGaussian: group_gaussian.ROW,
    ReplacedGaussian: replaced_gaussian.ROW,
    TruncatedGaussian: truncated_gaussian.ROW,
    RedrawnGaussian: redrawn_gaussian.ROW,
    BandedGaussian: banded_gaussian.ROW,
    BufferedGaussian: buffered_gaussian.ROW,
    TreeGaussian: tree_gaussian.ROW,
    LaplaceNoise: laplace.ROW,
    DiscreteLaplaceNoise: discrete_laplace.ROW,
    DiscreteGaussianNoise: discrete_gaussian.ROW,
    MixtureOfGaussians: gaussian_mixture.ROW,
    RandomizedResponse: randomized_response.ROW,
    ManyWayResponse: many_way_response.ROW,
    EpsilonDeltaDp: approximate_dp.ROW,
    ZeroConcentratedDp: zero_concentrated.ROW,
    ExponentialChoice: exponential_choice.ROW,
    UnprotectedRelease: unprotected_release.ROW,
    BestOfRuns: best_of_runs.ROW,
    BestOfLaplaceRuns: best_of_laplace_runs.ROW,
    SecretMixture: secret_mixture.ROW,
}
#: Kinds that can be planned but do not compose.
_NOT_COMPOSED: dict[type[Event], PlannedAs] = {SignBits: sign_bits.PLANNED}


def row_of(event: Event) -> EventVerification[Any]:
    """The row of the event's kind. Raises InputError for a kind without one."""
    if type(event) not in ROWS:
        raise InputError(f"verify does not know events of the kind {event.tag}; use the privctl that wrote the report")
    return ROWS[type(event)]


def planned_kinds() -> Iterator[tuple[type[Event], PlannedAs]]:
    """Yields every kind with its description in plans."""
    yield from ((kind, row.planned) for kind, row in ROWS.items())
    yield from _NOT_COMPOSED.items()
