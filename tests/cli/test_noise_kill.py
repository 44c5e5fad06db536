"""kill -9 at random moments of ``privctl noise`` leaves the old state or complete files, never a partial one."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from tests.forked import Command, Forked

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
NAMES = [f"m.private-eps{e}" for e in ("1", "2")]


def _noise(model: Path, forked: Forked) -> Command:
    with open(os.devnull, "wb") as nowhere:
        call = ["noise", str(model), "-q", "--epsilon", "1", "--epsilon", "2", *FACTS]
        return forked.start(call, stdout=nowhere.fileno())


def _clear(folder: Path) -> None:
    for path in folder.glob("m.private*"):
        path.unlink()


def _timed(model: Path, folder: Path, forked: Forked) -> float:
    _clear(folder)
    started = time.monotonic()
    assert _noise(model, forked).wait() == 0
    return time.monotonic() - started


def _check(folder: Path) -> list[str]:
    """Every model under its final name is whole and has its report; returns the names that are there."""
    there = [name for name in NAMES if (folder / f"{name}.safetensors").exists()]
    for name in there:
        assert (folder / f"{name}.report.json").exists()
        assert run(["inspect", str(folder / f"{name}.safetensors"), "-q"]) == 0
    return there


@pytest.mark.parametrize(("trials", "least"), [(5, 2), pytest.param(12, 3, marks=pytest.mark.slow)])
def test_kill_at_random_moments(
    trials: int,
    least: int,
    tmp_path: Path,
    write_model: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    forked: Forked,
) -> None:
    """``tests/cli/test_kills.py`` kills before each rename, one by one."""
    weights = np.random.default_rng(0).standard_normal(4_000_000).astype(np.float32)
    model = write_model(tmp_path / "m.safetensors", {"w": weights})
    before = model.read_bytes()
    whole = min(_timed(model, tmp_path, forked) for _ in range(2))  # the first run may be slow for reasons of its own
    assert _check(tmp_path) == NAMES

    moments = random.Random(0)
    interrupted = 0
    for trial in range(trials):
        _clear(tmp_path)
        process = _noise(model, forked)
        # Half the trials aim at the streaming and the renames that end the run.
        time.sleep(waited := whole * (moments.uniform(0.1, 1) if trial % 2 else moments.uniform(0.7, 1.05)))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            interrupted += 1
        else:
            whole = min(whole, waited)  # it was timed on a busier machine
        _check(tmp_path)
        capsys.readouterr()
    assert interrupted >= least
    assert model.read_bytes() == before

    _clear(tmp_path)
    assert _noise(model, forked).wait() == 0
    assert _check(tmp_path) == NAMES
    assert not list(tmp_path.glob(".*.partial"))  # what the killed runs left was swept
