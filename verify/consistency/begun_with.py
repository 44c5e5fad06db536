"""What the weights that a step began with were trained on, and what of them was trained, by the reports it builds on.

A guarantee of a training speaks of what that training gives away. Where the same data were trained on before, the
weights that it began with hold more. Standard library only, like a gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import TrainingParameters, parameters_as

_STARTS, _MODEL, _DATA = ("start-", "base-"), "model", "data"
_TRAININGS = ("retrain", "external-training")
_NAME = "starting weights"
_LEFT_OUT, _STATISTICS = "left out", ("running_mean", "running_var")


def faults(
    report: PrivacyReport, states: Mapping[str, AssumptionState], parents: Sequence[PrivacyReport]
) -> Iterator[str]:
    """Data of the last training in the making of a model that an earlier one had, unless it is said to be violated.

    ``parents`` are reports that it may build on; those count whose models it was made from, and so on.
    """
    if states.get(_NAME) is AssumptionState.VIOLATED:
        return
    trainings = [each for each in (report, *_behind(report, parents)) if each.step in _TRAININGS]
    if not trainings:
        return
    own, *earlier = trainings
    for each in earlier:
        if again := sorted(_data(own) & _data(each)):
            name = next(file.path for file in own.inputs if file.digest == again[0])
            yield (
                f"the weights that its training began with were trained on the same data before, {name}, so it does "
                "not cover what they hold already"
            )
            return


def left_out(report: PrivacyReport, untouched: Mapping[str, str], parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Tensors that patterns left out of the noise, each ``untouched`` with its reason, though a step trained them.

    Statistics of batch normalisation are no step's.
    """
    training = next((each for each in _behind(report, parents) if each.step in _TRAININGS), None)
    if training is None or training.step != _TRAININGS[0]:
        return
    globs = parameters_as(TrainingParameters, training).trained or ("*",)
    for name, reason in untouched.items():
        trained = not name.endswith(_STATISTICS) and any(fnmatchcase(name, glob) for glob in globs)
        if _LEFT_OUT in reason and trained:
            yield f"{name} was left out of the noise, but the training of these weights trained it"
            return


def _data(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.inputs if file.role == _DATA}


def _behind(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[PrivacyReport]:
    """Those of ``parents`` that made weights which ``report`` began with or read, and that these were made from.

    Those that made what it read as its model, not as its base, come first.
    """
    read, left = _read(report), list(parents)
    while found := [each for each in left if not read.isdisjoint(_made(each))]:
        for each in found:
            left.remove(each)
            read |= _read(each)
        yield from sorted(found, key=lambda each: _read_as_model(report).isdisjoint(_made(each)))


def _read(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.inputs if file.role == _MODEL or file.role.startswith(_STARTS)}


def _read_as_model(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.inputs if file.role == _MODEL}


def _made(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.outputs if file.role == _MODEL}
