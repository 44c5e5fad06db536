"""Starting up: quick helps that import no engine, exit codes, and a README whose commands are the ones CI runs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from privctl import __version__
from privctl.cli import COMMANDS
from tests.bytecode import search_path

HEAVY = {"torch", "numpy", "scipy", "rich", "transformers", "cryptography", "blake3", "safetensors", "tokenizers"}
HEAVY |= {"z3", "flint", "highspy", "jinja2", "markupsafe", "matplotlib", "sklearn"}
METHODS = ("dp-sgd", "dp-zo", "dpquant", "ferret", "clipped", "plain")
#: Commands of commands.
NESTED = [
    *(["retrain", name] for name in METHODS),
    *(["canary", name] for name in ("plant", "check")),
    *(["secrets", name] for name in ("scan", "plan")),
    *(["audit", name] for name in ("membership", "canaries", "extraction", "secrets", "scores")),
    *(["claims", name] for name in ("papers", "check")),
    *(["claims", "check", name] for name in ("gaussian", "laplace", "ferret", "secret")),
]
HELPS = [["--help"], ["-h"], ["--version"], *([name, "--help"] for name in COMMANDS), *([*n, "--help"] for n in NESTED)]

#: Calls, each in a process forked from one that has imported the program and nothing beyond it.
CALLS = """
import contextlib, io, json, os, sys
from privctl.cli import run

def called(arguments):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run(arguments)
    modules = sorted(name for name in sys.modules if name.count(".") < 2)
    return [code, out.getvalue(), errors.getvalue(), modules]

found = []
for arguments in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        with open(write, "w") as pipe:
            json.dump(called(arguments), pipe)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        found.append(json.load(pipe))
    os.wait()
print(json.dumps(found))
"""


class Called(NamedTuple):
    """How a call ended, what it wrote, and the modules, such as numpy and scipy.stats, that it had imported by then."""

    code: int
    out: str
    errors: str
    modules: set[str]


def run(root: Path, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python process on the bare checkout."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder or root,
        env={**os.environ, "PYTHONPATH": search_path(root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def calls(root: Path, arguments: list[list[str]], before: str = "") -> list[Called]:
    """Each call alone; ``before`` is Python that runs ahead of them all."""
    done = run(root, "-c", before + CALLS, json.dumps(arguments))
    assert done.returncode == 0, done.stderr
    return [Called(code, out, errors, set(modules)) for code, out, errors, modules in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def helps(root: Path) -> dict[str, Called]:
    return dict(zip(map(" ".join, HELPS), calls(root, HELPS), strict=True))


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_imports_no_engine(helps: dict[str, Called], arguments: list[str]) -> None:
    done = helps[" ".join(arguments)]
    assert done.code == 0, done.errors
    assert "click" in done.modules
    assert HEAVY.isdisjoint(done.modules), HEAVY & done.modules


def test_ctrl_c_while_the_program_loads_is_one_sentence(root: Path) -> None:
    stopped = (
        "import runpy, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('privctl', run_name='__main__')\n"
    )
    done = run(root, "-c", stopped)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("privctl: interrupted")
    assert len(done.stderr.splitlines()) == 1


def test_the_check_of_imports_notices_an_engine(root: Path) -> None:
    (done,) = calls(root, [["--help"]], before="import numpy\n")
    assert HEAVY & done.modules == {"numpy"}
    first, second = calls(root, [["inspect", "pyproject.toml"], ["--help"]])
    assert HEAVY & first.modules
    assert HEAVY.isdisjoint(second.modules), "one call's imports are another's"


@pytest.mark.parametrize("name", [*COMMANDS, *(" ".join(names) for names in NESTED)])
def test_every_help_has_an_example_and_is_narrow_enough(helps: dict[str, Called], name: str) -> None:
    done = helps[f"{name} --help"]
    assert done.code == 0, done.errors
    assert f"Usage: privctl {name}" in done.out
    example = done.out[done.out.index("Example") :]
    assert f"privctl {name}" in example
    for line in done.out.splitlines():
        assert len(line) <= 100


@pytest.mark.parametrize("name", ["audit", *(" ".join(names) for names in NESTED if names[0] == "audit")])
def test_the_help_of_an_audit_fits_a_screen(helps: dict[str, Called], name: str) -> None:
    assert 24 <= len(helps[f"{name} --help"].out.splitlines()) <= 40


#: Commands whose ``--help`` lists every option.
WHOLE = 60
#: Those that have ``--help-all`` for the rest.
BRIEF = 45


@pytest.mark.parametrize("name", [*COMMANDS, *(" ".join(names) for names in NESTED)])
def test_no_help_is_longer_than_a_screen_or_two(helps: dict[str, Called], name: str) -> None:
    help_text = helps[f"{name} --help"].out
    assert len(help_text.splitlines()) <= (BRIEF if "--help-all" in help_text else WHOLE)


@pytest.mark.parametrize("method", METHODS)
def test_the_help_of_a_method_begins_with_what_is_required(helps: dict[str, Called], method: str) -> None:
    help_text = helps[f"retrain {method} --help"].out
    listed = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", help_text, re.MULTILINE)
    first = [flag for flag in listed if flag in ("--data", "--format", "--output", "--epsilon")]
    assert listed[: len(first)] == first
    assert {"--data", "--output"} <= {*first}
    assert help_text.count("Example:") == 1
    assert "--beta1" not in help_text


def test_the_help_of_audit_shows_the_common_options_and_the_subcommands(helps: dict[str, Called]) -> None:
    help_text = helps["audit --help"].out
    for word in ("--members", "--train", "--canaries", "  membership  ", "  scores  ", "[MODEL]"):
        assert word in help_text
    for word in ("--top-k", "--shadow", "--from-scores", "--debug"):
        assert word not in help_text


@pytest.mark.parametrize("group", ["retrain", "canary", "secrets", "claims"])
def test_a_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is laid out, and not as an error's one line."""
    from privctl.cli import run as call

    assert call([group]) == 2
    stderr = capsys.readouterr().err
    assert "Error:" not in stderr
    assert "\n\nCommands:\n" in stderr


def test_the_group_lists_every_command_with_the_table_s_line(root: Path) -> None:
    done = run(root, "-m", "privctl", "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    flowing = " ".join(done.stdout.split())
    for name, (_, line) in COMMANDS.items():
        assert f"{name} {line}" in flowing
    rows = [
        line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS
    ]
    first = ["audit", "retrain", "noise", "verify", "gate"]
    assert rows[: len(first)] == first, "in the order in which one needs them"
    assert len(done.stdout.splitlines()) <= 40, "on one screen, with no command's line folded"
    assert rows == list(COMMANDS)


def test_the_table_and_the_files_agree(root: Path) -> None:
    modules = {target.split(":")[0].rpartition(".")[2] for target, _ in COMMANDS.values()}
    folder = root / "privctl" / "cli"
    files = {p.stem for p in folder.glob("*.py")} - {"__init__", "options"}
    packages = {p.parent.name for p in folder.glob("*/__init__.py")}
    assert modules <= files | packages, "a command in the table has no file"
    for stem in files - modules:
        text = (root / "privctl" / "cli" / f"{stem}.py").read_text(encoding="utf-8")
        assert "click.command" not in text, f"{stem}.py has a command that the table lacks"


def test_the_module_runs_from_a_bare_checkout_in_any_folder(root: Path, tmp_path: Path) -> None:
    done = run(root, "-m", "privctl", "--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"privctl, version {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["unheard-of"], "privctl has no command 'unheard-of'; choose from"),
        (["--unheard-of"], "No such option"),
        (["inspect", "--unheard-of"], "No such option"),
        (["noise"], "Missing argument"),
    ],
)
def test_wrong_usage_exits_2_with_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from privctl.cli import run as call

    assert call(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "Traceback" not in captured.err


def test_bad_input_exits_3_with_one_sentence(root: Path, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\x80\x02}q\0.")
    for path in ("absent.safetensors", "m.safetensors"):
        done = run(root, "-m", "privctl", "inspect", path, folder=tmp_path)
        assert done.returncode == 3, done.stderr
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("privctl: ")
        assert path in done.stderr


def test_debug_shows_where(root: Path, tmp_path: Path) -> None:
    done = run(root, "-m", "privctl", "inspect", "--debug", "absent.safetensors", folder=tmp_path)
    assert done.returncode == 3
    assert "Traceback" in done.stderr


# README and CI.


def command(text: str, name: str) -> str:
    """The command between a README's markers called ``name``."""
    (block,) = re.findall(rf"<!-- {name} -->\n```sh\n(.*?)\n```\n<!-- /{name} -->", text, re.DOTALL)
    assert isinstance(block, str)
    assert "\n" not in block
    return block


def test_ci_runs_the_readme_s_test_command(root: Path) -> None:
    written = command((root / "README.md").read_text(encoding="utf-8"), "test")
    for part in ("-c constraints.txt", "-e '.[dev]'", "ruff check .", "ruff format --check .", "mypy", "pytest"):
        assert part in written
    done = subprocess.run([root / ".ci" / "run", "--show"], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == written + "\n"


def test_the_readme_s_commands_exist(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert command(text, "demo").endswith("privctl demo")
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    called = set(re.findall(r"(?:^ *|`|bin/)privctl ([a-z]+)", code, re.MULTILINE))
    assert called == set(COMMANDS), "the README shows every command and no other"


def test_the_ci_script_is_sound_shell(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    assert shutil.which("bash")
    subprocess.run(["bash", "-n", script], check=True)
    assert ".ci/run" in (root / ".github" / "workflows" / "ci.yml").read_text()


#: These take longer to import than most commands take otherwise.
SLOW = {"scipy.stats", "scipy.optimize", "scipy.signal"}
MODELS = {"torch", "transformers", "tokenizers", "sklearn", "accelerate", "sympy"}
TEXTS = "".join(json.dumps({"text": f"the cat sat on mat {i}, mail a{i}@example.org"}) + "\n" for i in range(40))
SCORES = "id,member,score\n" + "".join(f"r{i},{i % 2},{(7 * i) % 31}\n" for i in range(60))
ARMS = "member,score\n" + "".join(f"{i % 2},{(7 * i) % 31}\n" for i in range(60))
#: Composing events takes longer to import than numpy; noise on weights needs one Gaussian.
LEDGER = "privctl.accounting.ledger"
FACTS = "--epochs 1 --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5"
#: What is called, in a folder with these files -> what it must not have imported at its end.
WORK = {
    "audit scores scores.csv": {*MODELS, *SLOW},
    "audit scores arms.csv --models --claim 1,1e-5": {*MODELS, *SLOW},
    "audit split text.jsonl -o split": {*MODELS, *SLOW},
    "canary plant text.jsonl -o planted.jsonl --count 40": {*MODELS, *SLOW},
    "secrets scan text.jsonl -o secrets.jsonl": {*MODELS, "scipy"},
    f"noise model.safetensors {FACTS} --epsilon 8 -o noised.safetensors": {*MODELS, "scipy", "pyarrow", "PIL", LEDGER},
    "inspect model.safetensors": {*MODELS, "numpy", "scipy", "importlib.metadata"},
    "account --noise-multiplier 1 --delta 1e-5 --steps 10 --no-peers": {*MODELS, "scipy"},
    "account --mechanism laplace --scale 2 --delta 0": {*MODELS, "scipy"},
    "account --mechanism search --expected-runs 5 --noise-multiplier 2 --delta 1e-6": {*MODELS, *SLOW},
    "claims check laplace --epsilon 1 --scale 1": {*MODELS, "numpy", "scipy", "flint"},
    "sign --new-key me": {*MODELS, "numpy", "scipy", "importlib.metadata"},
}


@pytest.fixture(scope="module")
def works(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    folder = tmp_path_factory.mktemp("work")
    for name, text in {"text.jsonl": TEXTS, "scores.csv": SCORES, "arms.csv": ARMS}.items():
        (folder / name).write_text(text)
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    done = calls(root, [each.split() for each in WORK], before=f"import os\nos.chdir({str(folder)!r})\n")
    return dict(zip(WORK, done, strict=True))


@pytest.mark.parametrize("call", WORK)
def test_a_command_imports_no_engine_that_it_does_not_use(works: dict[str, Called], call: str) -> None:
    done = works[call]
    assert done.code == 0, done.errors
    assert WORK[call].isdisjoint(done.modules), WORK[call] & done.modules


def imported_at_once(source: str) -> set[str]:
    """The modules that a file imports when it is itself imported, but for ``if``s, such as ``if TYPE_CHECKING``."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_file_imports_what_takes_longest_before_it_is_called(root: Path) -> None:
    for package in ("privctl", "audits", "verify"):
        for path in (root / package).rglob("*.py"):
            assert not SLOW & imported_at_once(path.read_text(encoding="utf-8")), path
    assert SLOW & imported_at_once("from scipy.stats import norm") == {"scipy.stats"}
    assert SLOW & imported_at_once("from scipy import signal") == {"scipy.signal"}


def test_accounting_needs_no_engine(root: Path) -> None:
    modules = [
        ".".join(path.relative_to(root).with_suffix("").parts) for path in (root / "privctl/accounting").rglob("*.py")
    ]
    load = f"import importlib, sys\n[importlib.import_module(m) for m in {modules!r}]\nprint('torch' in sys.modules)"
    done = run(root, "-c", load)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    planted = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')"
    assert run(root, "-c", f"{planted}\n{load.replace(repr(modules), '[]')}").stdout.strip() == "True"


def test_a_noised_file_is_accounted_for_without_scipy() -> None:
    """Importing it takes as long as adding noise to half a gigabyte."""
    code = (
        "import sys; from privctl.noise import candidates, privatize, request; from privctl.accounting import risk; "
        "risk.risks(risk.GaussianTradeOff(1.0)); sys.exit('scipy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
