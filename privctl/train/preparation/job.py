"""A run about to start: what was asked for, with the model, the data and every setting determined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from privctl.models.loading import TrainingModel
from privctl.models.tasks.base import Task
from privctl.storage.digest import DigestedFile
from privctl.train.contribution import IndependenceTest
from privctl.train.secrets.read_plan import SecretPlan
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A run about to start. ``delta`` is None where the method is not private; ``held_out`` where none was given.

    ``public`` records are mixed into each step as the recipe says, if any are.
    ``plan`` is the plan of protection it follows, if any. ``contribution`` is the test that a record's gradient is its
    own, once it was passed.
    ``similar_names`` is how many of its users have names spelled like another's, None where records have no users.
    ``read`` are the files of data by their role in the report, as they were when they were read; in the main process.
    ``labels_from_private_data`` says that the names of the classes were collected from the private examples.
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
        """Whether clipping in two passes is left to be tried where memory is short."""
        return self.recipe.clipping_passes == 1 and "passes" in self.request.method.takes
