"""The unit of privacy that follows from a training's parameters, for records that may belong to several users."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

#: No selection at all: the only one in which removing a user does not change which records of others are used.
_EVERY = "all"
#: Selections that depend on the users of all records.
_CHOSEN = ("first", "greedy", "most")


def unit_of_privacy(parameters: TrainingParameters) -> tuple[str, bool]:
    """The sentence that says what one example is, and whether the report may continue it after a semicolon."""
    field, most, choice = parameters.unit, parameters.max_records_per_user, parameters.shared_records
    if field is None:
        return "each record is one example", True
    used = "" if most is None else f", of which {most} at most are used,"
    if choice is None:
        together = parameters.records_per_draw
        mean = "" if together is None else f", and of up to {together} that a step draws the mean gradient is clipped"
        return f"all records with one value of {field!r}{used} are one example{mean}", False
    if choice == _EVERY:
        refused = f"of neighbours neither has a user in more than {most}, or it is refused"
        return f"all records that name one user in {field!r} are one example; {refused}", False
    return (
        f"all records that name one user in {field!r}{used} are one example; neighbours differ in whether these "
        "contribute, and which users each record names is public and the same in both"
    ), False


def disagreements(parameters: TrainingParameters) -> Iterator[str]:
    """Yields one sentence per fault in the parameters on users whose records are shared or clipped together."""
    together = parameters.records_per_draw
    if together is not None:
        if together < 2:
            yield f"records_per_draw is {together}, where a user's records would not be clipped together"
        if parameters.unit is None or parameters.max_records_per_user is not None:
            yield "records of a user are clipped together, but the parameters name no user, or clip each by itself"
    similar = parameters.similar_names
    if similar is not None and (parameters.unit is None or similar < 0 or similar == 1):
        yield f"similar_names is {similar}, which counts names that differ only in spelling from others of users"
    choice = parameters.shared_records
    if choice is None:
        return
    if choice not in (_EVERY, *_CHOSEN):
        yield f"shared_records is {choice!r}, which is no way to choose records"
    if parameters.max_records_per_user is None or parameters.unit is None:
        yield "records have several users, but the parameters do not say by which field, or in how many a user may be"


def unsupported_user_settings(parameters: TrainingParameters) -> Iterator[str]:
    """Yields a sentence for each user setting stated for a method that has no such setting."""
    for name in ("max_records_per_user", "records_per_draw", "shared_records"):
        if (value := getattr(parameters, name)) is not None:
            yield f"{name} is {value!r}, and the method {parameters.method!r} has no such setting"


def covers_contents_only(report: PrivacyReport) -> bool:
    """Whether records are selected by users, so that the bound covers contents only and not a user's removal."""
    if report.step != "retrain":
        return False
    try:
        return parameters_as(TrainingParameters, report).shared_records not in (None, _EVERY)
    except ParametersError:
        return False  # reported by another check
