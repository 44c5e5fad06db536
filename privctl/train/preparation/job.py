"""A run that is ready to start: the request with its model, its data and all settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from privctl.models.loading import TrainingModel
from privctl.models.tasks.base import Task
from privctl.storage.digest import DigestedFile
from privctl.train.contribution.examine import IndependenceTest
from privctl.train.secrets.read_plan import SecretPlan
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A run that is ready to start.

    ``delta`` is None if the method's guarantee has none, ``held_out`` if there are no held-out records. ``public``
    records, if any, are mixed into each step as the recipe says. ``plan`` is the plan that protects secrets, if one is
    followed. ``contribution`` is the passed test that no record changes another's gradient, None until it has run.
    ``similar_names`` is the number of users whose names are spelled like another's, None if records have no users.
    ``read`` holds, in the main process, the data files by their role in the report, with their digests when they were
    read. ``labels_from_private_data`` says that the class names were collected from the private examples. Raises
    ValueError if the noise multiplier contradicts the method.
    """

    request: RetrainRequest
    model: TrainingModel
    task: Task
    held_out: Task | None
    recipe: TrainingSettings
    delta: float | None
    labels_from_private_data: bool
    plan: SecretPlan | None = None
    public: Task | None = None
    contribution: IndependenceTest | None = None
    similar_names: int | None = None
    read: Mapping[str, tuple[DigestedFile, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        noise, method = self.recipe.noise_multiplier, self.request.method
        if (noise > 0) != method.noised:
            raise ValueError(f"noise_multiplier {noise} contradicts method {method.name}")

    @property
    def may_pass_twice(self) -> bool:
        """Whether clipping in two passes can still be tried if memory runs out."""
        return self.recipe.clipping_passes == 1 and "passes" in self.request.method.takes
