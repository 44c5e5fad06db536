"""Checks that the settings of DP-SGD can be combined."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError
from privctl.domain.events import Batches
from privctl.train.methods.dp_sgd.settings import (
    DpSgdSettings,
    bands_of,
    batches_of,
    buffers_of,
    group_of,
    largest_batch_of,
    per_draw_of,
    search_of,
    shared_of,
)
from privctl.train.settings.canaries import check_canaries
from privctl.train.settings.choices import ClippingStyle
from privctl.train.settings.searching import check_search

if TYPE_CHECKING:
    from privctl.train.settings.request import RetrainRequest


def check(request: RetrainRequest) -> None:
    """Raise CommandError for settings that cannot be combined, or whose combination is not accounted for."""
    if group_of(request) is not None:
        _check_group(request)
    elif shared_of(request) is not None:
        raise CommandError(
            "--shared-records needs --max-records-per-user, the most records of one user that may be used; give both"
        )
    if per_draw_of(request) > 1:
        _check_per_draw(request)
    if largest_batch_of(request) is not None:
        _check_largest_batch(request)
    _check_search(request)
    _check_adaptive(request)
    if bands_of(request) > 1 or buffers_of(request) is not None:
        _check_correlated(request)
    elif batches_of(request) is Batches.BALLS_AND_BINS and request.secrets is not None:
        raise CommandError(f"--secrets needs Poisson batches; remove it, or --batches {batches_of(request)}")
    check_canaries(request)
    if request.public is not None and request.secrets is not None:
        raise CommandError(
            "--public records are not searched for the secrets of --secrets, which one of them could give away; remove "
            "one of the two"
        )


def _check_adaptive(request: RetrainRequest) -> None:
    """Raise CommandError for settings that adaptive clipping does not support, and its own settings without it."""
    settings, flag = request.settings_as(DpSgdSettings), "--target-unclipped-quantile"
    if settings.target_unclipped_quantile is None:
        for name in ("clip_norm_learning_rate", "unclipped_count_stddev"):
            if getattr(settings, name) is not None:
                raise CommandError(f"--{name.replace('_', '-')} is a setting of adaptive clipping; give {flag} too")
        return
    for given, what in (
        (request.clipping is not ClippingStyle.FLAT, f"--clipping {request.clipping} does not clip whole gradients"),
        (bands_of(request) > 1, "--bands correlates the noise of steps, which needs one clip norm for all"),
        (buffers_of(request) is not None, "--buffers correlates the noise of steps, which needs one clip norm for all"),
        (request.secrets is not None, "--secrets plans the noise of one release a step"),
    ):
        if given:
            raise CommandError(f"{flag} changes the clip norm by how many gradients it clips, and {what}; remove one")


def _check_correlated(request: RetrainRequest) -> None:
    """Raise CommandError for settings that correlated noise does not support."""
    settings = request.settings_as(DpSgdSettings)
    buffered = settings.buffers is not None
    flag = "--buffers" if buffered else "--bands"
    batches = "uses no record in a fixed place" if buffered else "takes no parts in turn"
    for given, what in (
        (buffered and bands_of(request) > 1, "--bands does so in another way"),
        (request.secrets is not None, "--secrets draws each record at a rate of its own"),
        (settings.batches is not Batches.POISSON, f"--batches {settings.batches} {batches}"),
    ):
        if given:
            raise CommandError(f"{flag} correlates the noise of steps, and {what}; remove one")


def _check_per_draw(request: RetrainRequest) -> None:
    """Raise CommandError unless a user is one example whose records are clipped together."""
    if request.data.unit is None:
        raise CommandError("--records-per-draw needs --unit, the field that names a record's user")
    for given, what in (
        (group_of(request) is not None, "--max-records-per-user clips every record by itself"),
        (request.secrets is not None, "--secrets draws every record by itself"),
    ):
        if given:
            raise CommandError(f"--records-per-draw clips several records of a user as one, and {what}; remove one")


def _check_largest_batch(request: RetrainRequest) -> None:
    """Raise CommandError for settings that truncated batches are not accounted for with, and for a low limit."""
    settings = request.settings_as(DpSgdSettings)
    largest = settings.largest_batch
    for given, what in (
        (settings.batches is not Batches.POISSON, f"--batches {settings.batches}"),
        (bands_of(request) > 1, "--bands"),
        (buffers_of(request) is not None, "--buffers"),
        (request.secrets is not None, "--secrets"),
        (group_of(request) is not None, "--max-records-per-user"),
        (search_of(request) is not None, "--search"),
    ):
        if given:
            raise CommandError(
                f"--largest-batch is accounted for in Poisson steps of one rate, each example by itself; remove it, or "
                f"{what}"
            )
    if largest is not None and largest < request.batch_size:
        raise CommandError(
            f"--largest-batch is {largest}, below the expected size, --batch-size {request.batch_size}: most batches "
            "would be cut, and the steps be too short; give more, such as "
            f"{request.batch_size + math.ceil(5 * math.sqrt(request.batch_size))}"
        )


def _check_group(request: RetrainRequest) -> None:
    """Raise CommandError for settings that cannot be combined with users whose records are clipped one by one."""
    settings = request.settings_as(DpSgdSettings)
    if request.data.unit is None:
        raise CommandError("--max-records-per-user needs --unit, the field that names a record's user")
    for given, what in (
        (request.secrets is not None, "--secrets"),
        (settings.batches is not Batches.POISSON, f"--batches {settings.batches}"),
        (bands_of(request) > 1, "--bands"),
        (buffers_of(request) is not None, "--buffers"),
        (settings.target_unclipped_quantile is not None, "--target-unclipped-quantile"),
        (search_of(request) is not None, "--search"),
    ):
        if given:
            raise CommandError(f"--max-records-per-user is accounted for in plain Poisson steps; remove it, or {what}")


def _check_search(request: RetrainRequest) -> None:
    settings = request.settings_as(DpSgdSettings)
    unsearched = (
        ("--bands", bands_of(request) > 1),
        ("--buffers", buffers_of(request) is not None),
        ("--batches", settings.batches is not Batches.POISSON),
        ("--gradient-canaries", settings.gradient_canaries is not None),
        ("--target-unclipped-quantile", settings.target_unclipped_quantile is not None),
    )
    check_search(request, settings, unsearched)
