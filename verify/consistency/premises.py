"""Whether a guarantee's status follows from its assumptions, and these from the rest of the report.

Nothing in a report proves that an assumption was enforced: that is its author's word, signed or not. Three faults can
be detected: a state that nothing supports, a missing assumption, and a status better than the assumptions allow.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.events import Ledger
from privctl.domain.guarantee import AssumptionState, Guarantee, Notion, PrivacyUnit, Status, status_of
from privctl.domain.mechanism import ClippedTraining, Mechanism, Regime, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import (
    NoiseParameters,
    ParametersError,
    ProtectionParameters,
    TrainingParameters,
    parameters_as,
)
from verify.consistency import begun_with
from verify.events import row_of
from verify.methods import external_training
from verify.methods.expected import EXTERNAL
from verify.settings import public_records
from verify.settings.users import unit_of_privacy
from verify.stated import check_readable, method_of, noise_source_of, training_of

_TAKEN_AT_WORD = (AssumptionState.ASSERTED, AssumptionState.VIOLATED)
#: Assumptions that no program can enforce.
_NEVER_ENFORCED = frozenset({
    "convex-loss", "strongly-convex-loss", "smooth-loss", "clipping-inactive", "clipping-keeps-convexity",
    "tied-tensors", "separate-tensors", "unrounded-weights", "integer-tensors", "excluded-tensors", "frozen-tensors",
    "initial-statistics", "training-rounding", "vocabulary", "labels", "scaling", "plan", "book of secrets", "priors",
    "pairwise form", "selection", "public measurements", "names of users", "earlier searches", public_records.MIXED,
})  # fmt: skip
#: The end of an assumption on a public seed that the user gave: nothing shows that it was chosen independently of data.
_GIVEN = ", which was given"
#: Assumptions that are checked, not enforced.
_CHECKED = frozenset({"step-size", "plan's numbers", "float arithmetic", "rounding of sums", public_records.APART})
_OF_REGIME = {
    str(Regime.CONVEX): ("convex-loss", "clipping-keeps-convexity", "step-size"),
    str(Regime.STRONGLY_CONVEX): ("strongly-convex-loss", "clipping-inactive", "step-size"),
    str(Regime.SMOOTH): ("smooth-loss",),
}
_OF_START = ("starting weights", "normalisation statistics")
_OF_TRAINING = ("starting weights", "unit of privacy")
#: For secrets that a plan protects. (Guarantees for one record rest on "plan" instead: that the plan itself is known.)
_OF_PLAN = ("starting weights", "noise", "book of secrets", "priors", "plan's numbers")
#: For a plan that no training has followed yet.
_OF_PLANNING = ("whole book", "prior")
#: For each form of a plan, the assumption its bounds rest on: after a training, and before one.
_OF_FORM = {"reference": "reference form", "pairwise": "pairwise form"}
_PLANNED_FORM = {"pairwise": "opposite contributions"}
#: Tasks whose models have no tokenizer.
_WITHOUT_TEXT = ("image-classification", "audio-classification")
#: Tasks whose models name classes.
_WITH_CLASSES = ("text-classification", "token-classification", *_WITHOUT_TEXT)
#: For a phrase in the reason why a tensor got no noise, the assumption that this requires.
_UNTOUCHED = {
    "integer": "integer-tensors", "left out": "excluded-tensors", "public base": "frozen-tensors",
    "initial value": "initial-statistics",
}  # fmt: skip
#: Tensors that hold batch statistics, and the reasons for omitting noise that show they hold nothing of private data.
_STATISTICS = frozenset({"running_mean", "running_var"})
_NO_STATISTIC = frozenset({"equal to the public base", "initial value of a statistic"})
_HALF = frozenset({"F16", "BF16"})
#: The most that rounding may change a record's gradient, relative to its norm, in float32 and in lower precision.
_EXACT, _ROUNDED, _FLOAT32 = 1e-4, 0.1, "float32"
_NOT_TESTED = "no test says by how much a record's gradient differs with other records"
#: The description of an unpredictable noise source: a cipher, and a key from the operating system.
_SECRET_SOURCE = re.compile(r"(AES-256-CTR|ChaCha20) keystream\b.* under a key from the operating system\b")


def faults(report: PrivacyReport, guarantee: Guarantee, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields one sentence for each fault in the status and assumptions of one guarantee."""
    try:
        check_readable(report)
        yield from _faults(report, guarantee, parents)
    except ParametersError as fault:  # of this report or a parent: unreadable parameters support nothing
        needs_support = [a for a in guarantee.assumptions if a.state not in _TAKEN_AT_WORD]
        yield from (f"its assumption {a.name!r} is said to be {a.state}, but {fault}" for a in needs_support)
        if not needs_support:
            yield str(fault)


def _faults(report: PrivacyReport, guarantee: Guarantee, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    if guarantee.unit is not (wanted := _unit(report, guarantee)):
        yield f"it protects one {guarantee.unit}, but what was recorded bounds one {wanted}"
    states = {a.name: a.state for a in guarantee.assumptions}
    yield from _duplicates(report, guarantee)
    earned = status_of(guarantee.assumptions)
    if guarantee.status in (Status.PROVED, Status.CONDITIONAL):
        if earned is Status.VOID:
            violated = next(a.name for a in guarantee.assumptions if a.state is AssumptionState.VIOLATED)
            yield f"its status is {guarantee.status}, but its assumption {violated!r} is violated, which makes it void"
        elif guarantee.status is Status.PROVED and earned is not Status.PROVED:
            asserted = next(a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED)
            yield f"its status is proved, but its assumption {asserted!r} is only asserted"
    if guarantee.status is Status.REFUTED:
        return
    for name in _required(report, guarantee):
        if name not in states:
            yield f"it rests on the assumption {name!r}, which it does not state"
    yield from _undeclared_releases(report, states)
    yield from _disagreeing_statements(report, {a.name: a.statement for a in guarantee.assumptions})
    yield from _wrong_states(report, guarantee, parents)
    yield from begun_with.faults(report, states, parents)
    yield from begun_with.left_out(report, _untouched_tensors(report), parents)


def _wrong_states(report: PrivacyReport, guarantee: Guarantee, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields a sentence for each assumption whose stated state is impossible or unsupported."""
    for item in guarantee.assumptions:
        if item.state is AssumptionState.ENFORCED and item.statement.endswith(_GIVEN):
            yield f"its assumption {item.name!r} is said to be enforced, but the seed was given: at best it is asserted"
    for name, state in dict.fromkeys((a.name, a.state) for a in guarantee.assumptions):
        yield from _unsupported_state(report, name, state, parents)
        if (state is AssumptionState.ENFORCED and name in _CHECKED) or (
            state is AssumptionState.CHECKED and (name not in _CHECKED)
        ):
            yield f"its assumption {name!r} is said to be {state}, which privctl never does"


def _duplicates(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Yields a sentence for each assumption stated twice: the state of one would count for the other."""
    counts = Counter(a.name for a in guarantee.assumptions)
    if report.step == "account":
        del counts["contribution"]  # each kind of event has its own
    for name, number in counts.items():
        if number > 1:
            yield f"it states the assumption {name!r} {number} times"


def _unit(report: PrivacyReport, guarantee: Guarantee) -> PrivacyUnit:
    """The unit that the mechanism protects. A secret may occur in many records, so it differs from an example."""
    events = report.mechanism.events if isinstance(report.mechanism, Ledger) else ()
    if guarantee.notion is Notion.SECRET_PROTECTION or any(
        row_of(event).unit is PrivacyUnit.SECRET for event in events
    ):
        return PrivacyUnit.SECRET
    return PrivacyUnit.EXAMPLE


def _disagreeing_statements(report: PrivacyReport, statements: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each assumption whose statement disagrees with the parameters of the training."""
    if report.step == EXTERNAL:
        yield from external_training.misstated(report, statements)
    if report.step != "retrain":
        return
    parameters = training_of(report)
    own_unit, goes_on = unit_of_privacy(parameters)
    statement = statements.get("unit of privacy", own_unit)
    if not (statement == own_unit or (goes_on and statement.startswith(f"{own_unit};"))):
        yield f"its assumption 'unit of privacy' says {statement!r}, but by its parameters {own_unit}"
    differing = f"{parameters.similar_names} names in {parameters.unit!r} that differ from another's "
    if not (statement := statements.get("names of users", differing)).startswith(differing):
        yield f"its assumption 'names of users' says {statement!r}, but its parameters count {parameters.similar_names}"
    search = getattr(parameters, "search", None)
    earlier = 0 if search is None else search.earlier or 0
    before = f"what {earlier} earlier {'search' if earlier == 1 else 'searches'} "
    if not (statement := statements.get("earlier searches", before)).startswith(before):
        yield f"its assumption 'earlier searches' says {statement!r}, but by its parameters {before.strip()}"
    public = f"that there are {parameters.examples} examples is public"
    if not (statement := statements.get("number of examples", public)).startswith(public):
        yield f"its assumption 'number of examples' says {statement!r}, but its parameters count {parameters.examples}"
    yield from public_records.misstated(parameters, statements)


def _required(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    if guarantee.arithmetic is not None:
        yield "float arithmetic"
    if isinstance(report.mechanism, WeightNoise):
        yield from _weight_noise_premises(report, report.mechanism, guarantee)
        return
    if report.step == "retrain":
        yield from _training_premises(report, guarantee)
    elif report.step == EXTERNAL:
        yield from external_training.required(report, guarantee)
    elif guarantee.notion is Notion.SECRET_PROTECTION and report.step != "account":
        yield from _OF_PLANNING
        if (name := _PLANNED_FORM.get(_form(report))) is not None:
            yield name
    if guarantee.notion is Notion.MUTUAL_INFORMATION:
        yield "public masks"
    elif isinstance(report.mechanism, Ledger):
        yield from _ledger_premises(report, report.mechanism, guarantee)


def _weight_noise_premises(report: PrivacyReport, mechanism: WeightNoise, guarantee: Guarantee) -> Iterator[str]:
    yield from ("training-facts", "secret-noise")
    if mechanism.grid is not None:
        yield "training-rounding"
    yield from _OF_REGIME.get(guarantee.name, ())
    yield from _tensor_premises(report)


def _ledger_premises(report: PrivacyReport, ledger: Ledger, guarantee: Guarantee) -> Iterator[str]:
    yield "contribution"
    for event in ledger.events:
        if (kind := row_of(event).drawn(event)) is not None:
            yield f"{kind} batches"
    if report.step != "retrain":
        return
    yield "secret noise"
    of_secrets = guarantee.notion is Notion.SECRET_PROTECTION and "onto a grid" in _source(report)
    if of_secrets:
        yield "float arithmetic"
    clipped = any(a.name == "contribution" and "clip norm" in a.statement for a in guarantee.assumptions)
    if clipped and (of_secrets or guarantee.arithmetic is not None):
        yield "rounding of sums"


def _training_premises(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    parameters, method = training_of(report), method_of(report)
    if parameters.frozen_norm_layers:
        yield "normalisation statistics"
    if parameters.task not in _WITHOUT_TEXT:
        yield "vocabulary"
    if parameters.task in _WITH_CLASSES:
        yield "labels"
    if method is not None:
        yield from method.premises(parameters, guarantee)
    if guarantee.notion is not Notion.SECRET_PROTECTION:
        yield from (*_OF_TRAINING, "number of examples" if parameters.plan is None else "plan")
        if parameters.similar_names:
            yield "names of users"
        return
    yield from _OF_PLAN
    if parameters.plan is not None and (form := _OF_FORM.get(parameters.plan.form or "")) is not None:
        yield form


def _undeclared_releases(report: PrivacyReport, states: Mapping[str, AssumptionState]) -> Iterator[str]:
    """If names or statistics of private data were released unchanged, the assumption on them must be violated."""
    for name in _collected(report):
        if states.get(name) is not AssumptionState.VIOLATED:
            yield f"the {name} was collected from the private data, but the guarantee does not state this as violated"
    released = [name for name, reason in _untouched_tensors(report).items() if reason not in _NO_STATISTIC]
    statistics = [name for name in released if name.rsplit(".", 1)[-1] in _STATISTICS]
    if statistics and states.get("batch-statistics") is not AssumptionState.VIOLATED:
        yield (
            f"{statistics[0]} was released without noise, but the guarantee does not state 'batch-statistics' as "
            "violated"
        )


def _tensor_premises(report: PrivacyReport) -> Iterator[str]:
    untouched = _untouched_tensors(report)
    for part, name in _UNTOUCHED.items():
        if any(part in reason for reason in untouched.values()):
            yield name
    if report.step == "noise" and parameters_as(NoiseParameters, report).tensors_tied:
        yield "tied-tensors"
    tensors = [t for artifact in report.outputs for t in artifact.tensors]
    if any(t.dtype in _HALF and t.name not in untouched for t in tensors):
        yield "unrounded-weights"


def _untouched_tensors(report: PrivacyReport) -> Mapping[str, str]:
    """The tensors that got no noise, each with the reason."""
    return (parameters_as(NoiseParameters, report).tensors_untouched or {}) if report.step == "noise" else {}


def _collected(report: PrivacyReport) -> tuple[str, ...]:
    """The names of what was collected from the private data."""
    if report.step == "noise":
        return parameters_as(NoiseParameters, report).collected_from_data or ()
    return training_of(report).collected_from_data if report.step == "retrain" else ()


def _form(report: PrivacyReport) -> str:
    """The form of a protection plan; "" for other steps."""
    return (parameters_as(ProtectionParameters, report).form or "") if report.step == "secrets-plan" else ""


def _unsupported_state(
    report: PrivacyReport, name: str, state: AssumptionState, parents: Sequence[PrivacyReport]
) -> Iterator[str]:
    """Yields a sentence if the rest of the report does not support this state of the assumption ``name``."""
    if state not in (AssumptionState.ENFORCED, AssumptionState.CHECKED):
        if name in ("secret-noise", "secret noise") and state is AssumptionState.ASSERTED and _has_given_seed(report):
            yield f"its assumption {name!r} is asserted, but the noise was made from a given seed, which violates it"
        return
    word = f"its assumption {name!r} is said to be {state}"
    if report.step == EXTERNAL and not external_training.may_enforce(name):
        yield f"{word}, but of a loop that is not privctl's it is at best asserted"
        return
    yield from _why_unsupported(report, name, word, parents)


def _why_unsupported(report: PrivacyReport, name: str, word: str, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields why the assumption ``name`` cannot be enforced or checked here; ``word`` is the start of the sentence."""
    if report.step in ("account", "secrets-plan"):
        yield f"{word}, but a plan enforces and checks nothing"
    elif (name == "contribution" and report.step == "retrain" and (fault := _untested(report))) or (
        name == "rounding of sums" and (fault := _too_rough(report))
    ):
        yield f"{word}, but {fault}"
    elif name in _NEVER_ENFORCED:
        yield f"{word}, but no program can enforce it: at best it is asserted"
    elif name == "training-facts" and not _facts_known(report, parents):
        yield f"{word}, but no parent report of a training from random weights records these facts for these files"
    elif name in ("secret-noise", "secret noise") and not _SECRET_SOURCE.match(_source(report)):
        yield f"{word}, but the noise came from {_source(report) or 'a source that is not named'}"
    elif name in _OF_START and not _knows_new_layers(report, name):
        yield f"{word}, but the training began with weights from elsewhere"
    elif name == "step-size" and not _has_smoothness(report.mechanism):
        yield f"{word}, but the loss's smoothness is not known"


def _knows_new_layers(report: PrivacyReport, name: str) -> bool:
    """Whether the program knows how the start was made: weights at random, or batch normalisation converted away."""
    if report.step != "retrain":
        return False
    parameters = training_of(report)
    converted = name == "normalisation statistics" and parameters.converted == "batch-norm"
    return converted or parameters.initial_weights == "random"


def _untested(report: PrivacyReport) -> str:
    """What is wrong with the recorded self-test that no record changes another's gradient; "" if nothing is."""
    parameters, method = training_of(report), method_of(report)
    test = parameters.contribution_test
    if test is None:
        return "it states no test that a record's gradient does not depend on other records"
    differences, allowed = test.differences, test.allowed
    if differences.keys() != allowed.keys():
        return "the test that it states does not say what was found and what was allowed"
    if not differences and (method is None or not method.unclipped(parameters)):
        return "the test that it states compared no gradients"
    if differences and not any(_FLOAT32 in stage for stage in differences):
        return "its test was not made in float32"
    for stage, moved in differences.items():
        limit = allowed[stage]
        if not 0 <= moved <= limit:
            return f"in its test ({stage}) a gradient moved by {moved} with other records, where {limit} was allowed"
        if limit > (_EXACT if _FLOAT32 in stage else _ROUNDED):
            return f"its test ({stage}) allowed {limit:g}, which is more than rounding makes"
    return ""


def _too_rough(report: PrivacyReport) -> str:
    """Why rounding may change a batch's sum by more than clipping's margin; "" if the test shows that it does not."""
    if report.step != "retrain":
        return _NOT_TESTED
    parameters, method = training_of(report), method_of(report)
    if method is not None and method.rough:
        return method.rough
    size, test = parameters.batch_size, parameters.contribution_test
    largest = max(test.differences.values(), default=math.inf) if test is not None else math.inf
    try:
        records = min(math.ceil(size + 6 * math.sqrt(size) + 20), parameters.examples)
    except (ValueError, OverflowError):
        return _NOT_TESTED
    moved = records * (largest + 2.0**-22)
    margin = 2.0**-4 if parameters.bf16 else 2.0**-10
    return "" if moved <= margin else f"{records} records may move a sum by {moved:.2g} of the clip norm by rounding"


def _facts_known(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> bool:
    """Whether a parent report of a training from random weights records the training facts that the mechanism uses."""
    mechanism = report.mechanism
    read = {artifact.digest for artifact in report.inputs if artifact.role == "model"}
    return isinstance(mechanism, WeightNoise) and any(
        parent.step == "retrain"
        and parameters_as(TrainingParameters, parent).initial_weights == "random"
        and isinstance(parent.mechanism, ClippedTraining)
        and _same_training(parent.mechanism, mechanism.training)
        and read <= {artifact.digest for artifact in parent.outputs}
        for parent in parents
    )


def _same_training(recorded: ClippedTraining, used: ClippedTraining | None) -> bool:
    """Whether two trainings agree apart from the loss, whose properties are assumptions listed separately."""
    if used is None:
        return False
    about_loss = ("smoothness", "strong_convexity")
    return all(getattr(recorded, n) == getattr(used, n) for n in recorded.__slots__ if n not in about_loss)


def _source(report: PrivacyReport) -> str:
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        return mechanism.noise_source
    return noise_source_of(report) or ""


def _has_given_seed(report: PrivacyReport) -> bool:
    return "given seed" in _source(report)


def _has_smoothness(mechanism: Mechanism | None) -> bool:
    training = mechanism.training if isinstance(mechanism, WeightNoise) else None
    return training is not None and training.smoothness is not None
