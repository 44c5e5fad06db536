"""The assumptions of the guarantees of all methods, in addition to those of their mechanisms."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.train.preparation.job import TrainingJob
from privctl.train.release.began_with import trained_before
from privctl.train.release.names import released_names
from privctl.train.release.searched import PREMISE
from privctl.train.release.users import different_users, unit_of_privacy
from privctl.train.secrets.guarantees import plan_premise
from privctl.train.settings.adaptive_clipping import counted_gradients
from privctl.train.settings.public_mixing import public_assumptions
from privctl.train.steps.gradient_noise import GradientNoise


def premises(job: TrainingJob) -> Iterator[Assumption]:
    """The assumptions of the record-level guarantee, in addition to those of the mechanism."""
    yield starting_weights(job)
    if job.recipe.search is not None:
        yield PREMISE
    if job.recipe.adaptive is not None:
        yield counted_gradients(AssumptionState.ENFORCED)
    if job.recipe.public is not None:
        yield from public_assumptions(job.recipe.public)
    yield unit_of_privacy(job.request)
    yield from different_users(job)
    if job.plan is not None:
        yield plan_premise(job.plan.protection)
    else:
        yield Assumption(
            name="number of examples",
            statement=f"that there are {len(job.task)} examples is public: neighbours are compared at the same "
            "sampling rate, number of steps and noise, which follow from it",
            state=AssumptionState.ENFORCED,
        )
    yield from normalisation(job)
    yield from released_names(job)


def starting_weights(job: TrainingJob) -> Assumption:
    """The assumption that the starting weights do not depend on the examples."""
    random = job.model.initial_weights == "random"
    state = AssumptionState.ENFORCED if random else AssumptionState.ASSERTED
    if trained_before(job) is not None:
        state = AssumptionState.VIOLATED
    return Assumption(
        name="starting weights",
        statement="the training began with weights that were made without these examples"
        + (", at random" if random else ""),
        state=state,
    )


def normalisation(job: TrainingJob) -> Iterator[Assumption]:
    """The assumption that frozen statistics of batch normalisation do not depend on the examples."""
    if job.model.frozen_norms:
        random = job.model.initial_weights == "random" or job.model.converted is not None
        yield Assumption(
            name="normalisation statistics",
            statement="batch normalisation goes by its initial statistics, 0 and 1, and is released with them"
            if random
            else "the running statistics of batch normalisation, released as they were, were computed without these "
            "examples",
            state=AssumptionState.ENFORCED if random else AssumptionState.ASSERTED,
        )


def secret_noise(noise: GradientNoise | None) -> Iterator[Assumption]:
    """The assumption that the noise, if any, is unpredictable."""
    if noise is not None:
        yield Assumption(
            name="secret noise",
            statement=f"nobody can foretell the noise: {noise.description}",
            state=AssumptionState.ENFORCED if noise.cryptographic else AssumptionState.ASSERTED,
        )
