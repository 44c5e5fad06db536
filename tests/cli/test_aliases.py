"""``--held-out`` and its relatives are also accepted as ``--heldout``, which no help text shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

import audits.whole.run
import privctl
from audits.whole.request import AuditRequest
from privctl.cli import root, run
from privctl.cli.options import AliasedOption
from privctl.domain.errors import CommandError

FILES = ("m", "a.jsonl", "b.jsonl", "c.jsonl", "book.jsonl", "others.jsonl")
#: Subcommand -> (what it needs, options in the spelling of the help, the same as aliases).
SPELLINGS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "extraction": (["--train", "a.jsonl"], ["--held-out", "b.jsonl"], ["--heldout", "b.jsonl"]),
    "secrets": (
        ["--secrets", "book.jsonl", "--data", "a.jsonl"],
        ["--held-out-secrets", "others.jsonl", "--held-out-data", "b.jsonl"],
        ["--heldout-secrets", "others.jsonl", "--heldout-data", "b.jsonl"],
    ),
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[AuditRequest]:
    """The audits that were requested; none is run."""
    requests: list[AuditRequest] = []
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).touch()
    monkeypatch.setattr(audits.whole.run, "run_audit", lambda request, *_, **__: requests.append(request))
    return requests


def held_out(request: AuditRequest) -> Any:
    """What the request takes its held-out records from."""
    if request.extraction is not None:
        return request.extraction.heldout
    assert request.secrets is not None
    return request.secrets.held_out


@pytest.mark.parametrize("name", SPELLINGS)
def test_both_spellings_mean_the_same(name: str, asked: list[AuditRequest]) -> None:
    needed, usual, alias = SPELLINGS[name]
    for words in (usual, alias):
        assert run(["audit", name, "m", *needed, *words]) == 0
        assert run(["audit", "m", *needed, *words]) == 0
    assert held_out(asked[0]) is not None
    assert all(request == asked[0] for request in asked)


def test_spellings_of_a_repeatable_option_add_up(asked: list[AuditRequest]) -> None:
    words = ["--train", "a.jsonl", "--held-out", "b.jsonl", "--heldout", "c.jsonl"]
    assert run(["audit", "extraction", "m", *words]) == 0
    assert [path.name for path in held_out(asked[0]).paths] == ["b.jsonl", "c.jsonl"]


@pytest.mark.parametrize("spelling", ["held-out", "heldout"])
def test_settings_files_and_variables_take_both(
    spelling: str, asked: list[AuditRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "privctl.toml").write_text(f'[audit.extraction]\n{spelling} = ["b.jsonl"]\n')
    assert run(["audit", "extraction", "m", "--train", "a.jsonl"]) == 0
    (tmp_path / "privctl.toml").unlink()
    monkeypatch.setenv(f"PRIVCTL_AUDIT_EXTRACTION_{spelling.upper().replace('-', '_')}", "c.jsonl")
    assert run(["audit", "extraction", "m", "--train", "a.jsonl"]) == 0
    assert [held_out(request).name for request in asked] == ["b.jsonl", "c.jsonl"]


def test_python_takes_both(asked: list[AuditRequest]) -> None:
    for options in ({"held_out": "b.jsonl"}, {"heldout": "b.jsonl"}):
        with pytest.raises(CommandError, match="main process"):  # as nothing is run
            privctl.audit("m", train="a.jsonl", **options)  # type: ignore[arg-type]
    assert held_out(asked[0]) is not None
    assert asked[0] == asked[1]
    with pytest.raises(CommandError, match="held_out is given twice, once as heldout"):
        privctl.audit("m", train="a.jsonl", held_out="b.jsonl", heldout="b.jsonl")  # type: ignore[call-arg]


def test_retrain_takes_the_alias(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(tmp_path), "--heldout", "absent.jsonl", "-o", str(tmp_path / "out")]
    assert run(["retrain", "plain", str(tmp_path), *words]) in (2, 3)
    assert "No such option" not in capsys.readouterr().err


def test_help_shows_one_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["audit"], ["audit", "extraction"], ["audit", "secrets"], ["retrain", "plain"]):
        assert run([*words, "--help-all"]) == 0
        stdout = capsys.readouterr().out
        assert "--held-out" in stdout
        assert "--heldout" not in stdout


def test_no_option_of_any_command_is_spelled_heldout() -> None:
    def every(command: click.Command, context: click.Context) -> list[click.Parameter]:
        found = list(command.params)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found += every(inner, click.Context(inner, parent=context, info_name=name))
        return found

    options = [each for each in every(root, click.Context(root)) if isinstance(each, click.Option)]
    assert not [flag for option in options for flag in option.opts if "heldout" in flag]
    assert {option.alias for option in options if isinstance(option, AliasedOption)} == {
        "--heldout",
        "--heldout-secrets",
        "--heldout-data",
    }
