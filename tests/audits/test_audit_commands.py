"""``privctl audit`` as a group: each subcommand asks for what the same options of ``privctl audit`` ask for."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

import audits.whole.run
from audits import ATTACKS, THOROUGH
from audits.whole.request import AuditRequest
from privctl.cli import root, run
from privctl.cli.audit import audit
from privctl.cli.groups import WithRareOptions

CALLS = {
    "membership": (
        "--members a.jsonl --nonmembers b.jsonl --attack loss --attack min-k --shadow s --reference r --least-auc 0.6 "
        "--task causal-lm --max-length 9 --resize 8 8 --leaks l.jsonl --seed 3 --device cpu -o o.report.json"
    ),
    "canaries": (
        "--canaries c.json --commitment x --canary-data d.jsonl --references 70 --no-exact --claim 1,1e-5 --delta 0"
    ),
    "extraction": (
        "--train a.jsonl --held-out b.jsonl --prefix-tokens 9 --suffix-tokens 8 --least-prefix 4 --temperature 2 "
        "--top-k 5 --top-p 0.5 --records 6 --queries 9 --query-probability 0.9 --cache kept --log own.jsonl"
    ),
    "secrets": (
        "--secrets b.jsonl --data a.jsonl --plan p.safetensors --base q --candidates 5 --most-secrets 7 --queries 3 "
        "--held-out-secrets c.json --held-out-data d.jsonl "
        "--canaries c.json --commitment x --keep-scores -f"
    ),
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[AuditRequest]:
    """What is asked of the engine, which is not run."""
    requests: list[AuditRequest] = []
    monkeypatch.chdir(tmp_path)
    for name in ("m", "q", "r", "s", "a", "b", "c", "a.jsonl", "b.jsonl", "c.json", "d.jsonl", "p.safetensors"):
        (tmp_path / name).touch()  # missing ones would be named first
    monkeypatch.setattr(audits.whole.run, "run_audit", lambda request, *_, **__: requests.append(request))
    return requests


@pytest.mark.parametrize("name", CALLS)
def test_a_subcommand_asks_for_what_the_old_spelling_asks_for(name: str, asked: list[AuditRequest]) -> None:
    words = CALLS[name].split()
    for call in (["m", *words], [*words, "m"], [name, "m", *words], [name, *words, "m"]):
        assert run(["audit", *call]) == 0
    assert asked[0].model == Path("m")
    assert all(request == asked[0] for request in asked)


@pytest.mark.parametrize("name", CALLS)
def test_the_defaults_are_the_same(name: str, asked: list[AuditRequest]) -> None:
    needed = {
        "membership": "--members a --nonmembers b", "canaries": "--canaries c", "extraction": "--train a",
        "secrets": "--secrets b --data a",
    }[name].split()  # fmt: skip
    assert run(["audit", "m", *needed]) == run(["audit", name, "m", *needed]) == 0
    assert asked[0] == asked[1]


def test_every_option_is_one_of_the_common_call_too() -> None:
    common = {name for parameter in audit.alone.params for name in parameter.opts}
    own = {"--score-column", "--member-column", "--id-column", "--model", "--models", "--threshold", "file"}
    for name, command in audit.commands.items():
        found = {option for parameter in command.params for option in parameter.opts}
        assert found - common <= {"scores": own, "split": {"data", "--to-see"}}.get(name, set())
    assert common - {"--extraction-split"} == {  # there --split is that of membership
        option
        for name, command in audit.commands.items()
        if name not in ("scores", "split")
        for parameter in command.params
        for option in parameter.opts
    } | {"--from-scores"}


@pytest.mark.parametrize("name", audit.commands)
def test_a_model_called_like_a_subcommand_is_not_mistaken_for_it(
    name: str, asked: list[AuditRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).mkdir()
    files = ["--members", "a", "--nonmembers", "b"]
    assert run(["audit", name, *files]) == 2
    stderr = capsys.readouterr().err
    assert f"{name} is the subcommand; for the file or folder of that name write privctl audit ./{name}" in stderr
    assert run(["audit", f"./{name}", *files]) == 0
    assert run(["audit", *files, name]) == 0, "it is no subcommand where options come first"
    assert [request.model for request in asked] == [Path(name), Path(name)]


def test_a_wrong_value_is_no_reason_to_doubt_the_subcommand(
    asked: list[AuditRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("split").mkdir()  # as privctl audit split -o split made it
    assert run(["audit", "split", "a.jsonl", "-o", "split", "--records", "many"]) == 2
    stderr = capsys.readouterr().err
    assert "'many' is not a valid integer" in stderr
    assert "subcommand" not in stderr


def test_nothing_is_said_of_folders_where_there_is_none(
    asked: list[AuditRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "membership"]) == 2
    stderr = capsys.readouterr().err
    assert "Missing argument 'MODEL'" in stderr
    assert "folder" not in stderr


def test_a_mistyped_subcommand_is_noticed(asked: list[AuditRequest], capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--members", "a", "--nonmembers", "b"]
    assert run(["audit", "membershp", "m", *files]) == 2
    assert "membershp is no file and no command; did you mean membership?" in capsys.readouterr().err
    Path("membershp").mkdir()
    assert run(["audit", "membershp", *files]) == 0
    assert run(["audit"]) == 2
    assert "there is nothing to audit; give MODEL" in capsys.readouterr().err


def completed(words: list[str], incomplete: str) -> set[str]:
    class Shell(ShellComplete):
        name = "test"

    return {item.value for item in Shell(root, {}, "privctl", "_").get_completions(words, incomplete)}


def test_a_shell_completes_subcommands_and_options() -> None:
    assert completed(["audit"], "") >= set(audit.commands)
    assert "membership" in completed(["audit"], "mem")
    assert "--members" in completed(["audit"], "--mem")
    assert completed(["audit", "membership"], "--sha") == {"--shadow"}
    assert "membership" not in completed(["audit", "model"], "mem")


def helped(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["audit", *words]) == 0
    return capsys.readouterr().out


def options_in(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", text, re.MULTILINE))


def commands_of_audit() -> dict[str, click.Command]:
    return {"": audit.alone, **audit.commands}


#: Kept for old scripts alone.
WITHOUT_EFFECT = {("", "--no-cache"), *((name, "--no-cache") for name in CALLS), ("scores", "--seed")}


@pytest.mark.parametrize("name", ["", *audit.commands])
def test_every_option_is_in_the_help_of_all(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And in ``--help`` all but the rare ones; what has no effect is in neither."""
    words = [name] if name else []
    command = commands_of_audit()[name]
    assert isinstance(command, WithRareOptions)
    every = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }
    kept = {option for of, option in WITHOUT_EFFECT if of == name}
    rare = {every[each] for each in command.rare}
    whole = helped(*words, "--help-all", capsys=capsys)
    assert options_in(whole) - {"--help", "--help-all"} == set(every.values()) - kept
    brief = options_in(helped(*words, "--help", capsys=capsys))
    assert brief - {"--help", "--help-all"} == set(every.values()) - kept - rare
    assert ("--help-all" in brief) is bool(rare)
    assert all(
        parameter.help for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    )


@pytest.mark.parametrize("name", ["membership", "extraction"])
def test_rare_options_have_a_heading_and_the_help_ends_with_the_way_to_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brief = helped(name, "--help", capsys=capsys)
    assert re.fullmatch(r"  --help-all +Show all options and details\.", brief.splitlines()[-1])
    whole = helped(name, "--help-all", capsys=capsys)
    brief, whole = (text[text.index("\nOptions:\n") :] for text in (brief, whole))  # details may stand before
    assert whole.startswith(brief.rstrip("\n"))
    rest = whole.removeprefix(brief.rstrip("\n"))
    assert rest.startswith("\n\nMore options:\n")
    assert options_in(rest) >= {"--base-bits"}


def test_a_shell_completes_rare_options() -> None:
    assert completed(["audit", "extraction"], "--least-p") == {"--least-prefix"}
    assert completed(["audit", "membership"], "--base") == {"--base", "--base-bits"}
    assert completed(["audit"], "--sampling") == {"--sampling-seed"}
    assert completed(["audit", "extraction"], "--help-a") == {"--help-all"}
    assert completed(["audit", "extraction"], "--no-c") == set()


def test_the_help_of_all_is_shown_whatever_else_is_given(
    asked: list[AuditRequest], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--least-prefix" in helped("extraction", "m", "--train", "a.jsonl", "--help-all", capsys=capsys)
    assert not asked
    monkeypatch.setenv("PRIVCTL_AUDIT_EXTRACTION_HELP_ALL", "1")
    assert run(["audit", "extraction", "m", "--train", "a.jsonl"]) == 0
    assert len(asked) == 1


def test_options_of_the_commands_are_left_out_of_help_and_work(asked: list[AuditRequest]) -> None:
    help_text = audit.alone.get_help(click.Context(audit.alone, info_name="audit"))
    assert "--top-k" not in help_text
    assert run(["audit", "m", "--train", "a.jsonl", "--top-k", "3"]) == 0
    assert asked[0].extraction is not None
    assert asked[0].extraction.law.top_k == 3


def test_the_whole_help_names_every_attack(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "membership", "--help-all"]) == 0
    named = set(re.findall(r"[a-z+-]+", capfd.readouterr().out))
    assert {*ATTACKS, *THOROUGH} <= named
