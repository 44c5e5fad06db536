"""Determines the groups, masks and noise of a FERRET run before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.gridded import Released, exact_target
from privctl.accounting.mutual_information import ceiling, fire_probability_for
from privctl.accounting.sign_bits import dithered_ledger, gaussian_ledger, response_ledger
from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError
from privctl.domain.events import Ledger, SignBits
from privctl.domain.shown import counted
from privctl.train.contribution.findings import ROUNDING_REDUCED
from privctl.train.contribution.views import ClippedDerivatives, ComputationStage
from privctl.train.directional import Derivatives, FiredGroup, direction
from privctl.train.methods.ferret.groups import Groups, group_sizes, group_tensors, repeat_groups, trainable
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.publish import (
    DitheredSigns,
    NoisySums,
    Publisher,
    Responses,
    Signs,
)
from privctl.train.methods.ferret.settings import MOST_BIT_EPSILON, FerretSettings, Publish, ReleaseKind
from privctl.train.methods.ferret.update import UpdateRule
from privctl.train.preparation.refusals import require_one
from privctl.train.preparation.signal_to_noise import SignalToNoise, noise_warnings, random_sign_warnings
from privctl.train.settings.choices import DerivativeMethod

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from privctl.randomness import NoiseSource
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest

#: The releases whose fire probability follows from a budget in nats.
IN_NATS = (ReleaseKind.PUBLISHED, ReleaseKind.DITHERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FerretPlan:
    """The settings of a run that is ready to start; ``sizes`` are the numbers of weights in each group.

    With several directions, each group occurs as often in ``groups``, ``sizes`` and ``masks``. ``noise_multiplier`` and
    ``bit_epsilon`` are None if the release has none.
    """

    groups: Groups
    sizes: tuple[int, ...]
    masks: Masks
    rule: UpdateRule
    release: ReleaseKind
    publish: Publish
    sample_rate: float
    noise_multiplier: float | None = None
    bit_epsilon: float | None = None

    @property
    def dimensions(self) -> tuple[float, ...]:
        """The number of weights in each group, divided by the number of its directions."""
        return tuple(size / self.rule.directions for size in self.sizes)

    @property
    def fired_by_group(self) -> tuple[int, ...]:
        """How often each group publishes, over all of its directions."""
        counts, directions = self.masks.counts, self.rule.directions
        return tuple(sum(counts[start : start + directions]) for start in range(0, len(counts), directions))

    @property
    def signs(self) -> SignBits:
        """The parameters of the run in the paper's accounting."""
        return SignBits(
            groups=len(self.groups),
            fire_probability=self.masks.fire_probability,
            sample_rate=self.sample_rate,
            steps=self.masks.steps,
        )

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of all steps, conditionally on the public masks; None for a release without a guarantee."""
        return self._ledger_of(self.masks.sizes)

    def spent(self, steps: int) -> Ledger | None:
        """The ledger of the first ``steps`` only; None if none of them publishes."""
        sizes = Counter(filter(None, (len(self.masks.fired(step)) for step in range(steps))))
        return self._ledger_of(dict(sorted(sizes.items()))) if sizes else None

    def _ledger_of(self, sizes: Mapping[int, int]) -> Ledger | None:
        if self.bit_epsilon is not None:
            return response_ledger(sizes, self.bit_epsilon, self.sample_rate)
        if self.noise_multiplier is None:
            return None
        ledger_of = dithered_ledger if self.release is ReleaseKind.DITHERED else gaussian_ledger
        return ledger_of(sizes, self.noise_multiplier, self.sample_rate)

    def publisher(self, job: TrainingJob, source: NoiseSource) -> Publisher:
        """The publisher of this release, which draws random numbers from ``source``."""
        if self.bit_epsilon is not None:
            return Responses(bit_epsilon=self.bit_epsilon, source=source)
        if self.noise_multiplier is None:
            return Signs()
        norm, size = job.recipe.clip_norm, job.recipe.batch_size
        if self.release is ReleaseKind.DITHERED:
            return DitheredSigns(noise_multiplier=self.noise_multiplier, bound=norm, batch_size=size, source=source)
        return NoisySums(
            noise_multiplier=self.noise_multiplier, clip_norm=norm, batch_size=size, shown=self.publish, source=source
        )


def plan_for(job: TrainingJob, network: nn.Module, seed: bytes) -> FerretPlan:
    """The groups, the masks of the public ``seed``, the update rule and the noise of ``job``.

    Raises CommandError for settings that contradict each other and for budgets that cannot be met.
    """
    request, recipe = job.request, job.recipe
    check(request)
    sizes = {name: p.numel() for name, p in trainable(network).items()}
    directions = request.settings_as(FerretSettings).directions
    groups = repeat_groups(group_tensors(sizes, request.settings_as(FerretSettings).groups), directions)
    chance = _fire_probability(request, len(groups), recipe.steps, recipe.sample_rate)
    masks = Masks(seed=seed, groups=len(groups), fire_probability=chance, steps=recipe.steps)
    release = request.settings_as(FerretSettings).release
    if release is not ReleaseKind.PUBLISHED and not masks.total:
        raise CommandError(
            f"no group fires in {recipe.steps} steps at the fire probability {chance:g}, so that nothing would be "
            "trained; raise --fire-probability, --epsilon or --epochs"
        )
    try:
        noise, odds = _noise(job, masks)
        rule = UpdateRule(
            steps=recipe.steps,
            learning_rate=recipe.learning_rate,
            optimizer=recipe.optimizer,
            momentum=recipe.momentum,
            beta1=recipe.beta1,
            beta2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            schedule=recipe.schedule,
            warmup_steps=recipe.warmup_steps,
            silent=request.settings_as(FerretSettings).silent,
            update_scale=request.settings_as(FerretSettings).update_scale,
            directions=directions,
        )
    except ValueError as error:
        raise CommandError(flagged(str(error), UpdateRule.__dataclass_fields__)) from None
    return FerretPlan(
        groups=groups,
        sizes=tuple(group_sizes(groups, sizes)),
        masks=masks,
        rule=rule,
        release=release,
        publish=request.settings_as(FerretSettings).publish,
        sample_rate=recipe.sample_rate,
        noise_multiplier=noise,
        bit_epsilon=odds,
    )


def announced(plan: FerretPlan, job: TrainingJob) -> str:
    """A sentence with the plan, shown before the first step."""
    delta = job.delta
    masks = plan.masks
    sentence = (
        f"{counted(masks.steps, 'step')}, of which {masks.active_steps} publish {counted(masks.total, 'number')} from "
        f"{counted(len(plan.groups) // plan.rule.directions, 'group')}{_per_publication_text(plan)}, "
        f"fire probability {masks.fire_probability:.6g}"
    )
    if not masks.total:
        sentence += "; the model stays as it is: raise --epsilon, --fire-probability or --epochs"
    if plan.noise_multiplier is not None:
        sentence += f", noise multiplier {plan.noise_multiplier:.6g} at delta {delta:g}"
    if plan.bit_epsilon is not None:
        sentence += f", log-odds of a sign {plan.bit_epsilon:.6g} at delta {delta:g}"
    if plan.release is ReleaseKind.GAUSSIAN and plan.rule.directions == 1:
        sentence += "; several --directions teach more at the same epsilon, each for the memory of the weights"
    return sentence


def _per_publication_text(plan: FerretPlan) -> str:
    return "" if plan.rule.directions == 1 else f" with {plan.rule.directions} directions each"


def learning_warnings(plan: FerretPlan, job: TrainingJob) -> Iterator[str]:
    """Warnings if nothing or little can be learned from what is published."""
    if (ratio := signal_of(plan, job)) is not None:
        yield from noise_warnings(ratio)
    if plan.bit_epsilon is not None:
        yield from random_sign_warnings(plan.masks.total, plan.bit_epsilon)


def signal_of(plan: FerretPlan, job: TrainingJob) -> SignalToNoise | None:
    """The ratio of the sums of clipped derivatives to their noise; None for a release that is not Gaussian."""
    if plan.noise_multiplier is None or plan.release is not ReleaseKind.GAUSSIAN or not plan.masks.active_steps:
        return None
    return SignalToNoise(
        steps=plan.masks.active_steps,
        batch=job.recipe.batch_size,
        noise_multiplier=plan.noise_multiplier,
        numbers=round(plan.masks.total / plan.masks.active_steps),
    )


def released_by(release: ReleaseKind, masks: Masks) -> Released | None:
    """The released numbers with Gaussian noise; None for randomized response, whose coin flips are exact."""
    return None if release is ReleaseKind.RANDOMIZED_RESPONSE else Released(coordinates=masks.total)


def methods_used(plan: FerretPlan, engine: Derivatives) -> dict[str, int]:
    """The methods by which derivatives are computed, each with the number of steps that publish by it."""
    steps_by_method: Counter[str] = Counter()
    per_example = plan.release is ReleaseKind.GAUSSIAN
    for step in range(plan.masks.steps):
        fired = [FiredGroup(index=index, parameters=plan.groups[index]) for index in plan.masks.fired(step)]
        if fired:
            steps_by_method[str(engine.choose_method(fired, per_example=per_example))] += 1
    return dict(sorted(steps_by_method.items()))


def derivative_stages(
    job: TrainingJob, plan: FerretPlan, engine: Derivatives, device: torch.device
) -> list[ComputationStage]:
    """The stages of the contribution test for clipped derivatives, with the first step of each method of the run."""
    shapes = {name: p.shape for name, p in engine.network.named_parameters()}
    steps: dict[DerivativeMethod, tuple[list[FiredGroup], list[Mapping[str, Tensor]]]] = {}
    for step in range(plan.masks.steps):
        fired = [FiredGroup(index=index, parameters=plan.groups[index]) for index in plan.masks.fired(step)]
        if not fired or (method := engine.choose_method(fired, per_example=True)) in steps:
            continue
        along: list[Mapping[str, Tensor]] = [
            direction(plan.masks.seed, step, group.index, {name: shapes[name] for name in group.parameters}, device)
            for group in fired
        ]
        steps[method] = (fired, along)
    if not steps:
        return []
    view = ClippedDerivatives(engine=engine, fired_groups=list(steps.values()))
    named = "derivatives by " + ", ".join(sorted(steps))
    stages = [ComputationStage(name=f"{named}, float32", view=view)]
    if job.recipe.bf16 or device.type != "cpu":
        precision = "bfloat16" if job.recipe.bf16 else str(device.type)
        stages.append(
            ComputationStage(
                name=f"{named}, {precision}", view=view, rounding=ROUNDING_REDUCED, reduced=job.recipe.bf16
            )
        )
    return stages


def check(request: RetrainRequest) -> None:
    """Raise CommandError for settings that contradict each other."""
    settings, release = request.settings_as(FerretSettings), request.settings_as(FerretSettings).release
    _check_budget(request)
    if settings.publish is Publish.VALUE and release is not ReleaseKind.GAUSSIAN:
        raise CommandError(f"--publish value needs --release gaussian; with {release} there are signs only")
    if settings.directions > 1 and release is not ReleaseKind.GAUSSIAN:
        raise CommandError(
            f"--directions {settings.directions} needs --release gaussian; with {release} each sign costs privacy"
        )
    if request.bf16 and settings.derivatives is DerivativeMethod.DIFFERENCE:
        raise CommandError(
            "--derivatives difference needs losses in float32, and --bf16 leaves mostly rounding of them; remove one"
        )


def _check_budget(request: RetrainRequest) -> None:
    """Raise CommandError unless exactly one option sets the privacy cost, and for options without effect."""
    settings, budget, release = (
        request.settings_as(FerretSettings),
        request.budget,
        request.settings_as(FerretSettings).release,
    )
    given = {
        "--epsilon": budget.epsilon,
        "--fire-probability": settings.fire_probability,
        "--noise-multiplier": budget.noise_multiplier,
        "--bit-epsilon": settings.bit_epsilon,
    }
    amount = {ReleaseKind.GAUSSIAN: "--noise-multiplier", ReleaseKind.RANDOMIZED_RESPONSE: "--bit-epsilon"}
    other = amount.get(release, "--fire-probability")
    require_one(f"ferret with --release {release}", {flag: given[flag] for flag in ("--epsilon", other)})
    for flag in amount.values():
        if given[flag] is not None and flag != other:
            raise CommandError(f"{flag} does not apply to ferret with the release {release}; remove it")
    if budget.delta is not None and release is ReleaseKind.PUBLISHED:
        raise CommandError(
            "--delta asks for an (epsilon, delta) guarantee, which signs as published do not have; remove it, or "
            "choose --release gaussian"
        )


def _fire_probability(request: RetrainRequest, groups: int, steps: int, sample_rate: float) -> float:
    """The given fire probability, or that for the budget in nats, or else the default.

    The default is 1 with several directions, otherwise that of one group per step on average. Raises CommandError for a
    budget above what the run can publish.
    """
    given, epsilon = request.settings_as(FerretSettings).fire_probability, request.budget.epsilon
    if given is not None:
        return given
    if request.settings_as(FerretSettings).release not in IN_NATS or epsilon is None:
        return 1.0 if request.settings_as(FerretSettings).directions > 1 else 1 / groups
    most = ceiling(groups, steps, sample_rate)
    if epsilon > most:
        raise CommandError(
            f"--epsilon is {epsilon:g} nats, above the ceiling of {most:.10g}: {groups} groups that publish in each of "
            f"{steps} steps publish no more, so ask for at most that, more --groups or more --epochs"
        )
    return fire_probability_for(epsilon, groups, steps, sample_rate)


def _noise(job: TrainingJob, masks: Masks) -> tuple[float | None, float | None]:
    """The noise multiplier and the log-odds of a sign that meet the budget; each is None if the release has none."""
    settings, budget, delta = job.request.settings_as(FerretSettings), job.request.budget, job.delta
    rate, epsilon = job.recipe.sample_rate, budget.epsilon
    assert delta is not None
    if settings.release is ReleaseKind.GAUSSIAN:
        if epsilon is None:
            return budget.noise_multiplier, None
        target = exact_target(Released(coordinates=masks.total), epsilon, delta)
        return noise_multiplier_for(*target, lambda noise: gaussian_ledger(masks.sizes, noise, rate)), None
    if settings.release is ReleaseKind.RANDOMIZED_RESPONSE:
        if epsilon is None:
            assert settings.bit_epsilon is not None
            return None, settings.bit_epsilon
        # Privacy increases as log-odds decrease, so the calibration searches for 1 / log-odds.
        noise_multiplier = noise_multiplier_for(
            epsilon, delta, lambda noise: response_ledger(masks.sizes, 1 / noise, rate)
        )
        return None, min(1 / noise_multiplier, MOST_BIT_EPSILON)
    return settings.dither, None
