"""The additional assumptions of a DP-ZO run: directions from a public seed, and records that pass one by one.

A test checks that a record's loss does not depend on the records that passed before it.
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
from privctl.train.methods.dp_zo.differences import single_example_loss
from privctl.train.methods.dp_zo.settings import DpZoSettings
from privctl.train.preparation.job import TrainingJob
from privctl.train.steps.contribution import limits_of

if TYPE_CHECKING:
    import torch
    from torch import nn

#: The name of the test in the report.
REPEATED = "losses of lone records computed again, float32"


def one_at_a_time(job: TrainingJob) -> TrainingJob:
    """The job with one record per pass through the network, whatever the request says."""
    return replace(job, recipe=replace(job.recipe, micro_examples=1))


def with_repeatability_test(job: TrainingJob, network: nn.Module, device: torch.device) -> TrainingJob:
    """The tested ``job``, with how much a synthetic record's loss difference changes when it is computed again.

    The change is relative to the clip norm, over passes after other records in several orders; 0 means identical bits.
    Raises InputError if it exceeds ``ROUNDING``.
    """
    assert job.contribution is not None
    synthetic = probes(job.task, limits_of(job))
    rows = sorted({*synthetic.subjects, synthetic.longest, *(row for fill in synthetic.fills for row in fill)})
    order = [*rows, *reversed(rows), *rows[::2], *rows[1::2]]
    losses: dict[int, list[float]] = {row: [] for row in rows}
    for row in order:
        losses[row].append(float(single_example_loss(network, synthetic.task, row, PLACE, device)))
    gap = max(max(seen) - min(seen) for seen in losses.values())
    # Each of the two losses may move by the gap, and their difference is divided by twice the perturbation.
    moved = gap / job.request.settings_as(DpZoSettings).perturbation / job.recipe.clip_norm
    if not moved <= ROUNDING:
        raise InputError(
            f"a made-up record's difference of losses moves by {moved:.2g} of the clip norm when it is computed again "
            f"after other records, where {ROUNDING:g} is allowed: this model does not repeat itself on {device}; raise "
            "--perturbation, or give --device cpu"
        )
    test = replace(job.contribution, differences={REPEATED: moved}, allowed={REPEATED: ROUNDING})
    return replace(job, contribution=test)


def with_directions(report: PrivacyReport, settings: DpZoSettings, seed: bytes) -> PrivacyReport:
    """The ``report`` with the parameters of the directions from the public ``seed``, and assumptions about them."""
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
