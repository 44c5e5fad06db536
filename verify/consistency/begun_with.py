"""What the initial weights of a step were trained on, and which of them were trained, according to its parent reports.

A guarantee covers what its own training reveals. If the initial weights were trained on the same data before, they
reveal more. Standard library only, like the gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import BEGUN_WITH, TRAININGS, PrivacyReport
from privctl.reports.parameters import ChoicesWithoutNoise, TrainingParameters, parameters_as, readable

_MODEL, _DATA = "model", "data"
#: Roles of the records that a training learns from; to the gradients of public ones it adds no noise.
LEARNED = (_DATA, "public")
#: Roles of records that chose, without noise, the layers to quantize and the best run of a search.
_CHOSE_LAYERS, _CHOSE_RUN = "measured", "held-out"
_NAME = "starting weights"
_LEFT_OUT, _STATISTICS = "left out", ("running_mean", "running_var")


def faults(
    report: PrivacyReport, states: Mapping[str, AssumptionState], parents: Sequence[PrivacyReport]
) -> Iterator[str]:
    """Yields a sentence if an earlier training behind this model used the same data as its last training.

    Nothing is yielded if the assumption is stated as violated. Of ``parents``, only the reports count whose models this
    one was made from, directly or through other reports.
    """
    if states.get(_NAME) is AssumptionState.VIOLATED:
        return
    trainings = trainings_behind(report, parents)
    if not trainings:
        return
    own, *earlier = trainings
    for each in earlier:
        chose = _choices(each).measured_public_digest or ""  # the only place in reports of earlier versions
        if shared := sorted(_read(own, _DATA) & {*_read(each, *roles_behind(each)), chose}):
            name = next(file.path for file in own.inputs if file.digest == shared[0])
            yield (
                f"the weights that its training began with were trained on the same data before, {name}, so it does "
                "not cover what they hold already"
            )
            return


def trainings_behind(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> list[PrivacyReport]:
    """The trainings that made this model, the last one first: ``report`` itself, or among its ancestors.

    A report that says the same as another, such as a copy with other white space, is not another training.
    """
    found: list[PrivacyReport] = []
    for each in (report, *_ancestors(report, parents)):
        if each.step in TRAININGS and each not in found:
            found.append(each)
    return found


def left_out(report: PrivacyReport, untouched: Mapping[str, str], parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields a sentence if patterns left a tensor out of the noise that the training of these weights trained.

    ``untouched`` maps tensors to the reason why they got no noise. Batch normalisation statistics are not trained.
    """
    training = next((each for each in _ancestors(report, parents) if each.step in TRAININGS), None)
    if training is None or training.step != "retrain":
        return
    globs = parameters_as(TrainingParameters, training).trained or ("*",)
    for name, reason in untouched.items():
        trained = not name.endswith(_STATISTICS) and any(fnmatchcase(name, glob) for glob in globs)
        if _LEFT_OUT in reason and trained:
            yield f"{name} was left out of the noise, but the training of these weights trained it"
            return


def roles_behind(training: PrivacyReport) -> tuple[str, ...]:
    """The roles of the records that decided about the weights of ``training``: learned from, or chosen by."""
    chosen = () if _choices(training).search is None else (_CHOSE_RUN,)
    return (*LEARNED, _CHOSE_LAYERS, *chosen)


def _choices(training: PrivacyReport) -> ChoicesWithoutNoise:
    """The choices of ``training``; none if its entries on them cannot be read, which other checks report."""
    return readable(ChoicesWithoutNoise, training) or ChoicesWithoutNoise()


def _read(report: PrivacyReport, *roles: str) -> set[str]:
    return {file.digest for file in report.inputs if file.role in roles}


def _ancestors(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[PrivacyReport]:
    """The reports in ``parents`` that wrote weights which ``report`` read, then those behind them, and so on.

    Within a generation, reports whose output was read as the model rather than as its base come first.
    """
    read, left = _weights_read(report), list(parents)
    while found := [each for each in left if not read.isdisjoint(_models_written(each))]:
        for each in found:
            left.remove(each)
            read |= _weights_read(each)
        yield from sorted(found, key=lambda each: _read_as_model(report).isdisjoint(_models_written(each)))


def _weights_read(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.inputs if file.role == _MODEL or file.role.startswith(BEGUN_WITH)}


def _read_as_model(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.inputs if file.role == _MODEL}


def _models_written(report: PrivacyReport) -> set[str]:
    return {file.digest for file in report.outputs if file.role == _MODEL}
