"""An interrupt ends a run after the step in progress, whose state is saved: nothing of it is lost or done twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import RunInterruptedError
from privctl.domain.mechanism import Optimizer
from privctl.randomness import NoiseSource
from privctl.train.state import interrupts
from privctl.train.state.interrupts import deferred_interrupts
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.sampling import Passes, PoissonBatches
from tests.train.steps.test_loop import ROWS, Points, recipe, trainer, weight


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As the command line has them."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_one_waits(number: int) -> None:
    before, calls = signal.getsignal(number), []

    def ask() -> None:
        with deferred_interrupts(lambda: calls.append(1)) as stop:
            assert not stop()
            send(number)
            send(signal.SIGINT)  # at once after the first: the same one, told twice
            assert stop()
            assert calls == [1]
            raise RunInterruptedError

    with pytest.raises(RunInterruptedError):
        ask()
    assert signal.getsignal(number) is before


def test_a_second_one_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_SAME", -1.0)
    reached = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        send()
        reached.append(1)
        send()
        reached.append(2)
    assert reached == [1]


def test_one_that_nobody_asked_about_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        send()


def test_a_terminal_that_hung_up_is_no_matter() -> None:
    def on_interrupt() -> None:
        raise OSError(5, "Input/output error")

    def ask() -> None:
        with deferred_interrupts(on_interrupt) as stop:
            send(signal.SIGHUP)
            assert stop()
            raise RunInterruptedError

    with pytest.raises(RunInterruptedError):
        ask()


def test_what_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deferred_interrupts() as stop:
        send(signal.SIGHUP)
        assert not stop()


def test_another_thread_holds_nothing() -> None:
    answers = []

    def ask() -> None:
        with deferred_interrupts() as stop:
            answers.append(stop())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]


class Interrupting(Points):
    """Sends a signal in the middle of the forward pass number ``at``."""

    def __init__(self, rows: Tensor, at: int) -> None:
        super().__init__(rows)
        self.left = at

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        self.left -= 1
        if self.left == 0:
            send()
        return super().losses(network, batch)


@pytest.mark.parametrize("method", ["plain", "clipped"])
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(tmp_path: Path, method: str, optimizer: Optimizer) -> None:
    momentum = 0.9 if optimizer is Optimizer.MOMENTUM else 0.0
    plan = recipe(method=method, steps=9, optimizer=optimizer, momentum=momentum, sample_rate=0.25)
    whole = trainer(ROWS, plan, Passes(4, 1, seed=3))
    entire = whole.run()
    with RunFolder.begin(tmp_path / "run", {}) as folder:
        first = trainer(ROWS, plan, Passes(4, 1, seed=3), folder=folder, task=Interrupting(ROWS, 6))
        with (
            pytest.raises(RunInterruptedError, match="after step 6 of 9; the state was saved"),
            deferred_interrupts() as stop,
        ):
            first.run(stop=stop)
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun) == (6, 6)
    second = trainer(ROWS, plan, Passes(4, 1, seed=3), folder=folder)
    # Bit for bit, and what was measured of the interrupted epoch's first half is not forgotten.
    assert second.run(saved) == entire
    assert torch.equal(weight(second), weight(whole))


def test_no_noise_is_lost(tmp_path: Path) -> None:
    plan = recipe(method="dp-sgd", steps=10, noise_multiplier=1.0)
    with RunFolder.begin(tmp_path / "run", {}) as folder:
        batches = PoissonBatches(4, 1.0, NoiseSource())
        first = trainer(ROWS, plan, batches, folder=folder, task=Interrupting(ROWS, 6))
        with pytest.raises(RunInterruptedError), deferred_interrupts() as stop:
            first.run(stop=stop)
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun) == (6, 6)
    done = trainer(ROWS, plan, PoissonBatches(4, 0.25, NoiseSource()), folder=folder).run(saved)
    assert (done.updates, done.steps_begun) == (10, 10)


@pytest.mark.parametrize("answers", [[True], [False, False, True]])
def test_whoever_is_asked_may_say_stop(answers: list[bool]) -> None:
    left = iter(answers)
    asked: Callable[[], bool] = lambda: next(left)  # noqa: E731
    with pytest.raises(RunInterruptedError, match=f"after step {len(answers)} of 4$"):
        trainer(ROWS, recipe(), Passes(4, 4, seed=0)).run(stop=asked)
