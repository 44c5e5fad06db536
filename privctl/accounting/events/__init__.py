"""The privacy cost of each kind of event: one module and one row of ``ROWS`` per kind."""

from __future__ import annotations

from typing import Any

from privctl.accounting.events import (
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
    tree_gaussian,
    truncated_gaussian,
    unprotected_release,
    zero_concentrated,
)
from privctl.accounting.events.row import EventAccounting
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
    TreeGaussian,
    TruncatedGaussian,
    UnprotectedRelease,
    ZeroConcentratedDp,
)

#: Kind of event -> its accounting, for all kinds that compose.
ROWS: dict[type[Event], EventAccounting[Any]] = {
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


def row_of(event: Event) -> EventAccounting[Any]:
    """The row of the event's kind. Raises ValueError for a kind without one."""
    if type(event) not in ROWS:
        raise ValueError(f"no accountant knows events of the kind {event.tag}")
    return ROWS[type(event)]
