"""The first step that can be saved is saved at once, also by a run that is resumed before it saved anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from privctl.randomness import NoiseSource
from privctl.train.methods.ferret.publish import Responses
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.sampling import PoissonBatches
from privctl.train.steps.saved_state import SavedState
from tests.train.methods.dp_zo import test_trainer as dp_zo
from tests.train.methods.ferret import support as ferret
from tests.train.steps import test_loop as dp_sgd

if TYPE_CHECKING:
    import torch

STEPS, LOST = 4, 2


@dataclass
class Kept:
    """Remembers the steps after which the state was saved."""

    path: Path = Path("run")
    saved: list[int] = field(default_factory=list)

    def mark(self, begun: int) -> None: ...

    def mark_side_releases(self, begun: int) -> None: ...

    def save(self, saved: SavedState) -> None:
        self.saved.append(saved.steps_begun)


def by_gradients(kept: Kept) -> Any:
    plan = dp_sgd.recipe(method="dp-sgd", steps=STEPS, noise_multiplier=1.0, sample_rate=1 / STEPS)
    return dp_sgd.trainer(dp_sgd.ROWS, plan, PoissonBatches(4, 0.25, NoiseSource(1)), folder=kept)


def by_differences(kept: Kept) -> Any:
    made = dp_zo.trainer(STEPS, noise=KeyedNoise(NoiseSource(1)))
    made.folder = kept
    return made


def by_signs(kept: Kept) -> Any:
    publisher = Responses(bit_epsilon=1.0, source=NoiseSource(2))
    return ferret.trainer(STEPS, chance=1.0, publisher=publisher, folder=kept)


@pytest.mark.parametrize("trainer", [by_gradients, by_differences, by_signs])
@pytest.mark.parametrize("state", ["none", "lost steps", "saved"])
def test_it_is_saved_at_once_unless_a_state_is_there(trainer: Callable[[Kept], Any], state: str) -> None:
    """Each epoch has four steps, after which the state is saved in any case."""
    lost = {"updates": 0, "steps_begun": LOST}
    tensors: Mapping[str, torch.Tensor] = {}
    if state == "saved":
        whole = Kept()
        whole.save = lambda saved: kept_tensors.append(saved.tensors)  # type: ignore[method-assign]
        kept_tensors: list[Mapping[str, torch.Tensor]] = []
        trainer(whole).run()
        tensors = kept_tensors[0]
        lost = {"updates": 1, "steps_begun": LOST}
    kept = Kept()
    trainer(kept).run(None if state == "none" else SavedState(**lost, tensors=tensors))
    assert kept.saved[-1] == STEPS
    assert kept.saved[:-1] == {"none": [1], "lost steps": [LOST + 1], "saved": []}[state]
