"""Whether a report agrees with itself: its parameters with its mechanism, and its guarantees with both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from privctl.domain.events import Batches, Event, Ledger, RandomizedResponse, SampledGaussian, SignBits
from privctl.domain.guarantee import Adjacency, Notion, Scope
from privctl.domain.mechanism import Calibration, ClippedTraining, Formula, Regime, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.storage.header import elements_of
from verify.plans import of_plan
from verify.recompute import dp_weights, gaussian, gridded
from verify.recompute.sensitivity import TooManyStepsError, sensitivity

_ROUNDING = 1e-9
#: Whole numbers in JSON may be larger than any float.
_LARGEST = 1e300
_UNTOUCHED = frozenset({
    "integer type", "left out by --include or --exclude", "equal to the public base", "initial value of a statistic",
})  # fmt: skip


_IMAGES = "image-classification"
_TASKS = ("causal-lm", "masked-lm", "text-classification", _IMAGES)
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt", "merges.txt", "spiece.model"})


def contradictions(report: PrivacyReport) -> Iterator[str]:
    """Each disagreement in one sentence that names what disagrees."""
    try:
        if report.step in _OF_STEP:
            yield from _OF_STEP[report.step](report)
    except (ArithmeticError, ValueError) as error:
        yield f"the parameters hold a number that no {report.step} step has: {error}"
    deltas = {g.delta for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP or g.delta > 0}
    said = report.parameters.get("delta")
    if report.guarantees and report.step in (*_OF_STEP, "secrets-plan") and not isinstance(said, float):
        yield "the parameters do not say for which delta the guarantees are"
    if isinstance(said, float) and deltas - {said}:
        yield f"a guarantee has delta {max(deltas - {said}):g}, but the parameters say {said:g}"
    elif len(deltas) > 1:
        yield f"its guarantees have different deltas: {', '.join(f'{d:g}' for d in sorted(deltas))}"


def _compare(what: str, found: Any, expected: Any, source: str) -> Iterator[str]:
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        alike = found == expected or (
            max(abs(found), abs(expected)) <= _LARGEST and math.isclose(found, expected, rel_tol=_ROUNDING, abs_tol=0.0)
        )
    else:
        alike = found == expected
    if not alike:
        yield f"{what} is {_shown(found)}, but {source} {_shown(expected)}"


def _shown(value: Any) -> str:
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _noise(report: PrivacyReport) -> Iterator[str]:
    mechanism, said = report.mechanism, report.parameters
    if not isinstance(mechanism, WeightNoise):
        yield "a noise step has no mechanism that says how much noise was added"
        return
    yield from _compare("parameter calibration", said.get("calibration"), mechanism.calibration.value, "mechanism says")
    epsilon, delta = said.get("epsilon"), said.get("delta")
    if not (isinstance(epsilon, (int, float)) and isinstance(delta, float)):
        yield "the parameters do not say for which epsilon and delta the noise was chosen"
        return
    if not (0 < epsilon <= _LARGEST and 0 < delta < 1):
        yield f"the parameters say epsilon {_shown(epsilon)} and delta {_shown(delta)}, for which no noise is chosen"
        return
    yield from _stddev(mechanism, float(epsilon), delta)
    yield from _collected(said)
    if mechanism.candidate_stddevs and mechanism.noise_stddev not in mechanism.candidate_stddevs:
        yield f"noise_stddev {mechanism.noise_stddev:g} is not among the candidate_stddevs"
    yield from _tensors(report, mechanism)
    for guarantee in report.guarantees:
        if guarantee.name == "published":
            yield from _compare("epsilon of 'published'", guarantee.epsilon, float(epsilon), "the noise was made for")
            shift = dp_weights.shift(mechanism.training)
            yield from _compare("sensitivity of 'published'", guarantee.sensitivity, shift, "the paper's formula gives")
            if guarantee.adjacency is not Adjacency.UNSTATED or guarantee.notion is not Notion.APPROXIMATE_DP:
                yield "'published' states neighbours or a notion of privacy, and the paper states none"
            if guarantee.scope is not Scope.THIS_MODEL:
                yield "'published' speaks of all candidates, and the paper of one model"
        if guarantee.scope is Scope.ALL_CANDIDATES and len(mechanism.candidate_stddevs) < 2:
            yield f"{guarantee.name!r} speaks of all candidates, but there is one"


def _stddev(mechanism: WeightNoise, epsilon: float, delta: float) -> Iterator[str]:
    """The standard deviation against the calibration's own formula."""
    found = mechanism.noise_stddev
    if mechanism.calibration is Calibration.DP_WEIGHTS:
        wanted = dp_weights.stddev(mechanism.training, epsilon, delta, mechanism.formula or Formula.ALGORITHM_2)
        yield from _compare("noise_stddev", found, wanted, "the published formula gives")
        return
    factor = gaussian.multiplier_at(epsilon, delta).upper
    # For the floats that are written it takes a little more: the cost at a level of epsilon above the one asked for.
    more = _ROUNDING if mechanism.grid is None else 1e-5 + 4 * gridded.largest_cost(mechanism, epsilon, delta) / epsilon
    regime = mechanism.regime or Regime.NONCONVEX
    try:
        wanted_by = [
            value * factor
            for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
            if (value := sensitivity(mechanism.training, regime, adjacency, mechanism.dimension)) is not None
        ]
    except TooManyStepsError:
        return  # the guarantee's own verdict says that it stays open
    if not any(wanted * (1 - _ROUNDING) <= found <= wanted * (1 + more) for wanted in wanted_by):
        shown = " or ".join(f"{wanted:.12g}" for wanted in wanted_by) or "nothing"
        yield f"noise_stddev is {found:.12g}, but the Gaussian calibration for {regime} losses gives {shown}"


def _tensors(report: PrivacyReport, mechanism: WeightNoise) -> Iterator[str]:
    tensors = {t.name: t for artifact in report.outputs for t in artifact.tensors}
    untouched, tied = report.parameters.get("tensors_untouched"), report.parameters.get("tensors_tied")
    if not any(artifact.role == "model" for artifact in report.outputs):
        return  # said elsewhere: no bound is of any model then
    if not tensors or not isinstance(untouched, dict) or not isinstance(tied, list):
        yield "it does not say which tensors were written, and which of them have no noise or are tied"
        return
    for name in sorted(untouched):
        if str(untouched[name]) not in _UNTOUCHED:
            yield f"tensor {name!r} is said to have no noise for a reason that privctl does not have: {untouched[name]}"
    noised = {name: t for name, t in tensors.items() if name not in untouched}
    yield from _compare(
        "tensors_noised", report.parameters.get("tensors_noised"), len(noised), "the tensors listed are"
    )
    again = {name for group in tied for name in group[1:]}
    counts = [elements_of(t.shape) for name, t in noised.items() if name not in again]
    counted = None if None in counts else sum(count for count in counts if count is not None)
    yield from _compare("dimension", mechanism.dimension, counted, "the tensors that got noise hold")


def _retrain(report: PrivacyReport) -> Iterator[str]:
    said, mechanism = report.parameters, report.mechanism
    method = str(said.get("method"))
    if not isinstance(mechanism, _OF_METHOD.get(method, ())):
        yield f"its mechanism is not one of the method {method!r}"
    if said.get("task") not in _TASKS:
        yield f"privctl has no task of the name {_shown(said.get('task'))}"
    written = {Path(artifact.path).name for artifact in report.outputs}
    if said.get("task") == _IMAGES and (tokenizers := sorted(written & _TOKENIZERS)):
        yield f"its task is one of images, but it wrote {', '.join(tokenizers)}"
    yield from _start(report)
    yield from _plan_followed(report)
    yield from _collected(said)
    if isinstance(mechanism, ClippedTraining):
        yield from _clipped(mechanism, said)
        return
    examples, batch = said.get("examples"), said.get("batch_size")
    if not (isinstance(examples, int) and isinstance(batch, (int, float)) and examples > 0):
        yield "the parameters do not say how many examples there are, and how many make a batch"
    else:
        yield from _compare(
            "parameter sample_rate", said.get("sample_rate"), batch / examples, "batch_size / examples is"
        )
    if isinstance(mechanism, SignBits):
        yield from _published_signs(mechanism, said)
    if isinstance(mechanism, Ledger):
        yield from (_ferret if said.get("method") == "ferret" else _sampled)(mechanism, said)


def _start(report: PrivacyReport) -> Iterator[str]:
    """Random weights are read from no file."""
    began = report.parameters.get("initial_weights")
    read = any(a.role.startswith("start-") and a.role.endswith(".safetensors") for a in report.inputs)
    if began not in ("random", "checkpoint") or (began == "random") is read:
        files = "files of weights are among its inputs" if read else "no file of weights is among its inputs"
        yield f"its training is said to have begun with {_shown(began)} weights, but {files}"


def _collected(said: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(said.get("collected_from_data"), list):
        yield "it does not say which names were collected from the private data"


def _plan_followed(report: PrivacyReport) -> Iterator[str]:
    """A plan that was followed is one of the inputs, under the digest that is stated."""
    plan = report.parameters.get("plan")
    told = plan.get("digest") if isinstance(plan, dict) else None
    read = [artifact.digest for artifact in report.inputs if artifact.role == "plan"]
    if read != ([] if plan is None else [told]):
        yield "the plan of protection that its parameters name is not the one among its inputs"


def _clipped(mechanism: ClippedTraining, said: Mapping[str, Any]) -> Iterator[str]:
    """Clipped training without noise: the facts that noise added later is made for."""
    names = ("clip_norm", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "batch_size", "optimizer")
    for name in names:
        yield from _compare(f"mechanism's {name}", getattr(mechanism, name), said.get(name), "the parameters say")
    yield from _compare("dataset_size", mechanism.dataset_size, said.get("examples"), "the parameters say")
    updates = said.get("updates")
    if mechanism.steps is None and isinstance(updates, int):
        a_pass = math.ceil(mechanism.dataset_size / mechanism.batch_size)
        yield from _compare("mechanism's epochs", mechanism.epochs, updates // a_pass, "the updates made are")
    elif mechanism.steps is None:
        yield "it does not say how many updates were made"


def _published_signs(mechanism: SignBits, said: Mapping[str, Any]) -> Iterator[str]:
    """FERRET as published: the signs of the recipe, all that fired."""
    yield from _compare("release", said.get("release"), "published", "signs as they are is")
    groups = said.get("fired_by_group")
    if isinstance(groups, list):
        yield from _compare("fired", said.get("fired"), sum(groups), "the groups together fired")
    pairs = {
        "groups": "number_of_groups", "fire_probability": "fire_probability", "sample_rate": "sample_rate",
        "steps": "steps",
    }  # fmt: skip
    for name, key in pairs.items():
        yield from _compare(f"mechanism's {name}", getattr(mechanism, name), said.get(key), f"parameter {key} says")


def _sampled(ledger: Ledger, said: Mapping[str, Any]) -> Iterator[str]:
    """DP-SGD: all steps begun, at the rate and noise of the recipe."""
    events = [e for e in ledger.events if isinstance(e, SampledGaussian)]
    if len(events) < len(ledger.events):
        return
    if said.get("method") == "dpquant":
        yield from _measurements(events[1:], said)
        events = events[:1]
    total = sum(e.steps for e in events)
    yield from _compare("number of steps in the ledger", total, said.get("steps_begun"), "steps_begun says")
    for event in events:
        plan = said.get("plan")  # of a plan's records, the one drawn most often is accounted for
        rate = plan.get("largest_probability") if isinstance(plan, dict) else said.get("sample_rate")
        yield from _compare("rate in the ledger", event.sample_rate, rate, "the parameters say")
        noise = said.get("noise_multiplier")
        yield from _compare("noise multiplier in the ledger", event.noise_multiplier, noise, "the parameters say")
        yield from _compare("kind of batches in the ledger", event.batches, Batches.POISSON, "this method draws")
    updates = said.get("updates")
    if isinstance(updates, int) and updates > total:
        yield f"{updates} updates were made, but the ledger holds {total} steps"


def _measurements(events: Sequence[SampledGaussian], said: Mapping[str, Any]) -> Iterator[str]:
    """DPQuant: every measurement begun, at its own rate and noise, is the ledger's second event."""
    begun = said.get("measurements_begun") or 0
    yield from _compare("number of measurements in the ledger", sum(e.steps for e in events), begun, "the run began")
    for event in events:
        rate, noise = said.get("measure_rate"), said.get("measure_noise")
        yield from _compare("rate of measurements in the ledger", event.sample_rate, rate, "measure_rate says")
        yield from _compare("noise of measurements in the ledger", event.noise_multiplier, noise, "measure_noise says")
        yield from _compare("kind of batches in the ledger", event.batches, Batches.POISSON, "this method draws")


def _ferret(ledger: Ledger, said: Mapping[str, Any]) -> Iterator[str]:
    """FERRET: the steps in which anything fired, with as many values in each as fired together."""
    total = sum(e.steps for e in ledger.events)
    yield from _compare("number of steps in the ledger", total, said.get("fired_steps"), "fired_steps says")
    fired, release = said.get("fired"), said.get("release")
    groups = said.get("fired_by_group")
    if isinstance(groups, list):
        yield from _compare("fired", fired, sum(groups), "the groups together fired")
    values = 0
    for event in ledger.events:
        yield from _ferret_event(event, said)
        values += _values(event, said) * event.steps
    kinds = {type(event) for event in ledger.events}
    if kinds != {RandomizedResponse if release == "randomized-response" else SampledGaussian}:
        yield f"the ledger's events are not those of the release {release!r}"
    if release != "gaussian":
        yield from _compare("number of values in the ledger", values, fired, "fired says")


def _ferret_event(event: Event, said: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(event, (SampledGaussian, RandomizedResponse)):
        yield from _compare("rate in the ledger", event.sample_rate, said.get("sample_rate"), "the parameters say")
    if isinstance(event, RandomizedResponse):
        yield from _compare("log-odds in the ledger", event.epsilon, said.get("bit_epsilon"), "bit_epsilon says")
    if isinstance(event, SampledGaussian):
        yield from _compare("kind of batches in the ledger", event.batches, Batches.POISSON, "this method draws")
        noise, found = said.get("noise_multiplier"), event.noise_multiplier
        if said.get("release") == "gaussian":
            yield from _compare("noise multiplier in the ledger", found, noise, "the parameters say")
        elif isinstance(noise, float):
            wanted = noise / (2 * math.sqrt(max(1, _values(event, said))))
            if not math.isclose(found, wanted, rel_tol=_ROUNDING):
                yield f"noise multiplier {found:g} in the ledger is not {noise:g} / (2 sqrt(a number of groups))"


def _values(event: Event, said: Mapping[str, Any]) -> int:
    """How many groups fired together in the event's steps."""
    if isinstance(event, RandomizedResponse):
        return event.bits
    noise = said.get("noise_multiplier")
    if not (isinstance(event, SampledGaussian) and isinstance(noise, float)):
        return 0
    return round((noise / (2 * event.noise_multiplier)) ** 2)


#: Method of training -> what its report may say touched the data.
_OF_METHOD: dict[str, tuple[type, ...]] = {
    "plain": (NoneType,), "clipped": (ClippedTraining,), "dp-sgd": (Ledger,), "dpquant": (Ledger, NoneType),
    "ferret": (Ledger, SignBits, NoneType),
}  # fmt: skip
_OF_STEP: dict[str, Callable[[PrivacyReport], Iterator[str]]] = {
    "noise": _noise,
    "retrain": _retrain,
    "account": of_plan,
}
