"""A fork of a process has its keys: it draws nothing, as two results with the same noise show the data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
import torch

from privctl.domain.errors import CommandError
from privctl.randomness import NoiseSource
from privctl.train.steps.gradient_noise import CipherNoise
from tests.integrations.loops import Loop

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
REFUSED, DRAWN, OTHER = 0, 1, 2


def in_a_fork(draw: Callable[[], object]) -> int:
    """Whether ``draw`` is refused, draws, or fails in another way, in a fork of this process."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    outcome = OTHER
    try:
        draw()
        outcome = DRAWN
    except CommandError as error:
        outcome = REFUSED if "forked" in str(error) else OTHER
    finally:
        os._exit(outcome)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["words", "deviates", "device", "private loop"])
def test_a_fork_draws_nothing_under_the_key_of_its_parent(kind: str) -> None:
    source, noise, loop = NoiseSource(), CipherNoise(torch.device("cpu")), Loop()
    draws: dict[str, Callable[[], object]] = {
        "words": lambda: source.words(0, 0, 4),
        "deviates": lambda: source.keystream.drawn_at(0, 0, torch.arange(2).numpy(), 1),
        "device": lambda: noise.release([torch.zeros(4)], 1.0, 0),
        "private loop": lambda: next(iter(loop.private.loader)),
    }
    assert in_a_fork(draws[kind]) == REFUSED
    draws[kind]()  # where the key was made, it still draws


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_draws_under_a_key_of_its_own() -> None:
    assert in_a_fork(lambda: NoiseSource().words(0, 0, 4)) == DRAWN
