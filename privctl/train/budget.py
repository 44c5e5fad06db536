"""From what was asked to the steps, the noise and the ledger they make."""

from __future__ import annotations

import math
from collections.abc import Mapping

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.gridded import Released, ideal_target
from privctl.accounting.guarantees import default_delta
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.errors import UsageFault
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.mechanism import Optimizer
from privctl.models.language import choose_device
from privctl.secrets.protection import Protection
from privctl.train.request import RetrainRequest
from privctl.train.settings import TrainingSettings

_DEFAULT_EPOCHS = 3
_TOKENS_CPU, _TOKENS = 2048, 16_384
#: A measurement shows one number a layer; no network has more layers.
_MOST_LAYERS = 1 << 16


def recipe_for(
    request: RetrainRequest, examples: int, plan: Protection | None = None, trained: int = 0
) -> tuple[TrainingSettings, float | None]:
    """The run's settings, and its delta where it is private. A ``plan`` decides on batches, steps and least noise.

    ``trained`` numbers of the network, at most, change in a step: what floating-point noise on them costs is within the
    budget. Raises UsageFault for settings that contradict each other or the plan, or describe no training.
    """
    _check(request, examples)
    size = float(request.batch_size) if plan is None else _planned_size(request, plan)
    rate = size / examples
    steps = _steps(request, examples, rate) if plan is None else _planned_steps(request, plan)
    private = request.way.noised
    delta = (request.budget.delta or default_delta(examples)) if request.way.guaranteed else None
    try:
        noise = 0.0
        if private and delta is not None:
            noise = _noise(request, examples, rate, steps, delta, plan, trained)
        return TrainingSettings(
            method=request.method,
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
            bf16=request.bf16,
        ), delta
    except ValueError as error:
        raise UsageFault(str(error)) from None


def _tokens_at_once(request: RetrainRequest) -> int:
    """How many padded tokens pass at once; where nobody says, few on a CPU, whose time padding would waste."""
    if request.micro_tokens is not None:
        return request.micro_tokens
    return _TOKENS_CPU if choose_device(request.device).type == "cpu" else _TOKENS


def ledger_of(
    recipe: TrainingSettings, spent: int, plan: Protection | None = None, measured: SampledGaussian | None = None
) -> Ledger:
    """What ``spent`` steps of a private recipe, and what was ``measured`` beside them, gave away of one record at most.

    Where each record has a probability of its own, that is as if it had the largest: what a step gives away of a record
    never falls when the record is drawn more often.
    """
    rate = recipe.sample_rate if plan is None else plan.largest_probability
    return _gaussians(recipe.noise_multiplier, rate, spent, measured)


def _gaussians(noise: float, rate: float, steps: int, measured: SampledGaussian | None = None) -> Ledger:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=Batches.POISSON)
    return Ledger(events=(event,) if measured is None else (event, measured))


def require_one(who: str, given: Mapping[str, float | None]) -> None:
    """Raises UsageFault unless one of two options, by their flags, has a value and the other has none."""
    if sum(value is not None for value in given.values()) != 1:
        raise UsageFault(f"{who} needs either {' or '.join(given)}, one of them")


def require_positive(given: Mapping[str, float | None]) -> None:
    """Raises UsageFault for an option, by its flag, whose value is not a finite number above 0; None is no value."""
    for flag, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageFault(f"{flag} is {value:g}; it must be a finite number above 0")


def _noise(
    request: RetrainRequest,
    examples: int,
    rate: float,
    steps: int,
    delta: float,
    plan: Protection | None,
    trained: int,
) -> float:
    budget = request.budget
    if plan is not None:
        return _planned_noise(request, steps, delta, plan, trained)
    require_one(request.method, {"--epsilon": budget.epsilon, "--noise-multiplier": budget.noise_multiplier})
    if budget.noise_multiplier is not None:
        return budget.noise_multiplier
    assert budget.epsilon is not None
    measured = request.way.side_releases(request, examples, steps, rate)
    if measured is None:
        within = _within(budget.epsilon, delta, steps * trained)
        return noise_multiplier_for(*within, lambda noise: _gaussians(noise, rate, steps))
    within = _within(budget.epsilon, delta, steps * trained + measured.releases * _MOST_LAYERS if trained else 0)
    measured.check_alone(*within)
    return noise_multiplier_for(*within, lambda noise: _gaussians(noise, rate, steps, measured.event(noise)))


def _within(epsilon: float, delta: float, released: int) -> tuple[float, float]:
    """What real arithmetic may take of a budget, so that the floats of ``released`` numbers stay within all of it."""
    if not released:
        return epsilon, delta
    left, at = ideal_target(Released(coordinates=released), epsilon, delta)
    if left <= 0:
        raise UsageFault(
            f"--epsilon {epsilon:g} is below what floating-point noise on {released} numbers costs by itself; raise it"
        )
    return left, at


def _planned_noise(request: RetrainRequest, steps: int, delta: float, plan: Protection, trained: int) -> float:
    """What the secrets need, or more where a record's epsilon or the user asks for more."""
    budget, least, rate = request.budget, plan.facts.noise_multiplier, plan.largest_probability
    if budget.epsilon is not None and budget.noise_multiplier is not None:
        raise UsageFault("--epsilon and --noise-multiplier both set the noise; with --secrets give one of them or none")
    if budget.noise_multiplier is not None:
        if budget.noise_multiplier < least:
            raise UsageFault(
                f"--noise-multiplier is {budget.noise_multiplier:g}, and the plan's secrets need at least {least!r}; "
                "remove --noise-multiplier, or plan again for less protection"
            )
        return budget.noise_multiplier
    if budget.epsilon is None:
        return least
    epsilon, delta = _within(budget.epsilon, delta, steps * trained)
    if epsilon_bound(_gaussians(least, rate, steps), delta) <= epsilon:
        return least
    found = noise_multiplier_for(epsilon, delta, lambda noise: _gaussians(noise, rate, steps))
    return max(least, found)


def _planned_size(request: RetrainRequest, plan: Protection) -> float:
    asked = None if request.secrets is None else request.secrets.batch_size
    if asked is not None and asked != plan.facts.batch_size:
        raise UsageFault(
            f"--batch-size is {asked}, but the plan of --secrets is for {plan.facts.batch_size:g} expected examples a "
            "step; remove --batch-size, or plan again"
        )
    return plan.facts.batch_size


def _planned_steps(request: RetrainRequest, plan: Protection) -> int:
    planned = plan.facts.steps
    if request.steps is not None or request.epochs is not None:
        asked = _steps(request, plan.facts.examples, plan.facts.batch_size / plan.facts.examples)
        if asked != planned:
            flag = "--epochs" if request.steps is None else "--steps"
            raise UsageFault(
                f"{flag} asks for {asked} steps, but the plan of --secrets is for {planned}; leave {flag} out, or plan "
                "again"
            )
    return planned


def _steps(request: RetrainRequest, examples: int, rate: float) -> int:
    if request.steps is not None and request.epochs is not None:
        raise UsageFault("--steps and --epochs say the same; give one")
    a_pass = math.ceil(examples / request.batch_size)
    if request.steps is not None:
        whole = request.way.whole_passes
        if whole and not request.way.sampled(request) and request.steps % a_pass:
            raise UsageFault(
                f"--steps is {request.steps}; {whole} accounted for in whole passes of {a_pass} steps here, so give a "
                "multiple of that, or --epochs"
            )
        return request.steps
    epochs = _DEFAULT_EPOCHS if request.epochs is None else request.epochs
    if not (math.isfinite(epochs) and epochs > 0):
        raise UsageFault(f"--epochs is {epochs:g}; it must be above 0")
    if request.way.sampled(request):
        return max(1, math.ceil(round(epochs / rate, 6)))
    if epochs != int(epochs):
        raise UsageFault(f"--epochs is {epochs:g}; only what samples, such as dp-sgd, stops within one")
    return int(epochs) * a_pass


def _check(request: RetrainRequest, examples: int) -> None:
    if request.secrets is None:
        _check_batch_size(request, examples)
    delta = request.budget.delta
    if delta is not None and not 0 < delta < 1:
        raise UsageFault(f"--delta is {delta:g}; it must be above 0 and below 1")
    require_positive({"--epsilon": request.budget.epsilon, "--noise-multiplier": request.budget.noise_multiplier})
    if (request.momentum > 0) != (request.optimizer is Optimizer.MOMENTUM):
        raise UsageFault("--momentum is needed with --optimizer momentum and applies to no other; give both or neither")
    request.way.check(request)


def _check_batch_size(request: RetrainRequest, examples: int) -> None:
    if request.batch_size < 1:
        raise UsageFault(f"--batch-size is {request.batch_size}; it must be at least 1")
    if request.batch_size > examples:
        raise UsageFault(f"--batch-size {request.batch_size} exceeds the data, which holds {examples} examples")
