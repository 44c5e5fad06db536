"""DPQuant: DP-SGD with some layers quantized to few bits, chosen by noisy measurements of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import NoneType

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee, Notion
from privctl.domain.mechanism import Mechanism
from privctl.domain.report import PrivacyReport
from verify.compare import ROUNDING, compare
from verify.methods.dp_sgd import NoisyGradients, private_run_warns, sampled_only, steps_disagree
from verify.methods.expected import CLIPPING, ExpectedMethod, of_poisson_batches
from verify.texts.accountants import TIGHT
from verify.texts.warnings.forms import NUMBER, form

_AS_PUBLISHED = "dpquant, measurements as its paper makes and accounts for them"
_SCALES = (
    "a linear layer's inputs and gradients have a scale for each position, a convolution's for each example, and "
    "weights one a tensor; as published a scale is that of a whole batch: one example would change how all others are "
    "rounded, and clipping would not bound what it does"
)
#: Noise as stated is refuted with this probability.
_LEVEL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersOfEpoch:
    """The layers that were quantized in one epoch (counted from 0), and the scores they were chosen by."""

    epoch: int
    quantized: tuple[str, ...]
    scores: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTraining(NoisyGradients):
    """The parameters of DPQuant; each measurement is a Gaussian with its own sampling rate and noise multiplier."""

    format: str | None = None
    luq_levels: int | None = None
    scales: str | None = None
    layers: str | None = None
    sensitivity: str | None = None
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
    measure_control_numbers: int | None = None
    measure_control_ratio: float | None = None
    measured_public_records: int | None = None
    measured_public_digest: str | None = None
    measured_synthetic_inputs: int | None = None
    epsilon_without_measurements: float | None = None
    epsilon_share_of_measurements: float | None = None


def _disagreements(mechanism: Mechanism | None, parameters: QuantizedTraining) -> Iterator[str]:
    yield from _released(parameters)
    yield from _controls(parameters)
    yield from _layers(parameters)
    if isinstance(mechanism, Ledger) and (events := sampled_only(mechanism)) is not None:
        yield from _measurements(events[1:], parameters)
        yield from steps_disagree(events[:1], parameters)


def _released(parameters: QuantizedTraining) -> Iterator[str]:
    """The measurements begun must explain how often the scores changed; they start at 0, and each repetition counts."""
    yield from _measurement_source(parameters)
    if _is_without_private_records(parameters):
        return
    stated = [epoch.scores for epoch in parameters.layer_schedule if epoch.scores is not None]
    begin = (0.0,) * len(parameters.layer_names)
    changes = sum(tuple(old) != tuple(new) for old, new in pairwise([begin, *stated]))
    least, begun = changes * max(1, parameters.measure_repetitions or 1), parameters.measurements_begun or 0
    if begun < least:
        yield f"scores changed {changes} times, for which {least} measurements begin, and it states {begun}"


def _layers(parameters: QuantizedTraining) -> Iterator[str]:
    """What was quantized in each epoch must be among the layers, and each number must be one that a run has."""
    known, epochs = set(parameters.layer_names), [epoch.epoch for epoch in parameters.layer_schedule]
    if len(parameters.multiply_adds) != len(parameters.layer_names) or min(parameters.multiply_adds, default=0) < 0:
        yield "multiply_adds does not state a number for each layer"
    if epochs != sorted(set(epochs)) or min(epochs, default=0) < 0:
        yield "layer_schedule does not state epochs in order"
    for epoch in parameters.layer_schedule:
        if not known.issuperset(epoch.quantized):
            yield f"in epoch {epoch.epoch} a layer was quantized that is none of layer_names"
        if epoch.scores is not None and len(epoch.scores) != len(parameters.layer_names):
            yield f"epoch {epoch.epoch} does not state a score for each layer"
    if parameters.last_chances is not None and len(parameters.last_chances) != len(parameters.layer_names):
        yield "last_chances does not state a probability for each layer"
    shares = (
        *(parameters.last_chances or ()),
        *parameters.low_precision_share,
        *(share for share in (parameters.quantized_fraction, parameters.compute_target) if share is not None),
    )
    if odd := [share for share in shares if not 0 <= share <= 1 + ROUNDING]:
        yield f"{odd[0]:g} is stated as the probability or the share of a layer, which is from 0 to 1"
    for name in ("luq_levels", "measure_every", "measure_repetitions"):
        if (count := getattr(parameters, name)) is not None and count < 1:
            yield f"parameter {name} is {count}, which no training has"


def _controls(parameters: QuantizedTraining) -> Iterator[str]:
    """The control numbers, which are noise alone, must have the stated noise's deviation (chi-squared test)."""
    from verify.laws.common import chi_square_quantiles  # needs more than the standard library

    count, ratio = parameters.measure_control_numbers, parameters.measure_control_ratio
    if not count and ratio is None:
        return
    if not count or count < 0 or ratio is None:
        yield f"measure_control_numbers is {count} and measure_control_ratio {ratio}, and no run states such two"
        return
    if not parameters.measurements_begun:
        yield f"{count} control numbers were released with measurements, and it states that none began"
    low, high = chi_square_quantiles(_LEVEL / 2, count)
    if not low <= count * ratio * ratio <= high:
        yield (
            f"the {count} control numbers of its measurements, which are noise alone, have {ratio:.6g} times the "
            "standard deviation that measure_noise says"
        )


def _is_without_private_records(parameters: QuantizedTraining) -> bool:
    """Whether layers were measured without private records."""
    return parameters.measured_public_records is not None or parameters.measured_synthetic_inputs is not None


def _measurement_source(parameters: QuantizedTraining) -> Iterator[str]:
    """Layers must be measured on one stated kind of records, without private measurements if those are not private."""
    counts = {
        "private": parameters.measurements_planned,
        "public": parameters.measured_public_records,
        "synthetic": parameters.measured_synthetic_inputs,
    }
    stated = [name for name, count in counts.items() if count is not None]
    if parameters.sensitivity is not None or len(stated) > 1 or counts["synthetic"] is not None:
        yield from compare("what layers are measured on", ", ".join(stated), parameters.sensitivity, "sensitivity says")
    if _is_without_private_records(parameters) and parameters.measurements_begun:
        yield f"{parameters.measurements_begun} measurements of private records began, and it states none that may"
    if counts["synthetic"] is not None:
        yield from _divergences(parameters)


def _divergences(parameters: QuantizedTraining) -> Iterator[str]:
    """Scores from synthetic inputs must be divergences, and may change only in epochs where a measurement is due."""
    every, before = parameters.measure_every or 1, None
    for epoch in parameters.layer_schedule:
        if epoch.scores is None or any(score < 0 for score in epoch.scores):
            yield f"the scores of epoch {epoch.epoch} are not divergences, which are never below 0"
        elif before is not None and epoch.epoch % every and tuple(epoch.scores) != before:
            yield f"the scores of epoch {epoch.epoch} are new, and it is every {every} epochs that it measures"
        before = None if epoch.scores is None else tuple(epoch.scores)


def _measurements(events: Sequence[SampledGaussian], parameters: QuantizedTraining) -> Iterator[str]:
    """The ledger's second event must hold every measurement begun, at its own sampling rate and noise."""
    begun = parameters.measurements_begun or 0
    yield from compare("number of measurements in the ledger", sum(e.steps for e in events), begun, "the run began")
    for event in events:
        rate, noise = parameters.measure_rate, parameters.measure_noise
        yield from compare("rate of measurements in the ledger", event.sample_rate, rate, "measure_rate says")
        yield from compare("noise of measurements in the ledger", event.noise_multiplier, noise, "measure_noise says")
        yield from of_poisson_batches(event)


def _premises(parameters: QuantizedTraining, guarantee: Guarantee) -> Iterator[str]:
    yield from ("public rounding", "rounding by example")
    if parameters.measured_public_records is not None:
        yield "public measurements"
    if parameters.measured_synthetic_inputs is not None:
        yield "synthetic measurements"
    if guarantee.notion is Notion.APPROXIMATE_DP and parameters.measurements_begun:
        yield "measurements"


_DEAR = "the measurements take {share} % of epsilon; raise --measure-noise or --measure-every, or give {advice}"
#: The second text is that of versions that could not measure on synthetic inputs.
_ADVICE = "--sensitivity synthetic, which takes none|--layers random, which measures nothing"
#: The share of epsilon above which measurements need a warning, and the quantity that states the share.
_MOST, _SHARE = 0.1, "share of epsilon that measurements take"


def _warned(report: PrivacyReport, parameters: QuantizedTraining) -> Iterator[str]:
    yield from private_run_warns(report, parameters)
    shares = (i.estimate for i in report.evidence if i.quantity == _SHARE and i.estimate is not None)
    for share in shares:
        if share > _MOST:
            yield form(_DEAR, share=f"{100 * share:.2g}".replace("+", r"\+"), advice=_ADVICE)


EXPECTED = ExpectedMethod(
    parameters=QuantizedTraining,
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
        "synthetic measurements": (
            "how much quantizing a layer hurts is measured on inputs made up from a fixed seed and on weights that "
            "noisy steps gave: no record is read",
        ),
        "measurements": (
            "each release adds noise to a Poisson subsample's sum of vectors of loss differences, each clipped; "
            "nothing is trained on the way, every repetition counts, and so does one that was begun and lost",
        ),
    },
    accountants={"dpquant": TIGHT, _AS_PUBLISHED: f"({TIGHT}); DPQuant's own events"},
    of_another_ledger=frozenset({_AS_PUBLISHED}),
    warnings={"dear measurements": form(_DEAR, share=NUMBER, advice=_ADVICE)},
    warned=_warned,
    choices={
        "clipping": CLIPPING,
        "format": ("luq-fp4", "fp8", "fp8-stochastic", "int4", "uniform4"),
        "layers": ("dpquant", "random", "static", "all", "none"),
        "sensitivity": ("synthetic", "private", "public"),
        "scales": (_SCALES,),
    },
    rough="sums of measured differences of losses have no margin for it",
    noised=True,
    clipped=True,
)
