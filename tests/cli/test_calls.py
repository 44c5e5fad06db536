"""How commands are called: mistyped names, help, colour, quiet, plans as JSON, models that are not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl import __version__
from privctl.cli import run
from privctl.domain.guarantee import Guarantee
from privctl.gate.checks import RULES
from privctl.gate.policy import read_policy
from privctl.reports.codec import decode_value
from tests.cli.killed import FACTS

LEDGER = '[{"type": "laplace", "scale": 3}, {"type": "sampled-gaussian", "noise_multiplier": 4, "steps": 2}]'

#: Names that transformers' Trainer has -> those of ``retrain``, also where click finds another one spelled more alike.
OF_THE_TRAINER = [
    *[("--learning_rate", "--learning-rate"), ("--num_train_epochs", "--epochs"), ("--optim", "--optimizer")],
    *[("--per_device_train_batch_size", "--batch-size"), ("--gradient_accumulation_steps", "--batch-size")],
    *[("--gradient_checkpointing", "--checkpointing"), ("--resume_from_checkpoint", "--resume"), ("--fp16", "--bf16")],
    *[
        ("--output_dir", "--output"),
        ("--lora_r", "--lora-rank"),
        ("--train_file", "--data"),
        ("--eval_data", "--held-out"),
    ],
]


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", {"w": np.ones(1000, np.float32), "count": np.arange(3)})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["nois"], "did you mean noise?"),
        (["retrain", "dp-sdg"], "did you mean dp-sgd?"),
        (["secrets", "scn"], "did you mean scan?"),
        (["claims", "chek"], "did you mean check?"),
        (["canary", "plnt"], "did you mean plant?"),
        (["xyz"], "choose from audit, retrain, noise,"),
        (["account", "--epsilom", "1"], "--epsilon"),
        (["retrain", "dp-sgd", "m", "--lr", "1"], "Did you mean '--learning-rate'?"),
        (["retrain", "dp-sgd", "m", "--eps", "1"], "Did you mean '--epsilon'?"),
        (["retrain", "dp-sgd", "m", "--max-grad-norm", "1"], "Did you mean '--clip-norm'?"),
        (["retrain", "dp-sgd", "m", "--target_epsilon", "1"], "Did you mean '--epsilon'?"),
        (["account", "--sigma", "1"], "Did you mean '--noise-multiplier'?"),
        (["noise", "m", "--sigma", "1"], "Did you mean '--noise-stddev'?"),
        (["account", "--noise_multiplier", "1"], "Did you mean '--noise-multiplier'?"),
        *((["retrain", "dp-sgd", "m", typed, "1"], f"Did you mean '{meant}'?") for typed, meant in OF_THE_TRAINER),
        (
            ["audit", "m", "a.jsonl", "b.jsonl"],
            "; files are given by options, such as --members FILE --nonmembers",
        ),
        (["audit", "extraction", "m", "a.jsonl"], "such as --train FILE --held-out FILE"),
        (["audit", "canaries", "m", "a.json", "--canaries", "c.json"], "such as --canaries FILE"),
        (["retrain", "plain", "m", "a.jsonl", "--data", "d.jsonl"], "such as --data FILE"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    assert meant in capsys.readouterr().err


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for call in (["help"], ["--help"], ["help", "retrain", "plain"], ["retrain", "plain", "--help"]):
        assert run(call) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[2] == printed[3]
    assert printed[2].startswith("Usage: privctl retrain plain")
    assert run(["help", "nois"]) == 2


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([flag]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_colour_in_a_pipe_is_as_the_environment_says(
    variables: dict[str, str],
    coloured: bool,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["noise", str(model), "-q", *FACTS]) == 0
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    run(["gate", str(model.with_name("m.private.report.json")), "--max-epsilon", "1"])
    assert ("\x1b[" in capsys.readouterr().out) is coloured


# The gate's policy.


def test_a_starter_policy_is_written_where_asked_and_never_over_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.toml"
    assert run(["gate", "--init"]) == 0
    printed = capsys.readouterr().out
    assert run(["gate", "--init", "-o", str(path)]) == 0
    captured = capsys.readouterr()
    assert (path.read_text(), captured.out) == (printed, "")
    assert f"wrote {path}" in captured.err
    read_policy(path, {}, {}, RULES)
    path.write_text("max_epsilon = 1\n")
    assert run(["gate", "--init", "-o", str(path)]) == 2
    assert "replaces no policy" in capsys.readouterr().err
    assert path.read_text() == "max_epsilon = 1\n"
    assert run(["gate", "--init", "-o", "-"]) == 0
    assert run(["gate", "a.report.json", "--init"]) == 2


@pytest.mark.parametrize(
    "more", [("--max-epsilon", "3"), ("--json",), ("--format", "json"), ("--policy", "x"), ("--model", "m")]
)
def test_a_starter_policy_takes_no_limits(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever gives a limit would otherwise take the policy to have it."""
    assert run(["gate", "--init", *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"remove {more[0]}, and edit the policy" in captured.err


# What is no model.


@pytest.mark.parametrize(
    "command", [["noise"], ["inspect"], ["audit", "--members", "a.jsonl", "--nonmembers", "a.jsonl"]]
)
@pytest.mark.parametrize(("name", "folder"), [("gpt2", "gpt2"), ("owner/Name-3.2-1B", "Name-3.2-1B")])
def test_a_name_on_a_hub_is_answered_with_how_to_download_it(
    command: list[str],
    name: str,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"text": "a"}\n')
    assert run([command[0], name, *command[1:]]) == 3
    assert f"hf download {name} --local-dir {folder}" in capsys.readouterr().err
    for missing in ("./gpt2", "gpt2.safetensors", "/x/gpt2", "a/b/c"):
        assert run([command[0], missing, *command[1:]]) == 3
        stderr = capsys.readouterr().err
        assert "does not exist" in stderr
        assert "hf download" not in stderr or missing == "./gpt2"


def test_gguf_is_called_by_its_name(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = start / "m.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    for place in (file, start):
        assert run(["noise", str(place), "--epsilon", "1", *FACTS]) == 3
        stderr = capsys.readouterr().err
        assert "GGUF" in stderr
        assert "gguf_file=NAME" in stderr
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a"}\n')
    assert run(["retrain", "plain", str(start), "--data", str(data), "-o", str(tmp_path / "o")]) == 3
    assert "GGUF" in capsys.readouterr().err


# Quiet, and plans.


def test_quiet_leaves_out_notes_but_not_what_voids_a_guarantee(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["noise", str(model), *FACTS, "--dry-run"]
    assert run(call) == 0
    loud = capsys.readouterr().out
    assert run([*call, "-q"]) == 0
    quiet = capsys.readouterr()
    assert "1 tensor without noise" in loud
    assert "without noise" not in quiet.out
    assert "nonconvex" in quiet.out
    assert quiet.err == ""
    assert run([*call, "-q", "--seed", "1"]) == 0
    assert "violated: the noise comes from" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_as_json_is_the_plan_that_is_then_carried_out(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["noise", str(model), "--epsilon", "1", "--epsilon", "8", *FACTS, "--json"]
    assert run([*call, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sorted(p.name for p in model.parent.iterdir()) == ["m.safetensors"]
    assert run(call) == 0
    reports = json.loads(capsys.readouterr().out)
    assert plan["dry_run"] is True
    assert any("without noise" in note for note in plan["notes"])
    for planned, report in zip(plan["candidates"], reports, strict=True):
        assert planned["noise_stddev"] == report["mechanism"]["noise_stddev"]
        assert planned["guarantees"] == report["guarantees"]
        assert Path(planned["would_write"]).name == report["outputs"][0]["path"]
        for guarantee in planned["guarantees"]:
            decode_value(Guarantee, guarantee, "plan", "guarantee")


def test_a_ledger_has_no_peers_and_may_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = tmp_path / "l.json"
    ledger.write_text(LEDGER)
    guarantees = []
    for more in ([], ["--no-peers"]):
        assert run(["account", "--ledger", str(ledger), "--delta", "1e-5", "--json", *more]) == 0
        guarantees.append(json.loads(capsys.readouterr().out)["guarantees"])
    assert guarantees[0] == guarantees[1]
    assert run(["account", "--ledger", str(ledger), "--delta", "1e-5", "--steps", "2"]) == 2


def test_the_poster_of_a_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "--epsilon", "1", "--delta", "1e-5", "--steps", "10", "--no-peers"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for row in ("poster: naive", "poster: advanced", "poster: advanced, corrected"):
        assert f"{row}: DP fine-tuning poster" in text


@pytest.mark.slow
def test_a_plot_s_legend_has_the_table_s_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "p.svg"
    call = ["account", "--noise-multiplier", "1", "--delta", "1e-6", "--sample-rate", "0.01", "--steps", "2000"]
    assert run([*call, "--no-peers", "--plot", str(plot)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("privacy loss distribution"))
    legend, true = row.removeprefix("privacy loss distribution").split()[:2]
    text = plot.read_text()
    assert f"ends at ε = {legend}" in text
    assert f"epsilon {true}, delta 1e-06 alone" in text


def test_quiet_still_says_that_there_is_no_guarantee(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a cat"}\n' * 4)
    call = ["retrain", "plain", str(start), "--data", str(data), "--steps", "1", "--batch-size", "2"]
    assert run([*call, "-o", str(tmp_path / "o"), "-q"]) == 0
    assert capsys.readouterr().out.count("note:") == 1


@pytest.mark.slow
def test_forced_a_plot_takes_the_place_of_another_file(tmp_path: Path) -> None:
    png = tmp_path / "plan.png"
    png.write_text("old")
    plan = ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "1000", "--delta", "1e-5"]
    assert run(["account", *plan, "--method", "rdp", "--no-peers", "-q", "--plot", str(png)]) == 2
    assert run(["account", *plan, "--method", "rdp", "--no-peers", "-q", "--plot", str(png), "--force"]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
