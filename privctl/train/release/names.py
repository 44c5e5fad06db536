"""Class names and tokens that are released with the weights, and whether they come from the private data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from privctl.data.pixels import are_own_statistics, is_published
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.models.choices import CLASSIFICATION
from privctl.models.tasks.classification import ImageClassification
from privctl.train.release.began_with import collected_before, trained_before, unfitting_reports

if TYPE_CHECKING:
    from privctl.train.preparation.job import TrainingJob

#: For each assumption, what was collected, and what to give instead.
_COLLECTED = {
    "vocabulary": (
        "the tokenizer's words",
        "give --vocabulary a file of words that were chosen without these examples",
    ),
    "labels": ("the names of the classes", "give --labels a,b,c, or a file with one name a line"),
    "scaling": (
        "the numbers that scale its inputs",
        "state others in preprocessor_config.json, such as 0.5 for every mean and deviation",
    ),
}


def collected(job: TrainingJob) -> tuple[str, ...]:
    """Which of vocabulary, labels and scaling were collected from the private examples and are released.

    They were collected by this run, or by an earlier one on the same data from whose folder they were taken.
    """
    request, before = job.request, collected_before(job)
    sources = {
        "vocabulary": (job.model.vocabulary_from_private_data, request.model.vocabulary),
        "labels": (job.labels_from_private_data, request.data.labels),
        "scaling": (_scales_by_own(job), None),
    }
    return tuple(name for name, (now, given) in sources.items() if now or (name in before and not given))


def released_names(job: TrainingJob) -> Iterator[Assumption]:
    """The assumptions that the released words and class names do not depend on the examples."""
    from_data = collected(job)
    if job.model.text is not None and "vocabulary" not in from_data:
        yield Assumption(
            name="vocabulary",
            statement="the tokenizer, which is released too, was made without these examples",
            state=AssumptionState.ASSERTED,
        )
    if job.task.name in CLASSIFICATION and "labels" not in from_data:
        yield Assumption(
            name="labels",
            statement="the classes, whose number and names are released too, were chosen without these examples",
            state=AssumptionState.ASSERTED,
        )
    if not _scales_by_published(job) and "scaling" not in from_data:
        yield Assumption(
            name="scaling",
            statement="the numbers that scale its inputs, which are released too, were chosen without these examples",
            state=AssumptionState.ASSERTED,
        )
    for name in from_data:
        yield Assumption(
            name=name,
            statement=f"{_COLLECTED[name][0]} were known without the examples (they were collected from them)",
            state=AssumptionState.VIOLATED,
        )


def _scales_by_published(job: TrainingJob) -> bool:
    """Whether inputs are scaled by nothing, by constants, or by numbers that many published models have."""
    model = job.model
    if model.images is not None:
        return is_published(model.images)
    return model.sounds is None or model.sounds.scales_by_published


def _scales_by_own(job: TrainingJob) -> bool:
    """Whether images are scaled by the private images' own means, which would be released exactly."""
    facts = job.model.images
    if facts is None or is_published(facts) or not isinstance(job.task, ImageClassification):
        return False
    return are_own_statistics(facts, job.task.images.pixels)


def voiding(job: TrainingJob) -> Iterator[str]:
    """Warnings, before training, that collected names or the starting weights void the guarantee."""
    whose = job.request.method.voided
    for name in collected(job) if whose else ():
        noun, advice = _COLLECTED[name]
        yield (
            f"{noun} were collected from the private examples and are released with the weights: {whose} will be void; "
            f"{advice}"
        )
    if whose and (earlier := trained_before(job)) is not None:
        yield (
            f"the weights that it begins with were trained on {earlier.on} before, as {earlier.path} says: {whose} "
            f"will be void; begin with weights that were made without these examples{earlier.otherwise}"
        )
    yield from unfitting_reports(job) if whose else ()
