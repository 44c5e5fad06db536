"""No command overwrites a model's weights, or the report of another step, even with --force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import CommandError
from tests.verify.reports import noise

#: Arguments; FILE is what may not be overwritten.
COMMANDS = [
    "canary plant a.jsonl -o FILE",
    "canary plant a.jsonl -o planted.jsonl --manifest FILE",
    "audit model --train a.jsonl --leaks FILE",
    "audit scores s.csv -o FILE",
    "audit scores m.csv --models -o FILE",
    "account --epsilon 1 --delta 1e-5 --no-peers -o FILE",
]


@pytest.fixture
def folder(tmp_path: Path, write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, the report of noise, and small inputs, which is the current one."""
    noise(tmp_path, write_model)
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text("".join(f'{{"text": "word {i} of a text", "user": "u{i}"}}\n' for i in range(30)))
    rows = [f"{i % 5},{i % 2}" for i in range(30)]
    Path("m.csv").write_text("\n".join(["score,member", *rows]))
    Path("s.csv").write_text("\n".join(["id,score,member", *(f"a{i},{row}" for i, row in enumerate(rows))]))
    Path("model").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["m.noised.safetensors", "m.noised.report.json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_weights_and_reports_are_kept(
    command: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run([*command.replace("FILE", name).split(), "-f", "-q"]) == 2
    error = capsys.readouterr().err
    assert f"{name} holds tensors" in error or f"{name} is the report of another step" in error
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["m.noised.safetensors", "m.noised.report.json"])
def test_functions_keep_them_too(name: str, folder: Path) -> None:
    with pytest.raises(CommandError, match="name another file"):
        privctl.account(epsilon=1, delta=1e-5, no_peers=True, output=name, force=True)
    with pytest.raises(CommandError, match="name another file"):
        privctl.audit_scores("s.csv", output=name, force=True)


def test_a_plan_replaces_a_plan_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["secrets", "scan", "a.jsonl", "--by", "user", "-o", "b.jsonl", "-q"]) == 0
    plan = ["secrets", "plan", "a.jsonl", "--secrets", "b.jsonl", "--steps", "5", "--batch-size", "5", "-f", "-q", "-o"]
    assert run([*plan, "p.safetensors"]) == run([*plan, "p.safetensors"]) == 0
    before = Path("m.noised.safetensors").read_bytes()
    capsys.readouterr()
    assert run([*plan, "m.noised.safetensors"]) == 2
    assert "holds tensors that are no plan" in capsys.readouterr().err
    assert Path("m.noised.safetensors").read_bytes() == before
