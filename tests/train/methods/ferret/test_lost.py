"""Steps that were begun and lost in a kill: they are told, and no model is released that none of them moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from privctl.domain.errors import InputError
from privctl.randomness import NoiseSource
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.publish import NoisySums, Publisher
from privctl.train.methods.ferret.settings import Publish
from privctl.train.methods.ferret.trainer import FerretTrainer
from privctl.train.state.run_folder import RunFolder
from tests.train.methods.ferret.support import BATCH, network, trainer, weights

STEPS = 12


def noisy() -> Publisher:
    return NoisySums(noise_multiplier=0.7, clip_norm=0.5, batch_size=BATCH, shown=Publish.SIGN, source=NoiseSource(1))


def killed(folder: Path, step: int, seed: bytes, chance: float, publisher: Publisher | None, *, saves: bool) -> None:
    """Leave a run as a kill at the end of ``step`` does, before it is saved; without ``saves`` none ever was."""
    with RunFolder.begin(folder, {}) as begun:
        if not saves:
            begun.save = lambda _: None  # type: ignore[method-assign]
        first = training(seed, chance, publisher, begun)

        def died(done: int) -> None:
            if done == step:
                raise KeyboardInterrupt

        first.watch = Dying(died)
        with pytest.raises(KeyboardInterrupt):
            first.run()


class Dying:
    """A ``Watch`` that calls ``at`` after each step, which is before the step is saved."""

    def __init__(self, at: object) -> None:
        self._at = at

    def step(self, done: int, examples: object, losses: object) -> None:
        assert callable(self._at)
        self._at(done)

    def epoch(self, done: int, measures: object) -> None: ...


def training(seed: bytes, chance: float, publisher: Publisher | None, folder: RunFolder | None) -> FerretTrainer:
    made = trainer(STEPS, chance=chance, publisher=publisher, folder=folder)
    made.masks = Masks(seed=seed, groups=len(made.groups), fire_probability=chance, steps=STEPS)
    return made


def resumed(folder: Path, seed: bytes, chance: float, publisher: Publisher | None) -> tuple[FerretTrainer, list[str]]:
    """The rest of the run, made, and what was said."""
    again, saved = RunFolder.resume(folder, {})
    said: list[str] = []
    rest = training(seed, chance, publisher, again)
    rest.notify = said.append
    with again:
        rest.run(saved)
    return rest, said


def late(chance: float) -> bytes:
    """A seed with which nothing is published in the first of three epochs, and something in the second."""
    for number in range(10_000):
        masks = Masks(seed=b"%d" % number, groups=4, fire_probability=chance, steps=STEPS)
        fired = [bool(masks.fired(step)) for step in range(STEPS)]
        if not any(fired[:4]) and any(fired[4:7]) and not any(fired[7:]):
            return masks.seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("silent_first", [False, True])
def test_no_model_is_released_whose_steps_were_all_lost(tmp_path: Path, silent_first: bool) -> None:
    """Also where a state was saved, after an epoch in which nothing was published."""
    seed, chance = (late(0.05), 0.05) if silent_first else (b"seed", 1.0)
    killed(tmp_path / "run", 7 if silent_first else STEPS, seed, chance, noisy(), saves=silent_first)
    _, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert saved.updates == (4 if silent_first else 0)
    with pytest.raises(InputError, match="that publish were begun and none of them was saved"):
        resumed(tmp_path / "run", seed, chance, noisy())
    assert (tmp_path / "run" / "begun").stat().st_size, "what may have been released stays counted"


def test_steps_that_were_lost_are_told(tmp_path: Path) -> None:
    killed(tmp_path / "run", 7, b"seed", 1.0, noisy(), saves=True)
    rest, said = resumed(tmp_path / "run", b"seed", 1.0, noisy())
    assert said == [
        "3 steps that publish were begun and not saved; they count in the guarantee and are not made again, which "
        "leaves 9 of 12"
    ]
    start = torch.cat([p.detach().flatten() for p in network().parameters()])
    assert not torch.equal(weights(rest), start)


def test_public_signs_are_published_again_and_nothing_is_lost(tmp_path: Path) -> None:
    killed(tmp_path / "run", STEPS, b"seed", 1.0, None, saves=False)
    rest, said = resumed(tmp_path / "run", b"seed", 1.0, None)
    assert said == []
    whole = training(b"seed", 1.0, None, None)
    whole.run()
    assert torch.equal(weights(rest), weights(whole))
