"""Whether a record's loss is the same to the last bit, whatever went through the network before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from privctl.domain.errors import InputError
from privctl.train.contribution.examine import PLACE
from privctl.train.contribution.findings import ROUNDING
from privctl.train.contribution.probes import probes
from privctl.train.methods.dp_zo.differences import lone_loss
from privctl.train.methods.dp_zo.settings import DpZoSettings
from privctl.train.preparation.job import TrainingJob
from privctl.train.steps.contribution import limits_of

if TYPE_CHECKING:
    import torch
    from torch import nn

#: How the report calls the test.
REPEATED = "losses of lone records computed again, float32"


def one_at_a_time(job: TrainingJob) -> TrainingJob:
    """The job, whose records go through the network one by one whatever was asked for."""
    return replace(job, recipe=replace(job.recipe, micro_examples=1))


def with_lone_test(job: TrainingJob, network: nn.Module, device: torch.device) -> TrainingJob:
    """The tested ``job`` with by how much of the clip norm a made-up record's difference moves when computed again.

    It is computed after other records, in several orders; 0 means that every bit was the same. Raises InputError for
    more than ``ROUNDING``.
    """
    assert job.contribution is not None
    made_up = probes(job.task, limits_of(job))
    rows = sorted({*made_up.subjects, made_up.longest, *(row for fill in made_up.fills for row in fill)})
    order = [*rows, *reversed(rows), *rows[::2], *rows[1::2]]
    losses: dict[int, list[float]] = {row: [] for row in rows}
    for row in order:
        losses[row].append(float(lone_loss(network, made_up.task, row, PLACE, device)))
    gap = max(max(seen) - min(seen) for seen in losses.values())
    # Each of the two losses may move by the gap, and their difference is divided by twice the perturbation.
    moved = gap / job.request.settings_as(DpZoSettings).perturbation / job.recipe.clip_norm
    if not moved <= ROUNDING:
        raise InputError(
            f"a made-up record's difference of losses moves by {moved:.2g} of the clip norm when it is computed again "
            f"after other records, where {ROUNDING:g} is allowed: this model does not repeat itself on {device}; raise "
            "--perturbation, or give --device cpu"
        )
    found = replace(job.contribution, differences={REPEATED: moved}, allowed={REPEATED: ROUNDING})
    return replace(job, contribution=found)
