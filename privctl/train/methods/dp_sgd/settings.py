"""The settings of DP-SGD, and the properties of a run that they determine."""

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
    """The settings of DP-SGD.

    ``batches``: how batches are drawn.
    ``largest_batch``: the number of examples to which larger draws are cut; None for no limit.
    ``bands``: the number of steps over which noise is correlated; None for 1.
    ``buffers``: the number of buffers that correlate noise over all steps, in passes of a fixed order; None for none.
    ``records_per_draw``: the most records of a sampled user that are used in a step; their mean gradient is clipped.
    ``max_records_per_user``: the most records of one user that are used, each clipped by itself; None samples users.
    ``shared_records``: which records that name several users are used; None if each names one.
    ``target_unclipped_quantile``: the target fraction of gradients that are not clipped; None for a fixed clip norm.
    ``clip_norm_learning_rate``, ``unclipped_count_stddev``: the speed of adaptive clipping and the noise on its count.
    ``gradient_canaries``: the number of canary gradients, included by coin flips, to audit the training itself.
    ``search``: candidates to choose among by results; the number of runs is random, with mean ``expected_runs``.
    """

    batches: Batches = option(
        Batches.POISSON,
        "How batches are drawn: each record by its own coin in every step, or for one random step of each pass.",
        choices=(str(Batches.POISSON), str(Batches.BALLS_AND_BINS)),
    )
    largest_batch: int | None = option(
        None,
        "Truncate larger batches to this many examples, drawn uniformly, so that no step takes more memory or time; "
        "epsilon covers it. `privctl account --mechanism truncated-poisson` shows the cost.",
        within=COUNT,
    )
    bands: int | None = option(
        None,
        "Correlate the noise of this many steps, so that part of it cancels in their sum. Parts of the data take "
        "turns, one per step. `privctl account --mechanism banded` finds the best number.  [default: 1]",
        within=BANDS,
    )
    buffers: int | None = option(
        None,
        "Correlate the noise of all steps by this many buffers (BLT), for long runs. Every record is used once an "
        "epoch, always at the same step, without amplification. `privctl account --mechanism blt` shows the benefit.",
        within=BUFFERS,
    )
    records_per_draw: int | None = option(
        None,
        "With --unit: a user that a step draws takes part with up to this many records, whose mean gradient is clipped "
        "as one. It costs no privacy, but that many times the work.  [default: 1]",
        within=Range(low=1, high=1024),
    )
    max_records_per_user: int | None = option(
        None,
        "With --unit: clip every record separately, use at most the first N of each user, and protect them together. "
        "Without it, a step draws users and uses one record of each, or --records-per-draw.",
        within=IN_GROUP,
    )
    shared_records: SharedRecords | None = option(
        None,
        "Records may name several users, in a list. all: use all records, and refuse data in which a user is in more "
        "than --max-records-per-user. Otherwise choose records so that nobody is, for neighbours in which records name "
        "the same users. greedy: greedily; most: as many as possible (slower); first: the first of each user.",
    )
    target_unclipped_quantile: float | None = option(
        None,
        "Adaptive clipping: change --clip-norm from step to step until this share of the gradients is not clipped.",
        within=FRACTION,
    )
    clip_norm_learning_rate: float | None = option(
        None,
        "How fast the clip norm adapts to --target-unclipped-quantile: the factor on its logarithm.  [default: "
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
    """The number of steps over which noise is correlated."""
    return request.settings_as(DpSgdSettings).bands or 1


def buffers_of(request: RetrainRequest) -> int | None:
    """The number of buffers that correlate noise over all steps; None for none."""
    return request.settings_as(DpSgdSettings).buffers


def group_of(request: RetrainRequest) -> int | None:
    """The largest number of records of a user that are used, each clipped by itself; None if a user is one example."""
    return request.settings_as(DpSgdSettings).max_records_per_user


def shared_of(request: RetrainRequest) -> SharedRecords | None:
    """The rule that chooses among records that name several users; None if each names one."""
    return request.settings_as(DpSgdSettings).shared_records


def largest_batch_of(request: RetrainRequest) -> int | None:
    """The number of examples to which larger draws are cut; None for no limit."""
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
    """The distribution of the number of runs of which the best is released; None for a single run."""
    return number_of_runs(request.settings_as(DpSgdSettings))


def adaptive_of(request: RetrainRequest, noise: float, batch_size: float) -> AdaptiveClipping | None:
    """How the clip norm adapts, given the noise multiplier and the batch size; None if it is fixed."""
    settings = request.settings_as(DpSgdSettings)
    if settings.target_unclipped_quantile is None:
        return None
    return AdaptiveClipping(
        quantile=settings.target_unclipped_quantile,
        learning_rate=settings.clip_norm_learning_rate or LEARNING_RATE,
        count_stddev=settings.unclipped_count_stddev or default_count_stddev(noise, batch_size),
    )


def per_draw_of(request: RetrainRequest) -> int:
    """The largest number of records of a sampled user that are used in a step."""
    return request.settings_as(DpSgdSettings).records_per_draw or 1
