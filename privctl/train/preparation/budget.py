"""Derives the settings of a run (steps, sampling rate, noise) from a training request."""

from __future__ import annotations

import math
from collections.abc import Mapping

from privctl.accounting.banded import banded_coefficients, require_bands
from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.buffered_search import buffered_matrix
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.deltas import default_delta
from privctl.accounting.gridded import Released, exact_target
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError
from privctl.domain.events import Batches
from privctl.domain.mechanism import Optimizer
from privctl.domain.shown import counted
from privctl.models.language import choose_device
from privctl.secrets.protection import Protection
from privctl.train.network.half_precision import in_bfloat16
from privctl.train.preparation.ledgers import StepLaw
from privctl.train.preparation.refusals import require_one
from privctl.train.settings.choices import ClippingPasses
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest

_DEFAULT_EPOCHS = 3
#: Beyond this epsilon there is no protection: the noise would be as good as none.
_MOST_EPSILON = 1e8
_TOKENS_CPU, _TOKENS = 2048, 16_384
#: A side release has one number per layer, and no network has more layers than this.
_MOST_LAYERS = 1 << 16


def recipe_for(
    request: RetrainRequest, examples: int, plan: Protection | None = None, trained: int = 0
) -> tuple[TrainingSettings, float | None]:
    """The run's settings, and its delta if it is private. A ``plan`` sets the batch size, the steps and minimum noise.

    ``trained`` is an upper bound on how many parameters are trained; the budget includes the cost of floating-point
    noise on them. Raises CommandError for settings that are out of range or contradict each other or the plan.
    """
    _check(request, examples)
    size = float(request.batch_size) if plan is None else _planned_size(request, plan)
    batches = request.method.batches(request)
    if batches in (Batches.BALLS_AND_BINS, Batches.FIXED_ORDER):
        size = examples / math.ceil(examples / request.batch_size)
        rate = 1 / math.ceil(examples / request.batch_size)
    else:
        rate = size / examples
    steps = _steps(request, examples, rate) if plan is None else _planned_steps(request, plan)
    private = request.method.noised
    delta = (request.budget.delta or default_delta(examples)) if request.method.guaranteed else None
    try:
        law = StepLaw(
            examples=examples,
            sample_rate=rate,
            steps=steps,
            batches=batches,
            coefficients=_coefficients(request.method.bands(request), rate, steps),
            matrix=_matrix(request.method.buffers(request), rate, steps),
            group=request.method.group(request),
            search=request.method.search(request),
            largest_batch=request.method.largest_batch(request),
        )
        noise = 0.0 if not private or delta is None else _noise(request, law, delta, plan, trained)
        return TrainingSettings(
            method=request.method_name,
            steps=steps,
            batch_size=size,
            sample_rate=rate,
            learning_rate=request.rate_for(size),
            optimizer=request.optimizer,
            clip_norm=request.clip_norm,
            noise_multiplier=noise,
            weight_decay=request.weight_decay,
            momentum=request.momentum,
            beta1=request.beta1,
            beta2=request.beta2,
            schedule=request.schedule,
            warmup_steps=request.warmup_steps,
            micro_tokens=_tokens_at_once(request),
            micro_examples=request.micro_examples,
            clipping_passes=2 if request.clipping_passes is ClippingPasses.TWO else 1,
            bf16=in_bfloat16(request),
            batches=batches,
            coefficients=law.coefficients,
            matrix=law.matrix,
            group=law.group,
            search=law.search,
            largest_batch=law.largest_batch,
            adaptive=request.method.adaptive(request, noise, size),
        ), delta
    except ValueError as error:
        raise CommandError(
            flagged(str(error), {"bands", "buffers", "unclipped_count_stddev", *TrainingSettings.__dataclass_fields__})
        ) from None


def mixing_of(request: RetrainRequest, records: int, batch_size: float) -> PublicMixing | None:
    """How the request mixes in ``records`` public records, or None; ``batch_size`` is the expected private one.

    Raises CommandError for numbers out of range.
    """
    public = request.public
    if public is None:
        return None
    size = min(records, max(1, round(batch_size))) if public.batch_size is None else public.batch_size
    try:
        return PublicMixing(weight=public.weight, batch_size=size, records=records, overlap=public.overlap)
    except ValueError as error:
        raise CommandError(str(error)) from None


def numbers_of_step(request: RetrainRequest, trained: int) -> int:
    """How many numbers a step releases that trains ``trained`` parameters; 0 if that is unknown."""
    if (method_numbers := request.method.numbers(request)) is not None:
        return method_numbers
    return trained + 1 if trained and request.method.adaptive(request, 1.0, 1.0) is not None else trained


def _coefficients(bands: int, rate: float, steps: int) -> tuple[float, ...] | None:
    """The coefficients of banded noise; None for independent noise. Raises ValueError for too many bands."""
    if bands == 1:
        return None
    require_bands(bands, rate, steps)
    return banded_coefficients(bands, steps)


def _matrix(buffers: int | None, rate: float, steps: int) -> BufferedMatrix | None:
    """The matrix of noise correlated over all steps, in passes of 1 / ``rate`` steps; None without buffers."""
    return None if buffers is None else buffered_matrix(buffers, round(1 / rate), steps)


def _tokens_at_once(request: RetrainRequest) -> int:
    """The bound on padded tokens per pass through the network; small by default on a CPU, where padding costs time."""
    if request.micro_tokens is not None:
        return request.micro_tokens
    return _TOKENS_CPU if choose_device(request.device).type == "cpu" else _TOKENS


def require_budget(request: RetrainRequest) -> None:
    """Raise CommandError if the method needs a budget and not exactly one of its options is given."""
    if request.method.noised and request.method.guaranteed and request.secrets is None:
        budget = request.budget
        require_one(request.method_name, {"--epsilon": budget.epsilon, "--noise-multiplier": budget.noise_multiplier})


def require_positive(given: Mapping[str, float | None]) -> None:
    """Raise CommandError for a flag in ``given`` whose value is neither None nor a finite number above 0."""
    for flag, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise CommandError(f"{flag} is {value:g}; it must be a finite number above 0")


def _noise(request: RetrainRequest, law: StepLaw, delta: float, plan: Protection | None, trained: int) -> float:
    budget = request.budget
    if plan is not None:
        return _planned_noise(request, law.steps, delta, plan, trained)
    require_budget(request)
    if budget.noise_multiplier is not None:
        return budget.noise_multiplier
    assert budget.epsilon is not None
    measured = request.method.side_releases(request, law.examples, law.steps, law.sample_rate)
    if measured is None:
        runs = 1 if law.search is None else law.search.most
        target = _exact_budget(budget.epsilon, delta, law.steps * numbers_of_step(request, trained) * runs)
        return noise_multiplier_for(*target, law.ledger)
    released = law.steps * trained + measured.releases * _MOST_LAYERS if trained else 0
    target = _exact_budget(budget.epsilon, delta, released)
    measured.check_alone(*target)
    return noise_multiplier_for(*target, lambda noise: law.ledger(noise, measured.event(noise)))


def _exact_budget(epsilon: float, delta: float, released: int) -> tuple[float, float]:
    """The epsilon and delta left for exact arithmetic after the floating-point cost of ``released`` numbers."""
    if not released:
        return epsilon, delta
    return exact_target(Released(coordinates=released), epsilon, delta)


def _planned_noise(request: RetrainRequest, steps: int, delta: float, plan: Protection, trained: int) -> float:
    """The noise multiplier that the plan needs, or a larger one if --epsilon or --noise-multiplier asks for it."""
    budget, least, rate = request.budget, plan.facts.noise_multiplier, plan.largest_probability
    if budget.epsilon is not None and budget.noise_multiplier is not None:
        raise CommandError(
            "--epsilon and --noise-multiplier both set the noise; with --secrets give at most one of them"
        )
    if budget.noise_multiplier is not None:
        if budget.noise_multiplier < least:
            raise CommandError(
                f"--noise-multiplier is {budget.noise_multiplier:g}, and the plan's secrets need at least {least!r}; "
                "remove --noise-multiplier, or plan again for less protection"
            )
        return budget.noise_multiplier
    if budget.epsilon is None:
        return least
    epsilon, delta = _exact_budget(budget.epsilon, delta, steps * trained)
    law = StepLaw(examples=plan.facts.examples, sample_rate=rate, steps=steps)
    if epsilon_bound(law.ledger(least), delta) <= epsilon:
        return least
    return max(least, noise_multiplier_for(epsilon, delta, law.ledger))


def _planned_size(request: RetrainRequest, plan: Protection) -> float:
    requested = None if request.secrets is None else request.secrets.batch_size
    if requested is not None and requested != plan.facts.batch_size:
        raise CommandError(
            f"--batch-size is {requested}, but the plan of --secrets is for {plan.facts.batch_size:g} expected "
            "examples per step; remove --batch-size, or plan again"
        )
    return plan.facts.batch_size


def _planned_steps(request: RetrainRequest, plan: Protection) -> int:
    planned = plan.facts.steps
    if request.steps is not None or request.epochs is not None:
        requested = _steps(request, plan.facts.examples, plan.facts.batch_size / plan.facts.examples)
        if requested != planned:
            flag = "--epochs" if request.steps is None else "--steps"
            raise CommandError(
                f"{flag} asks for {requested} steps, but the plan of --secrets is for {planned}; remove {flag}, or "
                "plan again"
            )
    return planned


def _steps(request: RetrainRequest, examples: int, rate: float) -> int:
    if request.steps is not None and request.epochs is not None:
        raise CommandError("--steps and --epochs both set the length of the run; give one")
    pass_steps = math.ceil(examples / request.batch_size)
    if request.steps is not None:
        accounted = request.method.whole_passes
        if accounted and not request.method.sampled(request) and request.steps % pass_steps:
            raise CommandError(
                f"--steps is {request.steps}; {accounted} accounted for in whole passes of {pass_steps} steps here, so "
                "give a multiple of that, or --epochs"
            )
        return request.steps
    epochs = _DEFAULT_EPOCHS if request.epochs is None else request.epochs
    if not (math.isfinite(epochs) and epochs > 0):
        raise CommandError(f"--epochs is {epochs:g}; it must be above 0")
    if request.method.sampled(request):
        return max(1, math.ceil(round(epochs / rate, 6)))
    if epochs != int(epochs):
        raise CommandError(f"--epochs is {epochs:g}; this method trains in whole epochs, so give a whole number")
    return int(epochs) * pass_steps


def _check(request: RetrainRequest, examples: int) -> None:
    if request.secrets is None:
        _check_batch_size(request, examples)
    delta = request.budget.delta
    if delta is not None and not 0 < delta < 1:
        raise CommandError(f"--delta is {delta:g}; it must be above 0 and below 1")
    require_positive({"--epsilon": request.budget.epsilon, "--noise-multiplier": request.budget.noise_multiplier})
    if (epsilon := request.budget.epsilon) is not None and epsilon > _MOST_EPSILON:
        raise CommandError(
            f"--epsilon is {epsilon:g}; above {_MOST_EPSILON:g} it protects nothing: give a smaller one, or train "
            "without protection (privctl retrain plain)"
        )
    if (request.momentum > 0) != (request.optimizer is Optimizer.MOMENTUM):
        raise CommandError(
            "--momentum is needed with --optimizer momentum and applies to no other; give both or neither"
        )
    request.method.check(request)


def _check_batch_size(request: RetrainRequest, examples: int) -> None:
    if request.batch_size < 1:
        raise CommandError(f"--batch-size is {request.batch_size}; it must be at least 1")
    if request.batch_size > examples:
        raise CommandError(
            f"--batch-size {request.batch_size} exceeds the data, which holds {counted(examples, 'example')}; "
            f"give {examples} at most"
        )
