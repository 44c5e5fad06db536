"""DP-SGD: all steps begun, at the rate and noise of the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.events import BandedGaussian, Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from privctl.domain.shown import counted
from verify.clip_norms import StatedNorms, norms_disagree
from verify.compare import ROUNDING, compare
from verify.events.banded_gaussian import column_norm
from verify.method import ExpectedMethod, StatedTraining
from verify.wording import TIGHT

#: By so much the norm of a column may exceed 1, which its coefficients' last digits are good for.
_ROUNDED = 2.0**-50


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyGradients(StatedTraining):
    """Of a method that adds noise to clipped gradients of Poisson batches."""

    sample_rate: float
    noise_multiplier: float
    steps_begun: int
    batches: str = str(Batches.POISSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSteps(NoisyGradients):
    """Of DP-SGD; ``coefficients`` correlate the noise of as many steps, where it is correlated.

    The others are those of a clip norm that changes, ``clip_norms`` being its path (``verify.clip_norms``).
    """

    coefficients: tuple[float, ...] | None = None
    target_unclipped_quantile: float | None = None
    clip_norm_learning_rate: float | None = None
    unclipped_count_stddev: float | None = None
    sum_noise_multiplier: float | None = None
    clip_norms: tuple[float, ...] | None = None


def sampled_only(ledger: Ledger) -> list[SampledGaussian] | None:
    """Its events; None where one of another kind is among them."""
    events = [event for event in ledger.events if isinstance(event, SampledGaussian)]
    return events if len(events) == len(ledger.events) else None


def steps_disagree(events: Sequence[SampledGaussian | BandedGaussian], parameters: NoisyGradients) -> Iterator[str]:
    """What differs between the events of the steps and the parameters."""
    total = sum(event.steps for event in events)
    yield from compare("number of steps in the ledger", total, parameters.steps_begun, "steps_begun says")
    # Of a plan's records, the one drawn most often is accounted for.
    rate = parameters.sample_rate if parameters.plan is None else parameters.plan.largest_probability
    for event in events:
        yield from compare("rate in the ledger", event.sample_rate, rate, "the parameters say")
        noise = parameters.noise_multiplier
        yield from compare("noise multiplier in the ledger", event.noise_multiplier, noise, "the parameters say")
        kind = event.batches if isinstance(event, SampledGaussian) else Batches.CYCLIC_POISSON
        yield from compare("kind of batches in the ledger", kind, parameters.batches, "the parameters say")
    if parameters.updates is not None and parameters.updates > total:
        made = counted(parameters.updates, "update was", "updates were")
        yield f"{made} made, but the ledger holds {counted(total, 'step')}"


def _disagreements(mechanism: Mechanism | None, parameters: PrivateSteps) -> Iterator[str]:
    yield from norms_disagree(_norms(parameters))
    if not isinstance(mechanism, Ledger):
        return
    if parameters.coefficients is not None or any(isinstance(each, BandedGaussian) for each in mechanism.events):
        yield from _of_correlated(mechanism, parameters)
    elif (events := sampled_only(mechanism)) is not None:
        yield from steps_disagree(events, parameters)


def _norms(parameters: PrivateSteps) -> StatedNorms:
    names = StatedNorms.__dataclass_fields__.keys() - {"reduced"}
    return StatedNorms(reduced=bool(parameters.bf16), **{name: getattr(parameters, name) for name in names})


def _premises(parameters: PrivateSteps, _: Guarantee) -> Iterator[str]:
    if _norms(parameters).changes:
        yield "unclipped count"


def _of_correlated(ledger: Ledger, parameters: PrivateSteps) -> Iterator[str]:
    """What is wrong with noise that is correlated: its matrix, how far apart a record takes part, and how often."""
    event, stated = ledger.events[0], parameters.coefficients
    if len(ledger.events) != 1 or not isinstance(event, BandedGaussian):
        yield "the parameters correlate the noise of steps, but the ledger holds more than one event, or another kind"
        return
    if stated is None:
        yield "the ledger correlates the noise of steps, but the parameters state no coefficients"
        return
    yield from compare("number of bands in the ledger", len(event.coefficients), len(stated), "the parameters say")
    if tuple(event.coefficients) != tuple(stated):
        yield "the coefficients in the ledger are not those of the parameters"
    for coefficients in {tuple(event.coefficients), tuple(stated)}:
        if (norm := column_norm(coefficients)[0]) > 1 + _ROUNDED:
            yield f"a column of the noise's matrix has norm {norm:.6g}, above 1: a record moves the rows by more"
    turn = len(stated) * parameters.sample_rate
    if turn > 1 + ROUNDING:
        yield f"{len(stated)} parts at rate {parameters.sample_rate:g} would be drawn with probability {turn:.6g}"
    yield from steps_disagree([event], parameters)


EXPECTED = ExpectedMethod(
    parameters=PrivateSteps,
    mechanisms=(Ledger,),
    disagreements=_disagreements,
    premises=_premises,
    accountants={"dp-sgd": TIGHT},
    noised=True,
    clipped=True,
)
