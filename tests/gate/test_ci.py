"""The pieces for CI: each example is parsed, and the very command it holds is run on genuine reports."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from privctl.gate.checks import RULES
from privctl.gate.policy import read_policy
from tests.gate.genuine import genuine

EXAMPLES = Path("examples") / "ci"
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A repository as the examples take it to be, and ``privctl`` on its path of programs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copytree(genuine(tmp_path_factory) / "release", folder / "release")
    shutil.copy(root / EXAMPLES / "privctl-policy.toml", folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "privctl").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m privctl "$@"\n')
    (programs / "privctl").chmod(0o755)
    return folder


def shell(place: Path, root: Path, script: str, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``script`` as a runner starts it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PRIVCTL", "GITHUB"))}
    environment = {
        **inherited,
        "PATH": f"{place.parent / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        **more,
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def example(root: Path, name: str) -> Any:
    return yaml.safe_load((root / EXAMPLES / name).read_text())


def spoil(place: Path) -> None:
    """Another model, with the reports of the one before."""
    shutil.copy(place / "release/clipped/model.safetensors", place / "release/model/model.safetensors")


def action(root: Path, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The script of the composite action's gate, and the variables it gets for the inputs ``given``."""
    whole = yaml.safe_load((root / "action.yml").read_text())
    assert whole["runs"]["using"] == "composite"
    assert set(given) <= set(whole["inputs"])
    values = {name: given.get(name, entry.get("default", "")) for name, entry in whole["inputs"].items()}
    (step,) = [step for step in whole["runs"]["steps"] if "privctl gate" in step["run"]]
    for every in whole["runs"]["steps"]:
        assert every["shell"] == "bash"
        assert "${{" not in every["run"], "an input inside a script becomes a command"
    variables = {}
    for name, value in step["env"].items():
        match = INPUT.fullmatch(value)
        assert match is not None
        variables[name] = values[match[1]]
    return step["run"], variables


def of_github(root: Path) -> dict[str, str]:
    """The inputs that the example of a workflow gives the action."""
    workflow = example(root, "github.yml")
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    steps = workflow["jobs"]["gate"]["steps"]
    (gate,) = [step["with"] for step in steps if "/privctl@" in step.get("uses", "")]
    (upload,) = [step for step in steps if "upload-sarif" in step.get("uses", "")]
    assert (upload["if"], upload["with"]["sarif_file"]) == ("always()", gate["sarif"])
    assert isinstance(gate, dict)
    return gate


def test_the_action_as_the_github_example_calls_it(place: Path, root: Path) -> None:
    script, variables = action(root, of_github(root))
    summary = place.parent / "summary.md"
    more = {**variables, "GITHUB_STEP_SUMMARY": str(summary)}
    done = shell(place, root, script, more)
    assert (done.returncode, done.stdout) == (0, "gate: PASS (10 passed)\n"), done.stderr
    assert "gate: PASS" in summary.read_text()
    assert (place / "gate.sarif").is_file()
    spoil(place)
    done = shell(place, root, script, more)
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=release/model.report.json,line=")
    assert "FAIL" in (place / "gate.sarif").read_text().upper()


def test_the_action_s_exit_codes(place: Path, root: Path) -> None:
    for given, code in (
        ({"reports": "release/model.report.json", "model": "release/model"}, 3),  # the policy asks for an audit
        ({"reports": "release/model.report.json", "model": "release/model", "sarif": "x.sarif"}, 3),
        ({"reports": "release/model.report.json", "policy": "none.toml", "sarif": "x.sarif"}, 2),
        ({"reports": "", "sarif": "x.sarif"}, 2),
    ):
        script, variables = action(root, given)
        assert shell(place, root, script, variables).returncode == code, given


def test_no_input_of_the_action_becomes_a_command(place: Path, root: Path) -> None:
    hostile = "$(touch hacked) `touch hacked`; touch hacked\n--output=stolen\n-o\n' \" * \\"
    script, variables = action(root, dict.fromkeys(("reports", "model", "policy", "sarif"), hostile))
    done = shell(place, root, script, variables)
    assert done.returncode in (2, 3, 4)
    assert not (place / "hacked").exists()
    assert not (place / "stolen").exists()


def test_what_the_action_installs_is_what_a_gate_needs(root: Path) -> None:
    import tomllib

    wanted = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    text = (root / "action.yml").read_text()
    for name in ("blake3", "click"):
        (need,) = [each for each in wanted if each.startswith(name)]
        assert f"'{need}'" in text


def test_the_gitlab_template(place: Path, root: Path) -> None:
    job = example(root, "gitlab-ci.yml")["privacy gate"]
    assert sum("privctl gate" in line for line in job["script"]) == 2
    script = "\n".join(job["script"])
    done = shell(place, root, script, job["variables"])
    assert done.returncode == 0, done.stderr
    report = place / job["artifacts"]["reports"]["junit"]
    assert ET.parse(report).getroot().attrib["failures"] == "0"
    spoil(place)
    assert shell(place, root, script, job["variables"]).returncode == 1
    assert ET.parse(report).getroot().attrib["failures"] != "0"


def test_the_pre_commit_example(place: Path, root: Path) -> None:
    (repository,) = example(root, "pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    call = shlex.join([*shlex.split(hook["entry"]), *hook["args"]])
    assert hook["pass_filenames"] is False
    assert shell(place, root, call, {}).returncode == 0
    (place / "release/model.audit.report.json").unlink()
    assert shell(place, root, call, {}).returncode == 3
    for path in ("release/model.report.json", "privctl-policy.toml"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "README.md")


def test_the_hook_for_others(root: Path) -> None:
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    (repository,) = example(root, "pre-commit-config.yaml")["repos"]
    assert hook["id"] == repository["hooks"][0]["id"]
    assert hook["entry"] == "privctl gate"
    assert hook["language"] == "python"
    assert re.search(hook["files"], "a/pyproject.toml")


def test_the_policy_of_the_examples_asks_what_it_says(root: Path) -> None:
    policy = read_policy(root / EXAMPLES / "privctl-policy.toml", {}, {}, RULES)
    assert (policy.max_epsilon, policy.required_steps, policy.require_model) == (8, ("audit",), True)


def test_the_lines_of_the_readme(place: Path, root: Path) -> None:
    """The lines a user pastes are those of the example, and the command beside them passes."""
    text = (root / "README.md").read_text()
    section = text[text.index("## A gate in CI") :]
    (pasted,) = re.findall(r"```yaml\n(.*?)```", section[: section.index("\n## ")], re.DOTALL)
    steps = yaml.safe_load(pasted)
    (given,) = [step["with"] for step in steps if "/privctl@" in step.get("uses", "")]
    script, variables = action(root, given)
    assert shell(place, root, script, variables).returncode == 0
    assert len(pasted.splitlines()) <= 10
