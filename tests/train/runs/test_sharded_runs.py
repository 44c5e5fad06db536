"""``--fsdp`` from the command line: processes that are killed, that run out of memory, and that go on as others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from privctl.cli import run
from privctl.reports.files import read_report
from tests.forked import Ended, Forked
from tests.models.tasks.small import architecture, words

#: The command, of which process ``RANK_OF_FAULT`` is killed in the step of number ``KILLED_IN`` of those it makes, or,
#: where ``WRITING``, when it has written the tensors of so many states and not yet named them in the last one, or
#: has no memory for more than 70 tokens in training, or, where ``KEEPS_NOTHING``, for what one pass keeps.
SCRIPT = """
import os, signal, sys
import torch
from transformers.models.llama.modeling_llama import LlamaMLP
from privctl.cli import run
from privctl.train.clipping.sinks import KeepingSink
from privctl.train.state import run_folder
from privctl.train.steps.loop import Trainer

step, forward, left = Trainer._step, LlamaMLP.forward, [int(os.environ.get("KILLED_IN", "0"))]

def killed(self, *arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments)

write_bytes = run_folder.write_bytes

def unnamed(path, content):
    left[0] -= path.name == "state.json"
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write_bytes(path, content)

def full(self, hidden):
    if hidden.shape[0] * hidden.shape[1] > 70 and torch.is_grad_enabled():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
    return forward(self, hidden)

def none(self, names, terms):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

if os.environ["RANK"] == os.environ.get("RANK_OF_FAULT"):
    if left[0] and "WRITING" in os.environ:
        run_folder.write_bytes = unnamed
    elif left[0]:
        Trainer._step = killed
    elif "KEEPS_NOTHING" in os.environ:
        KeepingSink.receive = none
    else:
        LlamaMLP.forward = full
sys.exit(run(sys.argv[1:]))
"""
STEPS = 16  # 4 epochs
Started = Callable[..., list[Ended]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama without weights, and 24 records."""
    folder = tmp_path_factory.mktemp("sharded-runs")
    words().tokenizer.save_pretrained(architecture(folder / "llama", "llama", tie_word_embeddings=True))
    text = "the cat sat on the mat"
    lines = [json.dumps({"text": " ".join([text[: 5 + i % 17]] * (1 + i % 3))}) for i in range(24)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "worker.py").write_text(SCRIPT)
    return folder


def call(folder: Path, method: str, output: Path, *more: str) -> list[str]:
    usual = ["--epochs", "4", "--batch-size", "6", "--seed", "3", "--optimizer", "sgd", "-q"]
    own = ["--noise-multiplier", "1"] if method in ("dp-sgd", "dpquant") else []
    own += ["--format", "luq-fp4"] if method == "dpquant" else []
    return [
        *("retrain", method, str(folder / "llama"), "--data", str(folder / "train.jsonl"), "-o", str(output)),
        *("--device", "cpu", *usual, *own, *more),
    ]


@pytest.fixture
def started(folder: Path, forked: Forked, monkeypatch: pytest.MonkeyPatch) -> Started:
    def start(size: int, arguments: list[str], rank: int | None = None, killed_in: int = 0) -> list[Ended]:
        monkeypatch.setenv("RANK_OF_FAULT", "" if rank is None else str(rank))
        monkeypatch.setenv("KILLED_IN", str(killed_in))
        return forked.together(size, arguments, script=str(folder / "worker.py"))

    return start


def require_lost(ended: list[Ended], killed: int) -> None:
    """All but the one that was killed say that one was lost."""
    assert ended[killed].code == -9
    for rank, each in enumerate(ended):
        if rank != killed:
            assert each.code == 4, each.errors[-2000:]
            assert "another process of this run ended in the midst of it" in each.errors
            assert each.errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1, 4)])
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    sizes: tuple[int, ...], folder: Path, tmp_path: Path, started: Started
) -> None:
    """It goes on in as many processes, and in another number, from the last epoch that was saved."""
    assert run(call(folder, "clipped", tmp_path / "whole")) == 0
    *first, last = sizes
    more: list[str] = []
    for size in first:
        fsdp = ["--fsdp"] if size > 1 else []
        ended = started(size, call(folder, "clipped", tmp_path / "cut", *fsdp, *more), size - 1, 6)
        if size > 1:
            require_lost(ended, size - 1)
        else:
            assert ended[0].code == -9
        assert not (tmp_path / "cut").exists()
        more = ["--resume"]
    for each in started(last, call(folder, "clipped", tmp_path / "cut", "--fsdp", "--resume")):
        assert each.code == 0, each.errors[-2000:]
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(torch.allclose(whole[name], cut[name], atol=1e-5) for name in whole)
    reports = [read_report(tmp_path / f"{name}.report.json") for name in ("whole", "cut")]
    assert [report.parameters["updates"] for report in reports] == [STEPS, STEPS]
    assert [report.parameters["steps_begun"] for report in reports] == [
        STEPS,
        STEPS + 2 * len(first),
    ]  # 2 were lost each time
    for mine, theirs in zip(*(report.parameters["history"] for report in reports), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


@pytest.mark.slow
def test_steps_of_a_killed_private_run_stay_in_its_ledger(folder: Path, tmp_path: Path, started: Started) -> None:
    """Killed in its 6th step after 4 were saved, a run has begun 6, and makes the 10 that are left."""
    output = tmp_path / "out"
    require_lost(started(2, call(folder, "dp-sgd", output, "--fsdp"), 0, 6), 0)
    for each in started(4, call(folder, "dp-sgd", output, "--fsdp", "--resume")):
        assert each.code == 0, each.errors[-2000:]
    report = read_report(tmp_path / "out.report.json")
    assert (report.parameters["steps_begun"], report.parameters["updates"]) == (STEPS, STEPS - 2)
    assert run(["verify", str(output)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp-sgd", "dpquant", "plain"])
def test_a_process_without_memory_makes_all_take_less(
    method: str, folder: Path, tmp_path: Path, started: Started
) -> None:
    """In the self-test already, so that the run itself takes as many at once as the smallest memory holds."""
    arguments = [each for each in call(folder, method, tmp_path / "out", "--fsdp") if each != "-q"]
    for each in started(2, arguments, 1):
        assert each.code == 0, each.errors[-2000:]
    assert run(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", [["--bands", "3"], ["--buffers", "2"]])
@pytest.mark.parametrize("last", [1, 4])
def test_correlated_noise_goes_on_in_another_number_of_processes(
    way: list[str], last: int, folder: Path, tmp_path: Path, started: Started
) -> None:
    """Killed in its 6th step after 4 were saved; the two that are lost stay in the ledger."""
    output = tmp_path / "out"
    require_lost(started(2, call(folder, "dp-sgd", output, "--fsdp", *way), 1, 6), 1)
    assert not output.exists()
    fsdp = ["--fsdp"] if last > 1 else []
    for each in started(last, call(folder, "dp-sgd", output, *fsdp, "--resume", *way)):
        assert each.code == 0, each.errors[-2000:]
    report = read_report(tmp_path / "out.report.json")
    assert (report.parameters["steps_begun"], report.parameters["updates"]) == (STEPS, STEPS - 2)
    assert run(["verify", str(output)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", [["--bands", "3"], ["--buffers", "2"]])
def test_a_state_that_was_not_named_yet_is_none(
    way: list[str], folder: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second state's noise is written and the process killed: the run goes on from the first, after 4 steps."""
    output = tmp_path / "out"
    monkeypatch.setenv("WRITING", "1")
    require_lost(started(2, call(folder, "dp-sgd", output, "--fsdp", *way), 0, 2), 0)
    assert len(list((tmp_path / "out.run").glob("state-*.safetensors"))) == 2
    for each in started(2, call(folder, "dp-sgd", output, "--fsdp", "--resume", *way)):
        assert each.code == 0, each.errors[-2000:]
    report = read_report(tmp_path / "out.report.json")
    assert (report.parameters["steps_begun"], report.parameters["updates"]) == (STEPS, STEPS - 4)
    assert run(["verify", str(output)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--bands", "2"], ["--buffers", "2"]])
def test_canary_gradients_of_shards_are_audited(way: list[str], folder: Path, tmp_path: Path, started: Started) -> None:
    output = tmp_path / "out"
    more = ["--gradient-canaries", "400", "--learning-rate", "0.1", "--noise-multiplier", "0.3", *way]
    require_lost(started(2, call(folder, "dp-sgd", output, "--fsdp", *more), 1, 6), 1)
    for each in started(2, call(folder, "dp-sgd", output, "--fsdp", "--resume", *more)):
        assert each.code == 0, each.errors[-2000:]
    assert run(["verify", str(output)]) == 0
    canaries = json.loads((tmp_path / "out.gradient-canaries.json").read_text())
    included = [coin == 1 for coin in canaries["included"]]
    measured = canaries["every_step"]
    mean = [sum(x for x, own in zip(measured, included, strict=True) if own is which) for which in (True, False)]
    assert mean[0] / sum(included) > mean[1] / (len(included) - sum(included)) + 1


@pytest.mark.slow
def test_all_take_two_passes_where_one_has_no_memory_for_one(
    folder: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPS_NOTHING", "1")
    more = ["--fsdp", "--clipping-passes", "auto", "--checkpointing"]
    for each in started(2, call(folder, "dp-sgd", tmp_path / "out", *more), 1):
        assert each.code == 0, each.errors[-2000:]
    assert read_report(tmp_path / "out.report.json").parameters["clipping_passes"] == 2
    assert run(["verify", str(tmp_path / "out")]) == 0
