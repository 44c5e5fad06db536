"""The contribution test of a training job: runs it, pads texts if that is needed to pass, and reports the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import InputError
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of
from privctl.domain.progress import Notify
from privctl.models.activations import fused_activations
from privctl.models.choices import TaskName
from privctl.models.encoding import TextOptions, length_limit
from privctl.models.tasks.corpus import CorpusTask
from privctl.parallel import ALONE, Workers, is_out_of_memory
from privctl.train.clipping.factors import Clipping, rounding_margin
from privctl.train.clipping.promotion import promotion_sentence
from privctl.train.clipping.shards import reset_after_error
from privctl.train.contribution.examine import IndependenceTest, examine
from privctl.train.contribution.findings import ROUNDING_QUANTIZED, ROUNDING_REDUCED, Dependence, DependentRecordsError
from privctl.train.contribution.probes import BatchLimits
from privctl.train.contribution.views import ClippedGradients, ComputationStage, LossOnly
from privctl.train.preparation.job import TrainingJob
from privctl.train.settings.choices import ClippingPasses
from privctl.train.steps.micro_batches import TooLargeError, halved
from privctl.train.steps.precision import Precision

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Relative rounding error of a record's term in a float32 sum: blockwise sums have errors of a few 2^-24.
_SUM_ERROR = 2.0**-22

NAME = "contribution"
#: The key of the test among a report's parameters.
TEST_KEY = "contribution_test"


def run_contribution_test(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    stages: Sequence[ComputationStage],
    notify: Notify,
    workers: Workers = ALONE,
) -> TrainingJob:
    """Run the test; returns the job with its result, and with all texts padded if it passes only then.

    If the largest micro-batch does not fit into memory (that of any process, for ``workers`` in lockstep), the returned
    job has smaller micro-batches.

    Raises DependentRecordsError if a record's contribution depends on other records, and InputError for a network that
    cannot be trained.
    """
    passes = job.request.clipping_passes
    if passes is not ClippingPasses.ONE and not job.request.model.checkpointing:
        notify(f"--clipping-passes {passes} saves memory only with --checkpointing, which is not given")

    def test(smaller: TrainingJob) -> TrainingJob:
        return _tested(smaller, network, device, stages, notify)

    return _within_memory(job, network, device, notify, test, workers)


def run_gradient_test(
    job: TrainingJob, network: nn.Module, device: torch.device, notify: Notify, workers: Workers = ALONE
) -> TrainingJob:
    """``run_contribution_test`` for clipped gradients, with the activations that ``Trainer`` uses."""
    stages = gradient_stages(job, network, device)
    with fused_activations(network):
        return run_contribution_test(job, network, device, stages, notify, workers)


def _within_memory(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    notify: Notify,
    test: Callable[[TrainingJob], TrainingJob],
    workers: Workers,
) -> TrainingJob:
    """Run ``test``, which fills the largest micro-batch, halving the micro-batches until it fits into memory.

    With ``--clipping-passes auto`` and ``--checkpointing``, if even one record does not fit, clipping in two passes is
    tried, starting from the requested micro-batches.
    """
    requested = job.recipe
    while True:
        try:
            return workers.jointly(partial(test, job)) if workers.lockstep else test(job)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        reset_after_error(network)
        try:
            recipe = halved(job.recipe, limits_of(job).length, device, notify, may_pass_twice=job.may_pass_twice)
        except TooLargeError:
            two = job.request.clipping_passes is ClippingPasses.AUTO and job.request.model.checkpointing
            if not (two and job.may_pass_twice):
                raise
            recipe = replace(requested, clipping_passes=2)
            notify(f"the memory of {device} does not hold one record; from now on gradients are clipped in two passes")
        job = replace(job, recipe=recipe)


def _tested(
    job: TrainingJob, network: nn.Module, device: torch.device, stages: Sequence[ComputationStage], notify: Notify
) -> TrainingJob:
    limits = limits_of(job)
    for stage in stages:
        if isinstance(stage.view, ClippedGradients):
            stage.view.passes = job.recipe.clipping_passes
    if isinstance(job.task, CorpusTask) and job.task.padding is None and _chooses_keys(network):
        return _padded(job, network, device, stages, notify, "the length it is padded to, where keys tie")
    try:
        return _notify_promotions(replace(job, contribution=examine(network, job.task, limits, stages, device)), notify)
    except DependentRecordsError as fault:
        alike = limits.length is not None and isinstance(job.task, CorpusTask)
        if limits.length is None or not alike or fault.kind is Dependence.PARAMETERS:
            raise
        return _padded(job, network, device, stages, notify, str(fault.kind))


def _chooses_keys(network: nn.Module) -> bool:
    """Whether attention selects a few keys by an indexer's scores, as DeepSeek's sparse attention does.

    Scores are often exactly 0, and which of tied keys are kept depends on the number of keys, padding included.
    Synthetic records rarely reveal this.
    """
    return any(type(module).__name__.endswith("Indexer") for module in network.modules())


def _padded(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    stages: Sequence[ComputationStage],
    notify: Notify,
    dependence: str,
) -> TrainingJob:
    """Test the job with every text padded to the length limit. Raises InputError if no limit is known."""
    limits = limits_of(job)
    if limits.length is None:
        raise InputError(
            f"this model makes a record's gradient depend on {dependence}, and its config.json states no limit of "
            "tokens to pad every text to; give --max-length"
        )
    padded = replace(job, task=_pad(job.task, limits.length), held_out=_pad(job.held_out, limits.length))
    test = examine(network, padded.task, limits, stages, device)
    notify(
        f"this model makes a record's gradient depend on {dependence}; every text is padded to {limits.length} "
        "tokens, whatever it is batched with (--max-length lowers that)"
    )
    return _notify_promotions(replace(padded, contribution=test), notify)


def _notify_promotions(job: TrainingJob, notify: Notify) -> TrainingJob:
    """Notify which modules are differentiated as a whole and at what cost; returns the job."""
    test = job.contribution
    if test is not None and (sentence := promotion_sentence(test.promoted, test.promoted_share)):
        notify(sentence)
    return job


def run_quantized_test(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    precision: Precision,
    notify: Notify,
    workers: Workers = ALONE,
) -> TrainingJob:
    """Add the test of quantized layers to the job's test, with the errors and limits of ``run_contribution_test``."""
    if not precision.rounds or job.contribution is None:
        return job

    def test(smaller: TrainingJob) -> TrainingJob:
        return _tested_quantized(smaller, network, device, precision)

    with fused_activations(network):
        return _within_memory(job, network, device, notify, test, workers)


def _tested_quantized(job: TrainingJob, network: nn.Module, device: torch.device, precision: Precision) -> TrainingJob:
    assert job.contribution is not None
    gradients = ClippedGradients(
        network=network,
        clipping=clipping_of(job),
        around=precision.rehearsal,
        rounds=precision.rounds,
        promoted=job.contribution.promoted,
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
    quantized_test = examine(network, job.task, limits_of(job), stages, device)
    combined = replace(
        job.contribution,
        differences={**job.contribution.differences, **quantized_test.differences},
        allowed={**job.contribution.allowed, **quantized_test.allowed},
    )
    return replace(job, contribution=combined)


def gradient_stages(job: TrainingJob, network: nn.Module, device: torch.device) -> list[ComputationStage]:
    """The stages that test clipped gradients; none if the method does not clip."""
    if not job.request.method.clips:
        return []
    view = ClippedGradients(network=network, clipping=clipping_of(job))
    stages = [ComputationStage(name="float32", view=view)]
    if job.recipe.bf16 or device.type != "cpu":
        precision = "bfloat16" if job.recipe.bf16 else str(device.type)
        stages.append(ComputationStage(name=precision, view=view, rounding=ROUNDING_REDUCED, reduced=job.recipe.bf16))
    return stages


def clipping_of(job: TrainingJob) -> Clipping:
    """How the job's gradients are clipped: with noise, a margin below the clip norm that the noise is scaled to.

    Without noise the margin is used if two passes in bfloat16 measure and add, as they may differ in rounding.
    """
    recipe = job.recipe
    leaves_margin = job.request.method.noised or (recipe.clipping_passes > 1 and recipe.bf16)
    fraction = 1 - rounding_margin(reduced=recipe.bf16) if leaves_margin else 1.0
    return Clipping(norm=job.recipe.clip_norm * fraction, style=job.request.clipping)


def limits_of(job: TrainingJob) -> BatchLimits:
    """The largest batches that the run may put through the network, from public settings and the number of examples."""
    text, recipe = job.model.text, job.recipe
    length = None if text is None else length_limit(text, TextOptions(max_length=job.request.data.max_length))
    if length is not None and job.model.task is TaskName.SEQ2SEQ_LM:
        length *= 2  # the limit is for each of the two texts
    return BatchLimits(
        rows=min(recipe.micro_examples, len(job.task), _largest_batch(job)),
        tokens=recipe.micro_tokens,
        length=length,
        classes=len(job.model.labels or ()),
    )


def _largest_batch(job: TrainingJob) -> int:
    """The most examples in a batch; a Poisson batch exceeds it with probability at most 1e-10 (Bernstein's bound)."""
    size = job.recipe.batch_size
    sampled = job.request.method.sampled(job.request)
    return math.ceil(size + 6 * math.sqrt(size) + 20) if sampled else math.ceil(size)


def _pad(task: Any, length: int) -> Any:
    """The task with every text padded; other tasks unchanged."""
    return replace(task, padding=length) if isinstance(task, CorpusTask) else task


def with_contribution_test(guarantee: Guarantee, job: TrainingJob) -> Guarantee:
    """The guarantee with the result of the contribution test; without a test the assumption is only asserted."""
    assumptions = tuple(
        replace(
            assumption,
            statement=f"{assumption.statement}{_test_statement(job.contribution)}",
            state=_state(job, assumption.state),
        )
        if assumption.name == NAME
        else assumption
        for assumption in guarantee.assumptions
    )
    if any(assumption.name == NAME and "clip norm" in assumption.statement for assumption in guarantee.assumptions):
        assumptions = (*assumptions, _rounding(job))
    old_status, new_status = status_of(guarantee.assumptions), status_of(assumptions)
    return replace(
        guarantee, assumptions=assumptions, status=new_status if guarantee.status is old_status else guarantee.status
    )


def _rounding(job: TrainingJob) -> Assumption:
    """The assumption that float rounding of a batch's sum stays within the margin that clipping leaves."""
    records, largest, margin = _rounding_figures(job)
    # The test does not tell by how much of their clip norm differences of losses move.
    within = records * (largest + _SUM_ERROR) <= margin and not job.request.method.sums_losses
    return Assumption(
        name="rounding of sums",
        statement=f"where a record is added, float rounding moves a batch's sum by no more than the {margin:g} of the "
        "clip norm that clipping leaves for it"
        + (f": {records} records at most, which differ by {largest:.2g} of their size" if largest < math.inf else ""),
        state=AssumptionState.CHECKED if within else AssumptionState.ASSERTED,
    )


def _rounding_figures(job: TrainingJob) -> tuple[int, float, float]:
    """The most records in a batch, the largest relative difference of one record, and the rounding margin."""
    differences = {} if job.contribution is None else job.contribution.differences
    records = min(_largest_batch(job), len(job.task))
    return records, max(differences.values(), default=math.inf), rounding_margin(reduced=job.recipe.bf16)


def rounding_warning(job: TrainingJob) -> Iterator[str]:
    """A warning if rounding is likely to move a batch's sum by more than the margin that clipping leaves for it.

    Differences in unrelated directions add up to about the square root of their number times one of them.
    """
    if not job.request.method.noised or job.contribution is None or not job.contribution.differences:
        return
    records, largest, margin = _rounding_figures(job)
    if (moved := math.sqrt(records) * largest) > margin:
        remedy = "give --float32" if job.recipe.bf16 else "lower --batch-size"
        yield (
            f"with up to {records} records in a batch, whose gradients differ by {largest:.2g} of their size when the "
            f"batch changes, rounding may move a sum by about {moved:.2g} of the clip norm, more than the {margin:g} "
            f"that clipping leaves for it; the guarantee rests on less, so {remedy}"
        )


def _state(job: TrainingJob, state: AssumptionState) -> AssumptionState:
    untested = job.contribution is None and state is AssumptionState.ENFORCED
    return AssumptionState.ASSERTED if untested else state


def _test_statement(test: IndependenceTest | None) -> str:
    if test is None:
        return "; whether its gradient is its own was not tested"
    if not test.allowed:
        return "; tested on made-up records before the first step: no batch leaves anything behind for another"
    padded = "" if test.padding is None else f", every text being padded to {test.padding} tokens"
    allowed = ", ".join(f"{share:g} of its size in {name}" for name, share in test.allowed.items())
    return (
        "; tested on made-up records before the first step: loss and gradient were the same alone and in batches of up "
        f"to {test.rows} records and {test.tokens} padded tokens, within rounding of {allowed}{padded}"
    )


def test_parameters(job: TrainingJob) -> dict[str, Any]:
    """The test's result as parameters of a report."""
    test = job.contribution
    if test is None:
        return {}
    promoted = {
        "promoted": [
            {
                "module": promotion.module,
                "class": promotion.kind,
                "because": promotion.reason,
                "differentiated": promotion.mode,
            }
            for promotion in test.promoted
        ],
        "promoted_share": test.promoted_share,
    }
    return {
        TEST_KEY: {
            "records": test.rows,
            "tokens": test.tokens,
            "padded_to": test.padding,
            "differences": dict(test.differences),
            "allowed": dict(test.allowed),
            **(promoted if test.promoted else {}),
        }
    }
