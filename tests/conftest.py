"""Fixtures shared by all tests: safetensors files written by hand, and the real data where it is at hand."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

# A worker for each core is enough: threads beside them spend most of their time waiting for each other, and an audit of
# a tiny model takes three to seven times as much processor time. Read when numpy and torch are imported, so set before.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# As on a terminal of 80 columns, as in the documents; a pipe would get every row of a table on one line.
os.environ["COLUMNS"] = "80"

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from tests.bytecode import keep_rewritten_in
from tests.compiled import compile_together
from tests.forked import Forked, Server

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ("tests.reports_verified", "tests.seeded")

#: Where workers find the socket of the process that forks.
_SERVER = "PRIVCTL_TESTS_FORKED"

#: numpy dtype -> the format's name. Plain uint16 arrays stand for bfloat16, which numpy lacks.
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

#: Files of the tests that take longest. They start first, so that at the end no worker waits long for another.
LONG = (
    *("cli/test_examples", "cli/test_retrain", "verify/test_leaf_mutants", "train/runs/test_sharded"),
    *(
        "audits/test_cli_audit",
        "verify/weights/test_check",
        "hostile/test_bombs",
        "cli/test_dpquant",
        "cli/test_ferret",
    ),
    *("train/contribution/test_methods", "cli/test_public_runs", "gate/test_ci", "cli/test_training_logs"),
    *("audits/test_whole_audit", "cli/test_gate", "audits/secrets/test_part", "demo/test_run", "cli/test_account"),
    *("verify/recompute/test_ledgers", "cli/test_written_models", "cli/test_adapters", "shadow/test_shadow"),
    *("examples/test_whole_story", "accounting/test_many_curves", "accounting/test_foreign_ledgers"),
    *("cli/test_released_names", "cli/test_dp_zo", "docs/test_tutorial", "audits/secrets/test_cli"),
    *("accounting/test_pld", "verify/test_mutations", "cli/test_noise_kill", "hostile/test_numbers"),
    *("verify/simulate/test_simulate", "verify/papers/test_book", "cli/test_resume", "cli/test_search_runs"),
    *("data/test_formats", "examples/test_ferret_example", "accounting/test_calibration", "secrets/scan/test_kinds"),
    *("audits/membership/test_other_models", "randomness/test_source", "train/runs/test_guarantee"),
    *("cli/test_retrain_secrets", "cli/test_retrain_plan", "verify/prove/enclosures/test_formulas"),
    *("cli/test_largest_batch_runs", "test_cli_start", "audits/secrets/test_heldout"),
    *("verify/audits/canaries/test_noise", "train/methods/ferret/test_trainer", "audits/secrets/test_designed"),
    *("accounting/test_balls_and_bins", "cli/test_grouped_runs", "api/test_functions", "cli/test_dpquant_synthetic"),
)

#: Files whose tests share what takes long to make: one worker runs them all.
TOGETHER = {
    **{
        f"tests/verify/{name}.py": "reports of every kind"
        for name in (
            *("test_leaf_mutants", "test_mutations", "test_consistent_edits", "audits/test_figures"),
            *("audits/test_entries", "audits/test_mutants_of_audits", "audits/test_fields_read"),
            *("audits/test_left_out", "checkpoint_noise/test_spared_tensors", "consistency/test_begun_with"),
            *("consistency/test_entries_out_of_place", "weights/test_configuration"),
            *("consistency/test_begun_with_records", "consistency/test_public_base", "files/test_beside"),
            *("files/test_counted_data", "warned/test_warned", "weights/test_unbounding_settings"),
            *("consistency/test_bookkeeping", "consistency/test_counted_secrets"),
        )
    },
    **{
        f"tests/{name}.py": "a genuine release"
        for name in (
            "cli/test_gate",
            "cli/test_gate_recomputed",
            "cli/test_model_as_report",
            "gate/test_ci",
            "gate/test_kept_ranks",
        )
    },
    **{f"tests/{name}.py": "the sources, parsed" for name in ("test_house", "test_house_files")},
}

Tensor = np.ndarray | tuple[str, np.ndarray]
WriteModel = Callable[..., Path]
WriteRaw = Callable[..., Path]


def _write_model(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """A file built without the code under test; a tensor may be ``(dtype name, array)``."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, tensor in tensors.items():
        dtype, array = tensor if isinstance(tensor, tuple) else (_NAMES[tensor.dtype.name], tensor)
        data = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    return _write_raw(path, json.dumps(header), body)


def _write_raw(path: Path, header: str | bytes, body: bytes = b"", length: int | None = None) -> Path:
    """A file with any header at all; ``length`` overrides the length it declares."""
    raw = header.encode() if isinstance(header, str) else header
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files stay whole and in order: what their tests share is made once."""
    places = {ROOT / "tests" / f"{name}.py": index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files stay whole, as ``--dist loadfile`` has them, and those of ``TOGETHER`` come together."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return Together(config, log)


def pytest_collection_finish() -> None:
    """What is imported by now stays: no later search for garbage passes over it, and searches are rarer."""
    gc.freeze()
    gc.set_threshold(5000)
    gc.enable()


def pytest_collection(session: pytest.Session) -> None:
    """Looking for garbage among modules takes a quarter of the time of importing them."""
    gc.disable()
    compile_together(session.config, ROOT)


def pytest_configure(config: pytest.Config) -> None:
    """One process forks for all workers; it imports the engines when the first of them asks.

    pytest's own handling of logs is off: it hangs a handler on each of PyTorch's forty loggers three times a test.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    if hasattr(config, "cache"):
        keep_rewritten_in(config.cache.mkdir("compiled"), ROOT)
    if not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no":
        server = Server(ROOT)
        os.environ[_SERVER] = server.place
        config.add_cleanup(server.close)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Of a test that passes, a worker sends one report: sending all five messages takes longer than an empty test."""
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.verbose > 0 or options.xmlpath or options.durations:
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(scope="session")
def write_model() -> WriteModel:
    """Writes ``{name: array}`` to a path."""
    return _write_model


@pytest.fixture(scope="session")
def write_raw() -> WriteRaw:
    """Writes a header given as text or bytes, and a body."""
    return _write_raw


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Starts privctl in processes of their own; see ``tests/forked.py``."""
    place = os.environ.get(_SERVER)
    server = None if place else Server(ROOT)
    yield Forked(place or server.place)
    if server:
        server.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of several threads are not the same bits each time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk() -> Iterator[None]:
    """No test takes the power away, and each ``fsync`` is some milliseconds of waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _heeding() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and tests interrupt themselves and others."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
