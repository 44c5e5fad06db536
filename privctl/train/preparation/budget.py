"""Derives steps, noise and ledger from a training request."""

from __future__ import annotations

import math
from collections.abc import Mapping

from privctl.accounting.banded import banded_coefficients, require_bands
from privctl.accounting.buffered import BufferedMatrix, buffered_event
from privctl.accounting.buffered_search import buffered_matrix
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.gridded import Released, exact_target
from privctl.accounting.guarantees import default_delta
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.runs_law import NumberOfRuns
from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError
from privctl.domain.events import (
    BandedGaussian,
    Batches,
    BestOfRuns,
    GroupGaussian,
    Ledger,
    SampledGaussian,
)
from privctl.domain.mechanism import Optimizer
from privctl.models.language import choose_device
from privctl.secrets.protection import Protection
from privctl.train.network.half_precision import in_bfloat16
from privctl.train.settings.choices import ClippingPasses
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest

_DEFAULT_EPOCHS = 3
_TOKENS_CPU, _TOKENS = 2048, 16_384
#: A measurement shows one number a layer; no network has more layers.
_MOST_LAYERS = 1 << 16


def recipe_for(
    request: RetrainRequest, examples: int, plan: Protection | None = None, trained: int = 0
) -> tuple[TrainingSettings, float | None]:
    """The run's settings, and its delta if it is private. A ``plan`` sets batches, steps and least noise.

    A step changes at most ``trained`` numbers of the network; the budget includes the cost of floating-point noise on
    them. Raises CommandError for settings that contradict each other or the plan, or are out of range.
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
    search = request.method.search(request)
    try:
        coefficients = _coefficients(request.method.bands(request), rate, steps)
        matrix = _matrix(request.method.buffers(request), rate, steps)
        noise = 0.0
        if private and delta is not None:
            noise = _noise(request, examples, rate, steps, delta, plan, trained, coefficients or matrix, search)
        return TrainingSettings(
            method=request.method_name,
            steps=steps,
            batch_size=size,
            sample_rate=rate,
            learning_rate=request.learning_rate,
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
            coefficients=coefficients,
            matrix=matrix,
            group=request.method.group(request),
            search=search,
            adaptive=request.method.adaptive(request, noise, size),
        ), delta
    except ValueError as error:
        raise CommandError(
            flagged(str(error), {"bands", "buffers", "unclipped_count_stddev", *TrainingSettings.__dataclass_fields__})
        ) from None


def numbers_of_step(request: RetrainRequest, trained: int) -> int:
    """How many numbers a step releases, which trains so many; 0 where that is not known."""
    if (own := request.method.numbers(request)) is not None:
        return own
    return trained + 1 if trained and request.method.adaptive(request, 1.0, 1.0) is not None else trained


def _coefficients(bands: int, rate: float, steps: int) -> tuple[float, ...] | None:
    """Those of correlated noise; None for noise of each step's own. Raises ValueError for too many bands."""
    if bands == 1:
        return None
    require_bands(bands, rate, steps)
    return banded_coefficients(bands, steps)


def _matrix(buffers: int | None, rate: float, steps: int) -> BufferedMatrix | None:
    """That of noise correlated over all steps, in passes of 1 / ``rate``; None without buffers."""
    return None if buffers is None else buffered_matrix(buffers, round(1 / rate), steps)


def _tokens_at_once(request: RetrainRequest) -> int:
    """How many padded tokens pass at once; by default few on a CPU, where padding would waste time."""
    if request.micro_tokens is not None:
        return request.micro_tokens
    return _TOKENS_CPU if choose_device(request.device).type == "cpu" else _TOKENS


def ledger_of(
    recipe: TrainingSettings, spent: int, plan: Protection | None = None, measured: SampledGaussian | None = None
) -> Ledger:
    """The ledger of ``spent`` private steps and of the side releases ``measured``, for any one record.

    If records have probabilities of their own, the largest is used for all: drawing a record more often never lowers
    its privacy loss.
    """
    rate = recipe.sample_rate if plan is None else plan.largest_probability
    if recipe.search is not None:
        return _searched(recipe.noise_multiplier, rate, spent, recipe.search)
    if recipe.coefficients is not None:
        return _correlated(recipe.noise_multiplier, rate, spent, recipe.coefficients)
    if recipe.matrix is not None:
        return _correlated(recipe.noise_multiplier, rate, spent, recipe.matrix)
    if recipe.group is not None:
        return _grouped(recipe.noise_multiplier, rate, spent, recipe.group)
    return _gaussians(recipe.noise_multiplier, rate, spent, measured, recipe.batches)


def _correlated(noise: float, rate: float, steps: int, by: tuple[float, ...] | BufferedMatrix) -> Ledger:
    """Of noise correlated over bands of coefficients, or by buffers."""
    if isinstance(by, BufferedMatrix):
        return Ledger(events=(buffered_event(by, noise, rate, steps),))
    event = BandedGaussian(noise_multiplier=noise, coefficients=by, sample_rate=rate, steps=steps)
    return Ledger(events=(event,))


def _grouped(noise: float, rate: float, steps: int, group: int) -> Ledger:
    return Ledger(events=(GroupGaussian(noise_multiplier=noise, group_size=group, sample_rate=rate, steps=steps),))


def price_of_group(recipe: TrainingSettings, delta: float | None) -> str:
    """What clipping each record of a user by itself costs beside clipping all of them as one; "" where it is not done.

    As one example a user would be drawn as often as a record is.
    """
    if recipe.group is None or delta is None:
        return ""
    rate, steps = recipe.sample_rate, recipe.steps
    epsilon = epsilon_bound(_grouped(recipe.noise_multiplier, rate, steps, recipe.group), delta)
    alone = noise_multiplier_for(epsilon, delta, lambda noise: _gaussians(noise, rate, steps))
    return (
        f"with up to {recipe.group} records of a user, each clipped by itself, epsilon {epsilon:.3g} takes a noise "
        f"multiplier of {recipe.noise_multiplier:.4g}; clipping all of a user's records as one, without "
        f"--max-records-per-user, takes {alone:.4g} at the same sampling rate"
    )


def _searched(noise: float, rate: float, steps: int, search: NumberOfRuns) -> Ledger:
    """The best of a random number of runs of so many steps."""
    event = BestOfRuns(
        noise_multiplier=noise, mean_runs=search.mean, shape=search.shape, sample_rate=rate, run_steps=steps
    )
    return Ledger(events=(event,))


def _gaussians(
    noise: float,
    rate: float,
    steps: int,
    measured: SampledGaussian | None = None,
    batches: Batches = Batches.POISSON,
) -> Ledger:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches)
    return Ledger(events=(event,) if measured is None else (event, measured))


def require_one(command: str, given: Mapping[str, float | None]) -> None:
    """Raises CommandError unless exactly one of the options, by their flags, has a value."""
    if sum(value is not None for value in given.values()) != 1:
        raise CommandError(f"{command} needs either {' or '.join(given)}; give exactly one of them")


def require_budget(request: RetrainRequest) -> None:
    """Raise CommandError where the noise is to follow from a budget, and not exactly one is given."""
    if request.method.noised and request.method.guaranteed and request.secrets is None:
        budget = request.budget
        require_one(request.method_name, {"--epsilon": budget.epsilon, "--noise-multiplier": budget.noise_multiplier})


def require_positive(given: Mapping[str, float | None]) -> None:
    """Raises CommandError for an option, by its flag, whose value is neither None nor a finite number above 0."""
    for flag, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise CommandError(f"{flag} is {value:g}; it must be a finite number above 0")


def _noise(
    request: RetrainRequest,
    examples: int,
    rate: float,
    steps: int,
    delta: float,
    plan: Protection | None,
    trained: int,
    correlation: tuple[float, ...] | BufferedMatrix | None = None,
    search: NumberOfRuns | None = None,
) -> float:
    budget = request.budget
    if plan is not None:
        return _planned_noise(request, steps, delta, plan, trained)
    require_budget(request)
    if budget.noise_multiplier is not None:
        return budget.noise_multiplier
    assert budget.epsilon is not None
    measured = request.method.side_releases(request, examples, steps, rate)
    if measured is None:
        within = _within(
            budget.epsilon, delta, steps * numbers_of_step(request, trained) * (1 if search is None else search.most)
        )
        if search is not None:
            return noise_multiplier_for(*within, lambda noise: _searched(noise, rate, steps, search))
        if correlation is not None:
            return noise_multiplier_for(*within, lambda noise: _correlated(noise, rate, steps, correlation))
        if (group := request.method.group(request)) is not None:
            return noise_multiplier_for(*within, lambda noise: _grouped(noise, rate, steps, group))
        batches = request.method.batches(request)
        return noise_multiplier_for(*within, lambda noise: _gaussians(noise, rate, steps, batches=batches))
    within = _within(budget.epsilon, delta, steps * trained + measured.releases * _MOST_LAYERS if trained else 0)
    measured.check_alone(*within)
    return noise_multiplier_for(*within, lambda noise: _gaussians(noise, rate, steps, measured.event(noise)))


def _within(epsilon: float, delta: float, released: int) -> tuple[float, float]:
    """The budget left for exact arithmetic, after the floating-point cost of ``released`` numbers."""
    if not released:
        return epsilon, delta
    return exact_target(Released(coordinates=released), epsilon, delta)


def _planned_noise(request: RetrainRequest, steps: int, delta: float, plan: Protection, trained: int) -> float:
    """The noise that the secrets need, or more if --epsilon or --noise-multiplier asks for more."""
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
    epsilon, delta = _within(budget.epsilon, delta, steps * trained)
    if epsilon_bound(_gaussians(least, rate, steps), delta) <= epsilon:
        return least
    return max(least, noise_multiplier_for(epsilon, delta, lambda noise: _gaussians(noise, rate, steps)))


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
    if (request.momentum > 0) != (request.optimizer is Optimizer.MOMENTUM):
        raise CommandError(
            "--momentum is needed with --optimizer momentum and applies to no other; give both or neither"
        )
    request.method.check(request)


def _check_batch_size(request: RetrainRequest, examples: int) -> None:
    if request.batch_size < 1:
        raise CommandError(f"--batch-size is {request.batch_size}; it must be at least 1")
    if request.batch_size > examples:
        raise CommandError(f"--batch-size {request.batch_size} exceeds the data, which holds {examples} examples")
