"""Training and scoring keep the memory that steps and passes free, and give it back in the end."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from audits.model_scorer import ModelScorer, OpenedModel
from audits.scores.table import FIELDS
from privctl.domain.progress import unseen
from privctl.models import kept_memory as kept_memory_module
from privctl.models.kept_memory import kept_memory, trim_kept_memory
from privctl.parallel import ALONE
from privctl.train.clipping import engine
from privctl.train.steps.sampling import Passes
from tests.train.steps.test_loop import ROWS, recipe, trainer

_CPU = torch.device("cpu")
#: Larger than any block that glibc takes from its heap by default.
_BYTES = 80 << 20


class _Info(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def _info() -> _Info:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _Info
    found = function()
    assert isinstance(found, _Info)
    return found


pytestmark = [
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc, or an old one"),
    pytest.mark.usefixtures("no_settings"),
]


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)


def _outside_the_heap() -> bool:
    """Whether a tensor that has no room in what the heap holds lies outside it; the system gets that back at once."""
    before = _info()
    tensor = torch.empty(_BYTES + before.fordblks, dtype=torch.uint8)
    return bool(_info().hblkhd > before.hblkhd and len(tensor))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _faults_of_a_tensor(size: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_is_freed_inside_is_kept_and_given_back_afterwards() -> None:
    assert _outside_the_heap()
    with kept_memory(_CPU):
        size = _BYTES + _info().fordblks  # so that it lies at the end of the heap
        faults = [_faults_of_a_tensor(size) for _ in range(5)]
        # Not each time: what is allocated between two tensors may take the alignment that the second needs.
        assert min(faults[1:]) < _BYTES / resource.getpagesize() / 10
        kept = _resident()
        assert not _outside_the_heap()
    assert _resident() <= kept - _BYTES // 2
    assert _outside_the_heap()


def test_it_ends_with_an_error_too_and_with_the_last_of_several_threads() -> None:
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with kept_memory(_CPU):
            begun.set()
            end.wait()

    thread = threading.Thread(target=other, daemon=True)
    with pytest.raises(ZeroDivisionError), kept_memory(_CPU):
        thread.start()
        begun.wait()
        raise ZeroDivisionError
    assert not _outside_the_heap()
    end.set()
    thread.join()
    assert _outside_the_heap()


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "1"), ("GLIBC_TUNABLES", "glibc.malloc.tcache_max=9")]
)
def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with kept_memory(_CPU):
        assert _outside_the_heap()


def test_on_a_gpu_nothing_changes() -> None:
    with kept_memory(torch.device("cuda")):
        assert _outside_the_heap()


def test_a_run_keeps_it_between_its_steps() -> None:
    kept: list[bool] = []

    def measured(_: object) -> dict[str, float]:
        kept.append(_outside_the_heap())
        return {}

    trainer(ROWS, recipe(steps=2), Passes(4, 4, seed=0), evaluate=measured).run()
    assert kept == [False]
    assert _outside_the_heap()


def test_scoring_keeps_it_between_its_passes() -> None:
    kept: list[bool] = []

    class Scorer:
        causal = False

        def counts(self, rows: list[Any]) -> Any:
            return np.ones(len(rows), dtype=np.int64)

        def score(self, rows: list[Any], _: object) -> Any:
            kept.append(_outside_the_heap())
            return np.zeros((len(FIELDS), len(rows)), dtype=np.float32)

    model = SimpleNamespace(network=torch.nn.Identity(), device=_CPU, dtype="float32")
    subject = cast("Any", SimpleNamespace(model=model, scorer=Scorer()))
    scorer = ModelScorer(cache=None, device=None, workers=ALONE, progress=unseen)
    scorer.score(OpenedModel(subject=subject, inputs=(), cache=None, versions={}), [np.arange(3)])
    assert kept == [False]
    assert _outside_the_heap()


def test_what_is_kept_is_returned_where_asked() -> None:
    with kept_memory(_CPU):
        tensor = torch.ones(_BYTES, dtype=torch.uint8)
        del tensor
        kept = _resident()
        trim_kept_memory()
        assert _resident() <= kept - _BYTES // 2


def test_nothing_is_returned_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(kept_memory_module, "_glibc", lambda: SimpleNamespace(malloc_trim=calls.append))
    trim_kept_memory()
    assert not calls


def test_what_comparing_with_autograd_took_is_returned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(engine, "trim_kept_memory", lambda: calls.append(None))
    model, inputs = torch.nn.Linear(3, 2), torch.randn(4, 3)
    with engine.PerExample(model, engine.Clipping(norm=1.0)) as clipped:
        for _ in range(3):
            clipped.accumulate(lambda: model(inputs).sum(1))
    assert len(calls) == 1
