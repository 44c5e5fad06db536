"""What privctl does with one tiny model: it works, it refuses in a sentence, or it crashes."""

from __future__ import annotations

import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import privctl
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import load_subject, read
from privctl.domain.errors import PrivctlError
from tests.zoo.shrink import Unbuildable, build, one_line, write_data

RIGHT, REFUSED, CRASHED, SLOW, NONE = "works", "refuses", "crashes", "too slow", "not built"
#: Of the processor, so that a busy machine changes no outcome.
_SECONDS = 150
#: What a refusal may ask for, as the option that a user then gives: the outcome is that of the run with it.
_REMEDIES = (("--norm frozen", "norm", "frozen"), ("give --max-length", "max_length", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooOutcome:
    """One command on one model: ``reason`` is its sentence, or where an exception came from."""

    task: str
    model_type: str
    command: str
    outcome: str
    reason: str = ""


def outcomes(task: str, model_type: str) -> list[ZooOutcome]:
    """What ``audit`` (scoring) and ``retrain dp-sgd`` (two steps) do with a tiny model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        commands: dict[str, Callable[[], None]] = {
            "score": lambda: score(task, model, folder),
            "dp-sgd": lambda: train(task, model, folder),
        }
        try:
            with time_limit(_SECONDS):
                build(task, model_type, model)
        except (Unbuildable, TimeoutError) as error:
            return [
                ZooOutcome(task=task, model_type=model_type, command=c, outcome=NONE, reason=one_line(error))
                for c in commands
            ]
        return [_outcome(task, model_type, c, act) for c, act in commands.items()]


def _outcome(task: str, model_type: str, command: str, act: Callable[[], None]) -> ZooOutcome:
    outcome, reason = RIGHT, ""
    try:
        with time_limit(_SECONDS):
            act()
    except PrivctlError as error:
        outcome, reason = REFUSED, one_line(error)
    except TimeoutError as error:
        outcome, reason = SLOW, one_line(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in last if "/privctl/" in frame.filename or "/audits/" in frame.filename]
        frame = (ours or last)[-1]
        outcome = CRASHED
        reason = f"{Path(frame.filename).name}:{frame.name}: {one_line(error)}"
    return ZooOutcome(task=task, model_type=model_type, command=command, outcome=outcome, reason=reason)


def score(task: str, model: Path, folder: Path) -> None:
    """Score two dozen records, as every audit does first; scores must be numbers."""
    subject = load_subject(model, task=task, device="cpu")
    rows = subject.rows(read(subject, write_data(task, folder / "audited"))).rows
    values = compute_scores(plan_scoring(subject.scorer, rows)).values
    if not np.isfinite(values).all():
        raise FloatingPointError("scores are not finite")


def train(task: str, model: Path, folder: Path) -> None:
    """Two private steps, after the comparison of the first with autograd's; a refusal's advice is followed."""

    def steps(**remedies: Any) -> None:
        privctl.retrain(
            "dp-sgd", model, data=write_data(task, folder / "trained"), output=folder / "out", task=task, steps=2,
            batch_size=6, noise_multiplier=1.0, delta=1e-3, device="cpu", **remedies,
        )  # fmt: skip

    given: dict[str, Any] = {}
    while True:
        try:
            return steps(**given)
        except PrivctlError as error:
            more = {name: value for name, value in remedies_in(error) if name not in given}
            if not more:
                raise
            given |= more


def remedies_in(error: PrivctlError) -> Iterator[tuple[str, Any]]:
    """The options that a refusal asks for, with values."""
    return ((name, value) for asked, name, value in _REMEDIES if asked in str(error))


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after ``seconds`` of the processor's time."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
