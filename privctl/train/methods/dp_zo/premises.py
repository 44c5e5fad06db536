"""What a DP-ZO run rests on beside any private training: directions of a public seed, and records that pass alone.

Whether a record's loss is the same to the last bit, whatever went through the network before it, is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from privctl.domain.errors import InputError
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of
from privctl.domain.report import PrivacyReport
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


def with_directions(report: PrivacyReport, settings: DpZoSettings, seed: bytes) -> PrivacyReport:
    """The ``report`` with the directions that the public ``seed`` made, and what its guarantee rests on for them."""
    return replace(
        report,
        parameters={
            **report.parameters,
            "clipping": "differences",
            "directions": settings.directions,
            "perturbation": settings.perturbation,
            "public_seed": seed.hex(),
        },
        guarantees=tuple(_resting(guarantee, settings) for guarantee in report.guarantees),
    )


def _resting(guarantee: Guarantee, settings: DpZoSettings) -> Guarantee:
    assumptions = (*guarantee.assumptions, *_premises(settings))
    return replace(guarantee, assumptions=assumptions, status=status_of(assumptions))


def _premises(settings: DpZoSettings) -> Iterator[Assumption]:
    given = settings.public_seed is not None
    yield Assumption(
        name="public directions",
        statement="the random directions do not depend on the data: a public seed makes them, which "
        + ("was given" if given else "the operating system drew before the first step"),
        state=AssumptionState.ASSERTED if given else AssumptionState.ENFORCED,
    )
    yield Assumption(
        name="lone records",
        statement="each record goes through the network by itself, so that the losses that are compared, and their "
        "rounding, are of that record and of weights that are released anyway",
        state=AssumptionState.ENFORCED,
    )
