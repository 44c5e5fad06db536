"""No test fails by chance: what the product draws from the operating system is drawn from a seed in the tests.

Each test has a seed of its own, made from its name, and so has each fixture that several tests share: what they draw
does not depend on which tests ran before. Commands in processes of their own (``tests/forked.py``) have one too. Names
of temporary files stay the operating system's, and so do salts and keys of signatures, on which no outcome depends.

``pytest --os-randomness`` draws from the operating system again: run a test many times with it to see how often it
fails by chance.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

#: The name from which a command in a process of its own makes its seed.
CHILD = "PRIVCTL_TESTS_SEED"


class Seeded:
    """What stands in for ``os.urandom`` and ``secrets.SystemRandom``; without a name, the operating system's."""

    def __init__(self) -> None:
        self._genuine = os.urandom
        self._stream: random.Random | None = None
        self._started = 0

    def urandom(self, size: int) -> bytes:
        return self._genuine(size) if self._stream is None else self._stream.randbytes(size)

    def system_random(self) -> random.Random:
        return random.SystemRandom() if self._stream is None else random.Random(self._stream.randbytes(32))

    def next_child(self) -> str:
        """A name for the next process that is started, or "" for the operating system's randomness."""
        self._started += 1
        return "" if self._stream is None else f"{os.environ.get(CHILD, '')}, process {self._started}"

    def install(self) -> None:
        os.urandom = self.urandom
        secrets.SystemRandom = self.system_random  # type: ignore[assignment, misc]

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Inside, everything is drawn from a seed made from ``name``; within another name, that goes on afterwards."""
        before = self._stream, self._started, os.environ.get(CHILD)
        restore = None if self._stream is None else _generators()
        self.begin(name)
        try:
            yield
        finally:
            self._stream, self._started, outer = before
            if outer is None:
                os.environ.pop(CHILD, None)
            else:
                os.environ[CHILD] = outer
            if restore is not None:
                restore()

    def begin(self, name: str) -> None:
        """From here on, everything is drawn from a seed made from ``name``."""
        seed = hashlib.sha256(name.encode()).digest()
        self._stream, self._started = random.Random(seed), 0
        os.environ[CHILD] = name
        number = int.from_bytes(seed[:4], "big")
        random.seed(number)
        np.random.seed(number)
        if (torch := _torch()) is not None:
            torch.default_generator.manual_seed(number)


def _generators() -> Callable[[], None]:
    """What puts the generators of ``random``, numpy and PyTorch back to where they are now."""
    python, of_numpy, torch = random.getstate(), np.random.get_state(), _torch()
    of_torch = None if torch is None else torch.get_rng_state()

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)

    return restore


def _torch() -> Any:
    """PyTorch, where something imported all of it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


SEEDED = Seeded()


def begin_child() -> None:
    """In a process that ran as a command of its own: its seed, where its maker gave it one."""
    if name := os.environ.get(CHILD):
        SEEDED.install()
        call = [argument for argument in sys.argv if os.sep not in argument]  # folders have other names in each run
        SEEDED.begin(f"{name}, rank {os.environ.get('RANK', '0')}: {call}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--os-randomness", action="store_true", help="Draw from the operating system, as users do.")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--os-randomness"):
        SEEDED.install()


def _uses_os_randomness(config: pytest.Config) -> bool:
    return bool(config.getoption("--os-randomness"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _uses_os_randomness(item.config):
        return (yield)
    with SEEDED.named(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    if fixturedef.scope == "function" or _uses_os_randomness(request.config):
        return (yield)
    with SEEDED.named(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]"):
        return (yield)
