"""The settings of DP-SGD, and what of a run they decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.domain.events import Batches
from privctl.domain.ranges import AMOUNT, BANDS, BUFFERS, COUNT, FRACTION, IN_GROUP, Range
from privctl.domain.shared_records import SharedRecords
from privctl.train.settings.adaptive_clipping import LEARNING_RATE, AdaptiveClipping, default_count_stddev
from privctl.train.settings.canaries import canaries_option
from privctl.train.settings.choices import RunsLaw
from privctl.train.settings.method_settings import MethodSettings, option
from privctl.train.settings.searching import expected_runs_option, number_of_runs, runs_law_option, search_option

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.train.settings.request import RetrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdSettings(MethodSettings):
    """``batches``: how they are drawn. ``largest_batch``: of a larger draw so many examples are kept.

    ``bands``: over how many steps noise is correlated; None for 1.

    ``buffers``: by how many noise is correlated over all steps, in passes of one order; None for none.
    ``records_per_draw``: up to so many records of a user that a step draws are used, and their mean gradient clipped.
    ``max_records_per_user``: the most records of one user that are used, each clipped by itself; None samples users.
    ``shared_records``: which are used of records that name several users; None where each names one.
    ``target_unclipped_quantile``: the clip norm changes until this share of gradients is not clipped; None keeps it.
    ``clip_norm_learning_rate`` and ``unclipped_count_stddev`` say how fast, and with which noise.
    ``gradient_canaries``: so many gradients of the clip norm are mixed in by coins, to audit the training itself.
    ``search``: settings to choose among by results, in a random number of runs of the mean ``expected_runs``.
    """

    batches: Batches = option(
        Batches.POISSON,
        "How batches are drawn: each record with its own coin in every step, or in one random step of each pass.",
        choices=(str(Batches.POISSON), str(Batches.BALLS_AND_BINS)),
    )
    largest_batch: int | None = option(
        None,
        "Keep so many examples of a batch that is larger, drawn uniformly, so that no step takes more memory or time; "
        "epsilon covers it. `privctl account --mechanism truncated-poisson` shows what it costs.",
        within=COUNT,
    )
    bands: int | None = option(
        None,
        "Correlate the noise of so many steps, so that it cancels in part where they add up; parts of the data take "
        "turns, one a step. `privctl account --mechanism banded` finds the best number.  [default: 1]",
        within=BANDS,
    )
    buffers: int | None = option(
        None,
        "Correlate the noise of all steps by so many buffers (BLT), for long runs; every record is used once an epoch, "
        "always in the same place, and nothing is amplified. `privctl account --mechanism blt` shows what it is worth.",
        within=BUFFERS,
    )
    records_per_draw: int | None = option(
        None,
        "With --unit: a user that a step draws takes part with up to so many records, whose mean gradient is clipped "
        "as one. It costs no privacy, and as many times the work.  [default: 1]",
        within=Range(low=1, high=1024),
    )
    max_records_per_user: int | None = option(
        None,
        "With --unit: clip every record by itself, use the first so many of each user, and protect them together; "
        "without it, a step draws users and uses one record of each, or --records-per-draw.",
        within=IN_GROUP,
    )
    shared_records: SharedRecords | None = option(
        None,
        "Records may name several users, in a list: use all and refuse data where a user is in more than "
        "--max-records-per-user, or choose such that nobody is, for neighbours in which records name the same users: "
        "greedy, most of them (slower), or the first of each user.",
    )
    target_unclipped_quantile: float | None = option(
        None,
        "Adaptive clipping: change --clip-norm from step to step until this share of the gradients is not clipped.",
        within=FRACTION,
    )
    clip_norm_learning_rate: float | None = option(
        None,
        "How fast the clip norm follows --target-unclipped-quantile: the factor on its logarithm.  [default: "
        f"{LEARNING_RATE:g}]",
        within=AMOUNT,
    )
    unclipped_count_stddev: float | None = option(
        None,
        "Standard deviation of the noise on the number of unclipped gradients of a batch, which is released too.  "
        "[default: batch size / 20, at least twice the noise multiplier]",
        within=AMOUNT,
    )
    gradient_canaries: int | None = canaries_option()
    search: str | None = search_option()
    expected_runs: float | None = expected_runs_option()
    runs_law: RunsLaw | None = runs_law_option()


def bands_of(request: RetrainRequest) -> int:
    """Over how many steps noise is correlated."""
    return request.settings_as(DpSgdSettings).bands or 1


def buffers_of(request: RetrainRequest) -> int | None:
    """By how many buffers noise is correlated over all steps; None for none."""
    return request.settings_as(DpSgdSettings).buffers


def group_of(request: RetrainRequest) -> int | None:
    """How many records of a user are used, each clipped by itself; None where a user is one example."""
    return request.settings_as(DpSgdSettings).max_records_per_user


def shared_of(request: RetrainRequest) -> SharedRecords | None:
    """Which records are used of those that name several users."""
    return request.settings_as(DpSgdSettings).shared_records


def largest_batch_of(request: RetrainRequest) -> int | None:
    """How many examples of a larger draw are kept; None for all."""
    return request.settings_as(DpSgdSettings).largest_batch


def batches_of(request: RetrainRequest) -> Batches:
    """How batches are drawn."""
    if buffers_of(request) is not None:
        return Batches.FIXED_ORDER
    if largest_batch_of(request) is not None:
        return Batches.TRUNCATED_POISSON
    return Batches.CYCLIC_POISSON if bands_of(request) > 1 else request.settings_as(DpSgdSettings).batches


def canaries_of(request: RetrainRequest) -> int | None:
    """How many canary gradients are mixed in; None for none."""
    return request.settings_as(DpSgdSettings).gradient_canaries


def search_of(request: RetrainRequest) -> NumberOfRuns | None:
    """How many runs there are of which the best is released; None for one."""
    return number_of_runs(request.settings_as(DpSgdSettings))


def adaptive_of(request: RetrainRequest, noise: float, batch_size: float) -> AdaptiveClipping | None:
    """How the clip norm follows the gradients, at this noise multiplier and batch size; None where it stays."""
    settings = request.settings_as(DpSgdSettings)
    if settings.target_unclipped_quantile is None:
        return None
    return AdaptiveClipping(
        quantile=settings.target_unclipped_quantile,
        learning_rate=settings.clip_norm_learning_rate or LEARNING_RATE,
        count_stddev=settings.unclipped_count_stddev or default_count_stddev(noise, batch_size),
    )


def per_draw_of(request: RetrainRequest) -> int:
    """How many records of a user that is drawn take part, at most."""
    return request.settings_as(DpSgdSettings).records_per_draw or 1
