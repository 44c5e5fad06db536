"""The unit of privacy and the adjacency of a training whose records have users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from privctl.data.names import alike
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee
from privctl.train.preparation.job import TrainingJob
from privctl.train.settings.request import RetrainRequest


def unit_of_privacy(request: RetrainRequest) -> Assumption:
    """The assumption that says what one example is and, if a record may have several users, what neighbours are."""
    return Assumption(name="unit of privacy", statement=_unit(request), state=AssumptionState.ENFORCED)


def what_is_sampled(request: RetrainRequest) -> str:
    """The records that are sampled and clipped together, for a dry run; "" if each is sampled by itself."""
    if request.data.unit is None or request.method.group(request) is not None:
        return ""
    return f"all records with one value of {request.data.unit!r}"


def _unit(request: RetrainRequest) -> str:
    field, most, rule = request.data.unit, request.method.group(request), request.method.shared(request)
    if field is None:
        return "each record is one example; who is in several records is protected in each, not in all together"
    if rule is None:
        used = "" if most is None else f", of which {most} at most are used,"
        several = request.method.per_draw(request)
        drawn = "" if several == 1 else f", and of up to {several} that a step draws the mean gradient is clipped"
        return f"all records with one value of {field!r}{used} are one example{drawn}"
    named = f"all records that name one user in {field!r}"
    if not rule.fixes_graph:
        return f"{named} are one example; of neighbours neither has a user in more than {most}, or it is refused"
    return (
        f"{named}, of which {most} at most are used, are one example; neighbours differ in whether these "
        "contribute, and which users each record names is public and the same in both"
    )


def different_users(job: TrainingJob) -> Iterator[Assumption]:
    """The assumption that users with similarly spelled names are different, if there are such names."""
    if job.similar_names:
        yield Assumption(
            name="names of users",
            statement=f"{job.similar_names} names in {job.request.data.unit!r} that differ from another's only in "
            "case, spaces or Unicode form are those of different users",
            state=AssumptionState.ASSERTED,
        )


def unsure_names(job: TrainingJob) -> Iterator[str]:
    """A warning if names of users are spelled alike."""
    if job.similar_names and job.request.data.unit is not None:
        yield alike(job.similar_names, job.request.data.unit)


def for_neighbours(guarantee: Guarantee, request: RetrainRequest) -> Guarantee:
    """The guarantee with zero-out adjacency if removing a user would change which records of others are chosen."""
    rule = request.method.shared(request)
    return guarantee if rule is None or not rule.fixes_graph else replace(guarantee, adjacency=Adjacency.ZERO_OUT)


def unprotected_users(request: RetrainRequest) -> Iterator[str]:
    """A warning if the choice of records depends on the users of all records."""
    rule = request.method.shared(request)
    if rule is not None and rule.fixes_graph:
        yield (
            "the guarantee is for what a user's records say, not for which users a record names: without a user's "
            "records, others might have been chosen"
        )
