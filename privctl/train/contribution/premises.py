"""Tests before a run that a record's contribution depends on that record only, pads if that helps, and reports it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of
from privctl.domain.progress import Notify
from privctl.models.encoding import TextOptions, length_limit
from privctl.models.tasks.corpus import CorpusTask
from privctl.train.clipping.norms_and_weights import ROUNDING_MARGIN, Clipping
from privctl.train.contribution import (
    BatchLimits,
    ClippedGradients,
    ComputationStage,
    Dependence,
    DependentRecordsError,
    IndependenceTest,
    LossOnly,
    examine,
)
from privctl.train.contribution.findings import ROUNDING_QUANTIZED, ROUNDING_REDUCED
from privctl.train.precision import Precision
from privctl.train.prepare import TrainingJob

if TYPE_CHECKING:
    import torch
    from torch import nn

#: What adding up may add to a record's part of a float32 sum, relative: sums in blocks err by a few 2^-24.
_OF_A_SUM = 2.0**-22

NAME = "contribution"
#: The key among a report's parameters.
RECORDED = "contribution_test"


def tested(
    job: TrainingJob, network: nn.Module, device: torch.device, stages: Sequence[ComputationStage], notify: Notify
) -> TrainingJob:
    """The job with the test that it passed, and with a padding of all texts where only that makes it pass.

    Raises DependentRecordsError where a record's contribution depends on other records, InputError for what cannot be
    trained.
    """
    limits = limits_of(job)
    try:
        return replace(job, contribution=examine(network, job.task, limits, stages, device))
    except DependentRecordsError as fault:
        alike = limits.length is not None and isinstance(job.task, CorpusTask)
        if limits.length is None or not alike or fault.kind is Dependence.PARAMETERS:
            raise
        padded = replace(job, task=_padded(job.task, limits.length), held_out=_padded(job.held_out, limits.length))
        test = examine(network, padded.task, limits, stages, device)
        notify(
            f"this model makes a record's gradient depend on {fault.kind}; every text is padded to {limits.length} "
            "tokens, whatever it is batched with (--max-length lowers that)"
        )
        return replace(padded, contribution=test)


def rehearsed(job: TrainingJob, network: nn.Module, device: torch.device, precision: Precision) -> TrainingJob:
    """The same for layers that a run computes in few bits, whose test is added to the job's; raises as ``tested``."""
    if not precision.rounds or job.contribution is None:
        return job
    gradients = ClippedGradients(
        network=network, clipping=clipping_of(job), around=precision.rehearsal, rounds=precision.rounds
    )
    reduced = job.recipe.bf16
    stages = [
        ComputationStage(name="quantized layers", view=gradients, rounding=ROUNDING_QUANTIZED, reduced=reduced),
        ComputationStage(
            name="losses as measured",
            view=LossOnly(network=network, around=precision.rehearsal),
            rounding=ROUNDING_QUANTIZED,
            reduced=reduced,
        ),
    ]
    more = examine(network, job.task, limits_of(job), stages, device)
    both = replace(
        job.contribution,
        differences={**job.contribution.differences, **more.differences},
        allowed={**job.contribution.allowed, **more.allowed},
    )
    return replace(job, contribution=both)


def gradient_stages(job: TrainingJob, network: nn.Module, device: torch.device) -> list[ComputationStage]:
    """How gradients are clipped; none where they are not."""
    if not job.request.way.clips:
        return []
    view = ClippedGradients(network=network, clipping=clipping_of(job))
    stages = [ComputationStage(name="float32", view=view)]
    if job.recipe.bf16 or device.type != "cpu":
        precision = "bfloat16" if job.recipe.bf16 else str(device.type)
        stages.append(ComputationStage(name=precision, view=view, rounding=ROUNDING_REDUCED, reduced=job.recipe.bf16))
    return stages


def clipping_of(job: TrainingJob) -> Clipping:
    """How the job's gradients are clipped: with noise, by a margin below the clip norm that its noise is for."""
    inside = 1 - ROUNDING_MARGIN if job.request.way.noised else 1.0
    return Clipping(norm=job.recipe.clip_norm * inside, style=job.request.clipping)


def limits_of(job: TrainingJob) -> BatchLimits:
    """What the run may put through the network at once, from public settings and the number of examples."""
    text, recipe = job.model.text, job.recipe
    length = None if text is None else length_limit(text, TextOptions(max_length=job.request.data.max_length))
    return BatchLimits(
        rows=min(recipe.micro_examples, len(job.task), _most(job)),
        tokens=recipe.micro_tokens,
        length=length,
        classes=len(job.model.labels or ()),
    )


def _most(job: TrainingJob) -> int:
    """More examples than this are in no batch; of a Poisson batch that fails once in 10^10 (Bernstein's bound)."""
    size = job.recipe.batch_size
    sampled = job.request.way.sampled(job.request)
    return math.ceil(size + 6 * math.sqrt(size) + 20) if sampled else math.ceil(size)


def _padded(task: Any, length: int) -> Any:
    """The same with every text padded; what is no text as it is."""
    return replace(task, padding=length) if isinstance(task, CorpusTask) else task


def borne_out(guarantee: Guarantee, job: TrainingJob) -> Guarantee:
    """The guarantee with what its contribution rests on, which without a test is asserted only."""
    assumptions = tuple(
        replace(
            assumption,
            statement=f"{assumption.statement}{_said(job.contribution)}",
            state=_state(job, assumption.state),
        )
        if assumption.name == NAME
        else assumption
        for assumption in guarantee.assumptions
    )
    if any(assumption.name == NAME and "clip norm" in assumption.statement for assumption in guarantee.assumptions):
        assumptions = (*assumptions, _rounding(job))
    before, after = status_of(guarantee.assumptions), status_of(assumptions)
    return replace(guarantee, assumptions=assumptions, status=after if guarantee.status is before else guarantee.status)


def _rounding(job: TrainingJob) -> Assumption:
    """That float rounding of a batch's sum stays within what clipping leaves for it."""
    records, margin = min(_most(job), len(job.task)), ROUNDING_MARGIN
    measured = (
        max(job.contribution.differences.values(), default=math.inf) if job.contribution is not None else math.inf
    )
    # Sums of measured differences of losses have no margin of their own.
    within = records * (measured + _OF_A_SUM) <= margin and not job.request.way.sums_losses
    return Assumption(
        name="rounding of sums",
        statement=f"where a record is added, float rounding moves a batch's sum by no more than the {margin:g} of the "
        "clip norm that clipping leaves for it"
        + (f": {records} records at most, which differ by {measured:.2g} of their size" if within else ""),
        state=AssumptionState.CHECKED if within else AssumptionState.ASSERTED,
    )


def _state(job: TrainingJob, state: AssumptionState) -> AssumptionState:
    untested = job.contribution is None and state is AssumptionState.ENFORCED
    return AssumptionState.ASSERTED if untested else state


def _said(found: IndependenceTest | None) -> str:
    if found is None:
        return "; whether its gradient is its own was not tested"
    if not found.allowed:
        return "; tested on made-up records before the first step: no batch leaves anything behind for another"
    padded = "" if found.padding is None else f", every text being padded to {found.padding} tokens"
    allowed = ", ".join(f"{share:g} of its size in {name}" for name, share in found.allowed.items())
    return (
        "; tested on made-up records before the first step: loss and gradient were the same alone and in batches of up "
        f"to {found.rows} records and {found.tokens} padded tokens, within rounding of {allowed}{padded}"
    )


def recorded(job: TrainingJob) -> dict[str, Any]:
    """What a report's parameters say of the test."""
    test = job.contribution
    if test is None:
        return {}
    return {
        RECORDED: {
            "records": test.rows,
            "tokens": test.tokens,
            "padded_to": test.padding,
            "differences": dict(test.differences),
            "allowed": dict(test.allowed),
        }
    }
