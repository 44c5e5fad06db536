"""Reports of training in another program's loop: their numbers must agree, and no assumption may count as enforced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType

from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import ExternalTrainingParameters, TrainingParameters, parameters_as
from verify.compare import LARGEST, compare, shown
from verify.methods.expected import CLIPPING
from verify.settings.clip_norms import CHANGING, StatedNorms, norms_disagree
from verify.settings.users import unit_of_privacy

STEP = "external-training"
_OWN_LOOP, _OPACUS, _TRAINER, UNKNOWN = "own-loop", "opacus", "transformers-trainer", "unknown"
#: For each program, the mechanism of its reports and the assumption on what was taken from it unchecked.
_PROGRAMS: dict[str, tuple[type, str]] = {
    _OWN_LOOP: (Ledger, "own loop"),
    _OPACUS: (Ledger, "reported ledger"),
    _TRAINER: (NoneType, ""),
    UNKNOWN: (NoneType, ""),
}
#: What the reports of each program state of a training. Those of ``_OWN_LOOP`` may add users and a changing clip norm.
_STATED: dict[str, frozenset[str]] = {
    _OWN_LOOP: frozenset({
        "examples", "batch_size", "sample_rate", "noise_multiplier", "clip_norm", "clipping", "delta", "optimizer",
        "steps_begun", "released_numbers", "noise_source", *CHANGING,
        "unit", "records", "similar_names", "records_per_draw",
    }),
    _OPACUS: frozenset({"examples", "delta", "clip_norm", "accountant_history", "steps_begun", "noise_source"}),
    _TRAINER: frozenset({
        "examples", "batch_size", "epochs", "learning_rate", "optimizer", "updates", "measured_members",
        "measured_nonmembers",
    }),
    UNKNOWN: frozenset(),
}  # fmt: skip
#: The least value of settings that are numbers.
_LEAST = {
    "clip_norm": 1 / LARGEST, "batch_size": 1 / LARGEST, "epochs": 0, "learning_rate": 0, "updates": 0,
    "measured_members": 0, "measured_nonmembers": 0,
}  # fmt: skip
#: Assumptions that another program's loop cannot break: the source of the noise, and its grid.
_NOT_ASSERTED = frozenset({"secret noise", "float arithmetic"})
_NAMES = ExternalTrainingParameters.__dataclass_fields__.keys() - {"program"}
_ALWAYS = ("starting weights", "unit of privacy", "number of examples", "other releases", "secret noise")


def parameters_of(report: PrivacyReport) -> ExternalTrainingParameters:
    """The parameters of the report. Raises ParametersError if they are unreadable."""
    return parameters_as(ExternalTrainingParameters, report)


def disagreements(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence per difference between the parameters, the mechanism and the guarantees."""
    parameters, mechanism = parameters_of(report), report.mechanism
    if parameters.program not in _PROGRAMS:
        yield f"privctl writes no report of a training in {shown(parameters.program)}"
        return
    if not isinstance(mechanism, _PROGRAMS[parameters.program][0]):
        yield f"a training in {shown(parameters.program)} cannot have the mechanism stated"
    yield from _users(parameters)
    yield from _settings(parameters)
    if isinstance(mechanism, Ledger):
        yield from compare("number of guarantees", len(report.guarantees), 1, "such a report states")
        for guarantee in report.guarantees:
            yield from _guaranteed(guarantee, parameters)
        yield from _ledger_faults(mechanism, parameters)


def _settings(parameters: ExternalTrainingParameters) -> Iterator[str]:
    """Yields a sentence for each parameter that the program's reports do not state, or whose value no training has."""
    nothing = ExternalTrainingParameters(program=parameters.program)
    for name in sorted(_NAMES - _STATED[parameters.program]):
        if getattr(parameters, name) != getattr(nothing, name):
            yield f"parameter {name} is stated, and no report of a training in {shown(parameters.program)} has it"
    for name, least in _LEAST.items():
        size = getattr(parameters, name)
        if size is not None and not least <= size <= LARGEST:
            yield f"parameter {name} is {shown(size)}, which no training has"
    if parameters.program == _OWN_LOOP:
        yield from _steps(parameters)


def _steps(parameters: ExternalTrainingParameters) -> Iterator[str]:
    """Yields a sentence for each setting of privctl's own steps that is missing or none of theirs."""
    if parameters.clip_norm is None:
        yield "its parameters do not say to which norm gradients were clipped"
    if parameters.clipping not in CLIPPING:
        yield f"parameter clipping is {shown(parameters.clipping)}, and steps are clipped by {', '.join(CLIPPING)}"
    if not (parameters.optimizer or "").isidentifier():
        yield f"parameter optimizer is {shown(parameters.optimizer)}, which is no name of a class"


def _users(parameters: ExternalTrainingParameters) -> Iterator[str]:
    """Yields one sentence per fault in the parameters on users."""
    of_users = (parameters.unit, parameters.records, parameters.similar_names)
    if of_users == (None, None, None) and parameters.records_per_draw is None:
        return
    if parameters.program != _OWN_LOOP or None in of_users:
        yield "its parameters speak of users, and do not say all that a loop of privctl's own steps says of them"
        return
    if parameters.records is None or parameters.records < (parameters.examples or 0):
        yield f"it counts {parameters.examples} users, who have {parameters.records} records, fewer than one each"
    similar = parameters.similar_names or 0
    if not 0 <= similar <= (parameters.examples or 0) or similar == 1:
        yield f"similar_names is {similar}, which counts names that differ only in spelling from others of users"
    if parameters.records_per_draw is not None and parameters.records_per_draw < 2:
        yield f"records_per_draw is {parameters.records_per_draw}, where a user's records would not be clipped together"


def misstated(report: PrivacyReport, statements: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each assumption on the unit of privacy that disagrees with the parameters."""
    parameters = parameters_of(report)
    own_unit, goes_on = unit_of_privacy(
        TrainingParameters(unit=parameters.unit, records_per_draw=parameters.records_per_draw)
    )
    statement = statements.get("unit of privacy", own_unit)
    if not (statement == own_unit or (goes_on and statement.startswith(f"{own_unit};"))):
        yield f"its assumption 'unit of privacy' says {statement!r}, but by its parameters {own_unit}"
    differing = f"{parameters.similar_names} names in {parameters.unit!r} that differ from another's "
    if not (statement := statements.get("names of users", differing)).startswith(differing):
        yield f"its assumption 'names of users' says {statement!r}, but its parameters count {parameters.similar_names}"


def _guaranteed(guarantee: Guarantee, parameters: ExternalTrainingParameters) -> Iterator[str]:
    yield from compare("name of the guarantee", guarantee.name, parameters.program, "the program is")
    stated = next((a.statement for a in guarantee.assumptions if a.name == "number of examples"), None)
    if stated is not None and f"there are {parameters.examples} examples" not in stated:
        yield f"its assumption 'number of examples' speaks of others than {parameters.examples}"
    if guarantee.arithmetic is not None:
        counted, released = guarantee.arithmetic.coordinates, parameters.released_numbers
        yield from compare("parameter released_numbers", released, counted, "the guarantee counts")


def _ledger_faults(ledger: Ledger, parameters: ExternalTrainingParameters) -> Iterator[str]:
    events = [event for event in ledger.events if isinstance(event, SampledGaussian)]
    if len(events) < len(ledger.events) or any(event.batches is not Batches.POISSON for event in events):
        yield "its ledger holds another event than a Gaussian of Poisson batches"
    total = sum(event.steps for event in ledger.events)
    yield from compare("number of steps in the ledger", total, parameters.steps_begun, "steps_begun says")
    if parameters.program == _OPACUS:
        if [(e.noise_multiplier, e.sample_rate, e.steps) for e in events] != list(parameters.accountant_history):
            yield "its ledger is not the history of Opacus's accountant that its parameters state"
        return
    yield from _own_loop(parameters)
    yield from norms_disagree(_norms(parameters))
    norm_updates = len(parameters.clip_norms or ()) - 1
    if norm_updates > (parameters.steps_begun or 0):
        yield f"its clip norms are of {norm_updates} steps, and {parameters.steps_begun} were begun"
    for event in events:
        yield from _own_event(event, parameters)


def _norms(parameters: ExternalTrainingParameters) -> StatedNorms:
    """The clip norms: one per step made, since some of the steps begun may not have been made."""
    return StatedNorms(
        clip_norm=parameters.clip_norm,
        clipping=parameters.clipping,
        noise_multiplier=parameters.noise_multiplier,
        batch_size=parameters.batch_size,
        updates=len(parameters.clip_norms or ()) - 1,
        reduced=False,
        target_unclipped_quantile=parameters.target_unclipped_quantile,
        clip_norm_learning_rate=parameters.clip_norm_learning_rate,
        unclipped_count_stddev=parameters.unclipped_count_stddev,
        sum_noise_multiplier=parameters.sum_noise_multiplier,
        clip_norms=parameters.clip_norms,
    )


def _own_event(event: SampledGaussian, parameters: ExternalTrainingParameters) -> Iterator[str]:
    source = "the parameters say"
    yield from compare("rate in the ledger", event.sample_rate, parameters.sample_rate, source)
    yield from compare("noise multiplier in the ledger", event.noise_multiplier, parameters.noise_multiplier, source)


def _own_loop(parameters: ExternalTrainingParameters) -> Iterator[str]:
    if not parameters.examples or parameters.examples < 1 or parameters.batch_size is None:
        yield "its parameters do not say how many examples there were, or how large a batch was"
        return
    rate = parameters.batch_size / parameters.examples
    yield from compare("parameter sample_rate", parameters.sample_rate, rate, "batch_size / examples is")
    released, steps = parameters.released_numbers or 0, parameters.steps_begun or 1
    if released < steps or released % steps:
        yield f"it says that {released} numbers were released, which is no whole number in each of {steps} steps"


def required(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Yields the assumptions that ``guarantee`` must state in addition to those of its mechanism."""
    yield from _ALWAYS
    parameters = parameters_of(report)
    program = parameters.program
    if program == _OWN_LOOP and _norms(parameters).changes:
        yield "unclipped count"
    if parameters.similar_names:
        yield "names of users"
    if program in _PROGRAMS:
        yield _PROGRAMS[program][1]
    if guarantee.arithmetic is not None:
        yield "rounding of sums"


def may_enforce(name: str) -> bool:
    """Whether the assumption called ``name`` may be stated as better than asserted."""
    return name in _NOT_ASSERTED
