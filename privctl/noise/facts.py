"""Training facts from the command line, a facts file, or the model's own report.

All sources are combined; contradictions are refused, and all missing facts are listed at once.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError, InputError
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.mechanism import ClippedTraining, Optimizer, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text

_FIELDS = {f.name: f for f in dataclasses.fields(ClippedTraining)}
#: The facts that every sensitivity bound needs.
REQUIRED = tuple(name for name, f in _FIELDS.items() if f.default is dataclasses.MISSING)
_WHOLE = ("epochs", "dataset_size", "batch_size", "steps")
_EXAMPLES = {"epochs": "3", "learning_rate": "5e-5", "clip_norm": "1", "dataset_size": "1000", "batch_size": "8"}
#: The name of the command line as a source of facts.
FLAGS = "the command line"
#: Facts about the loss rather than the training run; each regime that uses one has its own assumption.
_LOSS_PROPERTIES = ("smoothness", "strong_convexity")
#: Keys of a facts file that belong to the release rather than the training.
RELEASE_KEYS = ("delta",)


@dataclass(frozen=True, slots=True)
class FactSource:
    """Facts and the name of their source, as shown to the user; ``enforced`` if privctl's training enforced them."""

    name: str
    values: Mapping[str, Any]
    enforced: bool = False


class MissingFactsError(CommandError):
    """Required facts are missing; ``known`` holds those given, each with its source."""

    def __init__(
        self, missing: Sequence[str], known: Mapping[str, tuple[Any, FactSource]], delta: float | None, model: str
    ) -> None:
        self.missing, self.known, self.delta = tuple(missing), dict(known), delta
        flags = " ".join(f"--{name.replace('_', '-')} {_EXAMPLES[name]}" for name in missing)
        self.example = f"privctl noise {shlex.quote(model)} {flags}"
        super().__init__(
            f"how much noise {model} needs depends on how it was trained, and these facts are not known: "
            f"{', '.join(missing)}; each example's gradient must have been clipped, or else only --noise-stddev is "
            "left, which guarantees nothing; --dry-run shows what usual values would give; state the training's own "
            f"numbers, all in a --facts file or as flags, such as: {self.example}"
        )


def from_flags(values: Mapping[str, Any]) -> FactSource:
    """The facts among the option ``values``; None means not given."""
    return FactSource(FLAGS, {k: v for k, v in values.items() if k in _FIELDS and v is not None})


def from_file(path: Path) -> FactSource:
    """The facts in a JSON object such as ``{"epochs": 10, "learning_rate": 5e-5, ...}``.

    Raises InputError for malformed JSON, an unknown key or a value of the wrong kind.
    """
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a JSON object of training facts")
    stated = len(data)
    data = {key.replace("-", "_"): value for key, value in data.items()}
    if len(data) < stated:
        raise InputError(f"{path} states a fact twice, once with dashes and once with underscores; keep one")
    for key, value in data.items():
        if key not in _FIELDS and key not in RELEASE_KEYS:
            raise InputError(f"{path} has the unknown fact {key!r}; known are {', '.join((*_FIELDS, *RELEASE_KEYS))}")
        if key == "optimizer":
            if value not in list(Optimizer):
                raise InputError(f"{path}: optimizer is {value!r}; expected one of {', '.join(Optimizer)}")
        elif isinstance(value, bool) or not isinstance(value, int if key in _WHOLE else (int, float)):
            kind = "a whole number" if key in _WHOLE else "a number"
            raise InputError(f"{path}: {key} is {value!r}; expected {kind}")
    return FactSource(str(path), data)


def from_report(path: Path, report: PrivacyReport) -> FactSource | None:
    """The facts that ``report`` records about the training of its outputs; None if there are none."""
    from privctl.reports.parameters import TrainingParameters, parameters_as  # not needed without a report

    mechanism = report.mechanism
    training = mechanism.training if isinstance(mechanism, WeightNoise) else mechanism
    if not isinstance(training, ClippedTraining):
        return None
    values = {name: getattr(training, name) for name in _FIELDS}
    # Facts typed by a user stay asserted, however many reports repeat them. Initial weights that were not random may
    # themselves depend on the data.
    random_start = parameters_as(TrainingParameters, report).initial_weights == "random"
    enforced = mechanism is training and report.step == "retrain" and random_start
    return FactSource(str(path), {k: v for k, v in values.items() if v is not None}, enforced)


#: Needed whatever the facts: sensitivities are derived for exact arithmetic.
TRAINING_ROUNDING = Assumption(
    name="training-rounding",
    statement="float rounding in the training moved the weights no farther than the sensitivity says, which is derived "
    "for exact steps",
    state=AssumptionState.ASSERTED,
)


def collected_names(report: PrivacyReport) -> tuple[Assumption, ...]:
    """A violated assumption for everything released that, by ``report``, was collected from the private data.

    Raises ParametersError if the report does not hold that as a list of names.
    """
    from privctl.reports.parameters import TrainingParameters, parameters_as

    names = parameters_as(TrainingParameters, report).collected_from_data or ()
    be, why = {"labels": "were"}, "(the training collected it from them)"
    return tuple(
        Assumption(
            name=name,
            statement=f"the released {name} {be.get(name, 'was')} chosen without the examples {why}",
            state=AssumptionState.VIOLATED,
        )
        for name in names
    )


def training_facts(sources: Sequence[FactSource], model: str = "MODEL") -> tuple[ClippedTraining, Assumption]:
    """The training that all ``sources`` together describe, and the assumption that states where the facts come from.

    ``model`` appears in the example command of error messages.

    Raises MissingFactsError, listing all missing facts; InputError if two sources disagree; InputError, or CommandError
    if all facts come from the command line, if the facts are invalid.
    """
    facts: dict[str, tuple[Any, FactSource]] = {}
    for source in sources:
        for name in _FIELDS.keys() & source.values.keys():
            value = source.values[name]
            if name in facts and facts[name][0] != value:
                earlier_value, earlier_source = facts[name]
                raise InputError(
                    f"{earlier_source.name} says {name} {earlier_value} but {source.name} says {value}; correct one"
                )
            facts.setdefault(name, (value, source))
    if missing := [name for name in REQUIRED if name not in facts]:
        stated = (source.values["delta"] for source in sources if "delta" in source.values)
        raise MissingFactsError(missing, facts, next(stated, None), model)
    values = {name: value for name, (value, _) in facts.items()}
    values["optimizer"] = Optimizer(values.get("optimizer", Optimizer.SGD))
    try:
        training = ClippedTraining(**values)
    except ValueError as error:
        if all(source.name == FLAGS for _, source in facts.values()):
            raise CommandError(flagged(str(error), _FIELDS)) from None
        raise InputError(f"the training facts contradict each other: {error}") from None
    return training, _facts_assumption(facts)


def _facts_assumption(facts: Mapping[str, tuple[Any, FactSource]]) -> Assumption:
    sources = [source for name, (_, source) in facts.items() if name not in _LOSS_PROPERTIES]
    enforced = all(source.enforced for source in sources)
    names = sorted({source.name for source in sources})
    statement = (
        "the model was trained as the facts say: per-example clipping, each example once an epoch in a "
        "data-independent order, a constant learning rate, a fixed normaliser, no other access to the data "
        f"(facts from {', '.join(names)}"
        f"{', which names these very bytes but is not signed' if enforced else ''})"
    )
    return Assumption(
        name="training-facts",
        statement=statement,
        state=AssumptionState.ENFORCED if enforced else AssumptionState.ASSERTED,
    )
