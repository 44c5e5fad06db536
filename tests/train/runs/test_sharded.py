"""``--fsdp``: processes that hold shards of a model end with the weights of one that holds all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from tests.forked import Forked
from tests.models.tasks.small import architecture, same_records, words
from tests.train.runs import sharded, sharded_private
from tests.watched import waits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama without weights whose embedding is tied to its output layer; 90 rows are no multiple of 4."""
    folder = architecture(tmp_path_factory.mktemp("sharded") / "llama", "llama", tie_word_embeddings=True)
    words().tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("processes", "checks"),
    [
        (
            2,
            [
                "own_shares",
                "own_rows",
                "same_weights",
                "all_end_together",
                "all_refuse_together",
                "one_record_is_too_much_for_one",
            ],
        ),
        pytest.param(
            2,
            [
                "same_with_public_records",
                "same_weights_in_two_passes",
                "same_clip_norms",
                "another_number_of_processes",
                "no_room_ends_all",
                "memory_of_one_runs_out",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(2, ["memory_runs_out_while_adding"], marks=pytest.mark.slow),
        pytest.param(4, list(sharded.CHECKS), marks=pytest.mark.slow),
    ],
)
def test_shards_make_what_one_process_makes(
    processes: int, checks: list[str], model: Path, tmp_path: Path, forked: Forked
) -> None:
    arguments = [str(model), str(tmp_path), *checks]
    for process in forked.together(processes, arguments, script=str(sharded.__file__)):
        assert process.code == 0, process.errors[-3000:]


@pytest.mark.parametrize(
    ("processes", "checks"),
    [(2, sharded_private.QUICK), pytest.param(4, sharded_private.CHECKS, marks=pytest.mark.slow)],
)
def test_shards_keep_what_private_steps_need(
    processes: int, checks: Iterable[str], model: Path, tmp_path: Path, forked: Forked
) -> None:
    arguments = [str(model), str(tmp_path), *checks]
    for process in forked.together(processes, arguments, script=str(sharded_private.__file__)):
        assert process.code == 0, process.errors[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("last", ["time.sleep(1000)", "while True:\n        pass"])
def test_processes_that_hang_fail(last: str, tmp_path: Path, forked: Forked) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(f"import os, time\nif os.environ['RANK'] == '1':\n    {last}\n")
    with pytest.raises(AssertionError, match="2 processes did not end in 2 s"):
        forked.together(2, [], script=str(script), patience=2.0)


@pytest.mark.slow
@pytest.mark.skipif(not any(waits([os.getpid()]).values()), reason="nothing tells who waits for a core")
def test_processes_that_wait_for_a_core_do_not(tmp_path: Path, forked: Forked) -> None:
    """Four that compute for a second each, on one core."""
    script = tmp_path / "computes.py"
    core = min(os.sched_getaffinity(0))
    compute = f"os.sched_setaffinity(0, [{core}])\nwhile time.thread_time() < 1.0:\n    pass\n"
    script.write_text(f"import os, time\n{compute}")
    assert [process.code for process in forked.together(4, [], script=str(script), patience=2.0)] == [0] * 4


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    lines = [json.dumps({"text": " ".join(["the cat sat on the mat"[: 5 + i % 17]] * (1 + i % 3))}) for i in range(24)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ferret", "--epsilon", "1"], "ferret needs the whole model in each process; remove --fsdp"),
        (["dp-sgd", "--epsilon", "1"], "start them with torchrun"),
        (["plain", "--dry-run"], "one process that holds the whole model"),
    ],
)
def test_what_shards_do_not_go_with(
    arguments: list[str], message: str, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--data", str(data), "--steps", "1", "--batch-size", "4", "-o", str(tmp_path / "out"), "--fsdp"]
    assert run(["retrain", arguments[0], str(model), *arguments[1:], *output]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_command_in_shards_writes_a_report_that_verify_accepts(
    model: Path, data: Path, tmp_path: Path, forked: Forked
) -> None:
    usual = [
        "--data",
        str(data),
        "--held-out",
        str(same_records(data)),
        "--epochs",
        "2",
        "--batch-size",
        "6",
        "--seed",
        "3",
    ]
    for method, own in (("dp-sgd", ["--noise-multiplier", "1"]), ("clipped", []), ("plain", [])):
        output = tmp_path / method
        arguments = ["retrain", method, str(model), *usual, *own, "--fsdp", "-o", str(output)]
        for process in forked.together(2, arguments):
            assert process.code == 0, process.errors[-3000:]
        report = read_report(tmp_path / f"{method}.report.json")
        assert report.parameters["fsdp"] is True
        assert run(["verify", str(output)]) == 0
        assert not (tmp_path / f"{method}.run").exists()
