"""DPQuant: DP-SGD whose layers are rounded to few bits, chosen by noisy measurements of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import NoneType

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee, Notion
from privctl.domain.mechanism import Mechanism
from verify.compare import compare
from verify.method import ExpectedMethod, of_poisson_batches
from verify.methods.dp_sgd import NoisyGradients, sampled_only, steps_disagree
from verify.wording import TIGHT

_AS_PUBLISHED = "dpquant, measurements as its paper makes and accounts for them"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersOfEpoch:
    """The layers that were rounded in one epoch (counted from 0), and what they were chosen by."""

    epoch: int
    quantized: tuple[str, ...]
    scores: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedTraining(NoisyGradients):
    """``measure_...`` are of the measurements, each a Gaussian of its own rate and noise multiplier."""

    format: str | None = None
    luq_levels: int | None = None
    scales: str | None = None
    layers: str | None = None
    quantized_fraction: float | None = None
    compute_target: float | None = None
    layer_names: tuple[str, ...] = ()
    multiply_adds: tuple[float, ...] = ()
    full_precision: tuple[str, ...] = ()
    public_seed: str | None = None
    low_precision_share: tuple[float, ...] = ()
    layer_schedule: tuple[LayersOfEpoch, ...] = ()
    last_chances: tuple[float, ...] | None = None
    beta: float | None = None
    smoothing: float | None = None
    measure_every: int | None = None
    measure_repetitions: int | None = None
    measure_noise: float | None = None
    measure_clip: float | None = None
    measure_rate: float | None = None
    measurements_planned: int | None = None
    measurements_begun: int | None = None
    measure_noise_source: str | None = None
    measured_public_records: int | None = None
    measured_public_digest: str | None = None
    epsilon_without_measurements: float | None = None
    epsilon_share_of_measurements: float | None = None


def _disagreements(mechanism: Mechanism | None, parameters: RoundedTraining) -> Iterator[str]:
    yield from _released(parameters)
    if isinstance(mechanism, Ledger) and (events := sampled_only(mechanism)) is not None:
        yield from _measurements(events[1:], parameters)
        yield from steps_disagree(events[:1], parameters)


def _released(parameters: RoundedTraining) -> Iterator[str]:
    """Scores begin at 0, and nothing but a measurement changes them, of which each repetition counts."""
    if parameters.measured_public_records is not None:
        return
    stated = [epoch.scores for epoch in parameters.layer_schedule if epoch.scores is not None]
    begin = (0.0,) * len(parameters.layer_names)
    changes = sum(tuple(old) != tuple(new) for old, new in pairwise([begin, *stated]))
    least, begun = changes * max(1, parameters.measure_repetitions or 1), parameters.measurements_begun or 0
    if begun < least:
        yield f"scores changed {changes} times, for which {least} measurements begin, and it states {begun}"


def _measurements(events: Sequence[SampledGaussian], parameters: RoundedTraining) -> Iterator[str]:
    """Every measurement begun, at its own rate and noise, is the ledger's second event."""
    begun = parameters.measurements_begun or 0
    yield from compare("number of measurements in the ledger", sum(e.steps for e in events), begun, "the run began")
    for event in events:
        rate, noise = parameters.measure_rate, parameters.measure_noise
        yield from compare("rate of measurements in the ledger", event.sample_rate, rate, "measure_rate says")
        yield from compare("noise of measurements in the ledger", event.noise_multiplier, noise, "measure_noise says")
        yield from of_poisson_batches(event)


def _premises(parameters: RoundedTraining, guarantee: Guarantee) -> Iterator[str]:
    yield from ("public rounding", "rounding by example")
    if parameters.measured_public_records is not None:
        yield "public measurements"
    if guarantee.notion is Notion.APPROXIMATE_DP and parameters.measurements_begun:
        yield "measurements"


EXPECTED = ExpectedMethod(
    parameters=RoundedTraining,
    mechanisms=(Ledger, NoneType),
    disagreements=_disagreements,
    premises=_premises,
    statements={
        "public rounding": (
            "how numbers are rounded and which layers are depends on the data through released measurements alone, and "
            "on a public seed, which (was given|the operating system drew)",
        ),
        "rounding by example": (
            "in real arithmetic an example's gradient and loss do not depend on what else is in its batch: no scale "
            "spans two examples, and each draws its own rounding",
        ),
        "public measurements": (
            "the records on which it is measured how much quantizing a layer hurts are public: none depends on a "
            "private one",
        ),
        "measurements": (
            "each release adds noise to a Poisson subsample's sum of vectors of loss differences, each clipped; "
            "nothing is trained on the way, every repetition counts, and so does one that was begun and lost",
        ),
    },
    accountants={"dpquant": TIGHT, _AS_PUBLISHED: f"({TIGHT}); DPQuant's own events"},
    of_another_ledger=frozenset({_AS_PUBLISHED}),
    rough="sums of measured differences of losses have no margin for it",
    noised=True,
    clipped=True,
)
