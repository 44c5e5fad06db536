"""Settings from the environment and from a file in the current folder: who wins, what is refused, what no file may."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.cli.configured import JUDGES
from tests.few import few

ACCOUNT = ["account", "--sample-rate", "0.01", "--steps", "100", "--json"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise_of(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[float, str]:
    """The noise multiplier of an account, and what stderr says."""
    assert run([*ACCOUNT, *more]) == 0
    written = capsys.readouterr()
    return json.loads(written.out)["mechanism"]["events"][0]["noise_multiplier"], written.err


@pytest.mark.parametrize(
    ("name", "table"), few([("privctl.toml", "account"), ("pyproject.toml", "tool.privctl.account")], 0)
)
def test_command_line_wins_over_environment_over_file(
    name: str, table: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).write_text(f"[{table}]\nnoise-multiplier = 3.0\ndelta = 1e-5\n")
    noise, stderr = noise_of(capsys)
    assert noise == 3
    assert f"settings from {name}, [account]: noise-multiplier, delta" in stderr
    monkeypatch.setenv("PRIVCTL_ACCOUNT_NOISE_MULTIPLIER", "2")
    assert noise_of(capsys)[0] == 2
    assert noise_of(capsys, "--noise-multiplier", "1")[0] == 1


def test_settings_are_named_even_where_notes_are_not(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "privctl.toml").write_text("[account]\nnoise-multiplier = 3.0\ndelta = 1e-5\n")
    assert "settings from privctl.toml" in noise_of(capsys, "-q")[1]


def test_a_nested_command_has_its_own_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "privctl.toml").write_text('[retrain.dp-sgd]\nepsilon = 8\nbatch-size = 7\noutput = "out"\n')
    assert run(["retrain", "plain", "absent", "--data", "absent.jsonl", "-o", "x"]) == 3
    assert "settings from" not in capsys.readouterr().err
    assert run(["retrain", "dp-sgd", "absent", "--data", "absent.jsonl"]) == 3
    assert "[retrain.dp-sgd]: epsilon, batch-size, output" in capsys.readouterr().err


AUDIT = "[audit]\nleast-auc = 0.7\n[audit.membership]\nseed = 5\n"


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        ([], AUDIT, "settings from privctl.toml, [audit]: least-auc\n"),
        (["membership"], AUDIT, "settings from privctl.toml, [audit.membership]: seed\n"),
        ([], "[audit]\nunheard-of = 1\n", "[audit]: unheard-of is no option of this command"),
        (["membership"], "[audit.unheard-of]\nseed = 1\n", "has [audit.unheard-of], and there is no such command"),
        ([], '[audit]\nlog = "x"\n', "a file may not set --log"),
        (["membership"], '[audit.membership]\nlog = "x"\n', "a file may not set --log"),
    ],
)
def test_a_command_with_subcommands_shares_its_table_with_theirs(
    words: list[str], text: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "privctl.toml").write_text(text)
    assert run(["audit", *words, "absent", "--members", "a", "--nonmembers", "b"]) in (2, 3)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[account]\nunheard-of = 1\n", "[account]: unheard-of is no option of this command"),
        ("[unheard-of]\nx = 1\n", "[unheard-of], and there is no such command"),
        ("epsilon = 1\n", "[epsilon], and there is no such command"),
        ("account = 1\n", "[account] must be a table"),
        ("[account]\nquiet = true\n", "a file may not set --quiet"),
        ("[account.delta]\nx = 1\n", "delta is an option and takes no table"),
        ("[account\n", "is not TOML"),
        ("[gate]\nmax-epsilon = 1e9\n", "settings for gate, which takes none"),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "privctl.toml").write_text(text)
    assert run([*ACCOUNT, "--noise-multiplier", "1", "--delta", "1e-5"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("command", JUDGES)
def test_no_file_weakens_a_judge(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "privctl.toml").write_text(f"[{command}]\nmax-epsilon = 1e9\n")
    assert run([command, "absent.report.json"]) == 2
    assert f"settings for {command}, which takes none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["audit", "m"], "log"),
        (["audit", "m"], "leaks"),
        (["audit", "m"], "keep-scores"),
        (["audit", "m"], "cache"),
        (["canary", "plant", "m"], "seed"),
        (["retrain", "dp-sgd", "m"], "log"),
        (["noise", "m"], "seed"),
        (["noise", "m"], "force"),
        (["retrain", "dp-sgd", "m"], "show-unprotected"),
    ],
)
def test_no_file_lowers_a_guard(command: list[str], key: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ".".join(command[:-1])
    (here / "privctl.toml").write_text(f"[{table}]\n{key} = 1\n")
    assert run(command) == 2
    assert f"[{table}]: a file may not set --{key}" in capsys.readouterr().err


def test_values_are_never_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "privctl.toml").write_text('[noise]\nfacts = "hidden/place.json"\nepsilon = [1.0]\n')
    run(["noise", "absent.safetensors"])
    captured = capsys.readouterr()
    assert "facts, epsilon" in captured.err
    assert "hidden" not in captured.out + captured.err


def test_a_project_s_policy_is_the_gate_s_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "pyproject.toml").write_text("[tool.privctl.gate]\nmax_epsilon = 8\n[tool.other]\nx = 1\n")
    assert "settings from" not in noise_of(capsys, "--noise-multiplier", "1", "--delta", "1e-5")[1]
    (here / "privctl.toml").write_text("[account]\ndelta = 1e-5\n")
    (here / "pyproject.toml").write_text("[tool.privctl.account]\ndelta = 1e-5\n")
    assert run(ACCOUNT) == 2
    assert "both hold settings" in capsys.readouterr().err


def test_a_version_in_the_environment_prints_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIVCTL_VERSION", "1")
    assert noise_of(capsys, "--noise-multiplier", "1", "--delta", "1e-5")[0] == 1


def test_help_reads_no_file_and_parses_no_toml(root: Path, here: Path) -> None:
    (here / "privctl.toml").write_text("[account\n")
    look = "import sys\nfrom privctl.cli import run\ncode = run(['--help'])\nprint(code, 'tomllib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, env={"PYTHONPATH": str(root)}, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"
