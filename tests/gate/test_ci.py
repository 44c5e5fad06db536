"""The pieces for CI: each example is parsed, and the very command it holds is run on genuine reports."""

from __future__ import annotations

import json
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
from tests.bytecode import search_path
from tests.forked import Forked
from tests.gate.bare import BARE, bare
from tests.gate.genuine import genuine

EXAMPLES = Path("examples") / "ci"
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, root: Path, forked: Forked) -> Path:
    """A repository as the examples take it to be, and ``privctl`` on its path of programs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copytree(genuine(tmp_path_factory) / "release", folder / "release")
    shutil.copy(root / EXAMPLES / "privctl-policy.toml", folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "privctl").write_text(f'#!/bin/sh\nexec {forked.shell()} "$@"\n')
    (programs / "privctl").chmod(0o755)
    return folder


def shell(folder: Path, root: Path, script: str, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``script`` as a runner starts it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PRIVCTL", "GITHUB"))}
    environment = {
        **inherited,
        "PATH": f"{folder.parent / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        **more,
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def example(root: Path, name: str) -> Any:
    return yaml.safe_load((root / EXAMPLES / name).read_text())


def spoil(folder: Path) -> None:
    """Another model, with the reports of the one before."""
    shutil.copy(folder / "release/clipped/model.safetensors", folder / "release/model/model.safetensors")


def action(root: Path, inputs: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The script of the composite action's gate, and the variables it gets for these ``inputs``."""
    whole = yaml.safe_load((root / "action.yml").read_text())
    assert whole["runs"]["using"] == "composite"
    assert set(inputs) <= set(whole["inputs"])
    values = {name: inputs.get(name, entry.get("default", "")) for name, entry in whole["inputs"].items()}
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


def test_the_action_as_the_github_example_calls_it(folder: Path, root: Path) -> None:
    script, variables = action(root, of_github(root))
    summary = folder.parent / "summary.md"
    more = {**variables, "GITHUB_STEP_SUMMARY": str(summary)}
    done = shell(folder, root, script, more)
    assert (done.returncode, done.stdout) == (0, "gate: PASS (10 passed)\n"), done.stderr
    assert "gate: PASS" in summary.read_text()
    assert (folder / "gate.sarif").is_file()
    spoil(folder)
    done = shell(folder, root, script, more)
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=release/model.report.json,line=")
    assert "FAIL" in (folder / "gate.sarif").read_text().upper()


def test_the_action_s_exit_codes(folder: Path, root: Path) -> None:
    for inputs, code in (
        ({"reports": "release/model.report.json", "model": "release/model"}, 3),  # the policy asks for an audit
        ({"reports": "release/model.report.json", "model": "release/model", "sarif": "x.sarif"}, 3),
        ({"reports": "release/model.report.json", "policy": "none.toml", "sarif": "x.sarif"}, 2),
        ({"reports": "", "sarif": "x.sarif"}, 2),
    ):
        script, variables = action(root, inputs)
        assert shell(folder, root, script, variables).returncode == code, inputs


def test_the_action_finds_the_reports_beside_the_model(folder: Path, root: Path) -> None:
    script, variables = action(root, {"model": "release/model"})
    done = shell(folder, root, script, variables)
    assert (done.returncode, done.stdout) == (0, "gate: PASS (10 passed)\n"), done.stderr
    assert "the reports of release/model: " in done.stderr
    script, variables = action(root, {})
    assert shell(folder, root, script, variables).returncode == 2, "nothing to judge"


def test_no_input_of_the_action_becomes_a_command(folder: Path, root: Path) -> None:
    hostile = "$(touch hacked) `touch hacked`; touch hacked\n--output=stolen\n-o\n' \" * \\"
    script, variables = action(root, dict.fromkeys(("reports", "model", "policy", "sarif"), hostile))
    done = shell(folder, root, script, variables)
    assert done.returncode in (2, 3, 4)
    assert not (folder / "hacked").exists()
    assert not (folder / "stolen").exists()


def test_the_action_installs_what_is_pinned_by_hash(root: Path, tmp_path: Path) -> None:
    whole = yaml.safe_load((root / "action.yml").read_text())
    (install,) = [step for step in whole["runs"]["steps"] if step.get("if") == "inputs.install == 'true'"]
    assert "pip" not in install["run"], "the launcher installs"
    folder = launcher(root, tmp_path)
    paths = tmp_path / "paths"
    done = subprocess.run(
        ["bash", "-e", "-c", install["run"]],
        env={**os.environ, "GITHUB_ACTION_PATH": str(folder.parent), "GITHUB_PATH": str(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert shutil.which("privctl", path=paths.read_text().strip()) == str(folder / "privctl")


def launcher(root: Path, tmp_path: Path) -> Path:
    """``ci`` of a checkout whose environment is there already, so that nothing is downloaded."""
    checkout = tmp_path / "checkout"
    shutil.copytree(root / "ci", checkout / "ci", ignore=shutil.ignore_patterns(".environment"))
    (checkout / "privctl").symlink_to(root / "privctl")
    programs = checkout / "ci/.environment/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (programs / "python").chmod(0o755)
    shutil.copy(root / "ci/requirements.txt", checkout / "ci/.environment/installed.txt")
    return checkout / "ci"


def test_the_launcher_runs_its_own_checkout(root: Path, tmp_path: Path, folder: Path) -> None:
    program = launcher(root, tmp_path) / "privctl"
    (folder / "privctl").mkdir()
    (folder / "privctl/__init__.py").write_text("raise SystemExit(99)")
    (folder / "click.py").write_text("raise SystemExit(98)")
    call = [str(program), "gate", "release/model.report.json", "--max-epsilon", "8", "--recompute", "false"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    assert done.stdout.startswith("gate: ")


#: Prints where a module that it is to run comes from; "-m venv" makes what is expected of it.
_ASKED = """#!/bin/sh
for last; do :; done
case "$*" in
  *"-m venv"*)
    mkdir -p "$last/bin"
    cp "$0" "$last/bin/python"
    exec {python} "${{1}}" -c 'import venv; print(venv.__file__)' ;;
  *"-m pip"*) exec {python} "${{1}}" -c 'import pip; print(pip.__file__)' ;;
  *"-m privctl"*) exec {python} "${{1}}" -c 'import privctl; print(privctl.__file__)' ;;
esac
exec {python} "$@"
"""


def test_the_launcher_imports_nothing_from_the_repository_that_it_judges(root: Path, tmp_path: Path) -> None:
    """Planted: a pull request with a folder ``venv`` or ``pip``, which would be run, and could answer for the gate."""
    folder, judged = launcher(root, tmp_path), tmp_path / "judged"
    shutil.rmtree(folder / ".environment")
    for name in ("venv", "pip", "privctl"):
        (judged / name).mkdir(parents=True)
        (judged / name / "__init__.py").write_text("")
    python = tmp_path / "python"
    python.write_text(_ASKED.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    more = {**os.environ, "PYTHON": str(python)}
    call = [str(folder / "privctl"), "--version"]
    done = subprocess.run(call, cwd=judged, env=more, capture_output=True, text=True, check=True)
    found = [Path(line) for line in (done.stderr + done.stdout).splitlines()]
    assert [path.parent.name for path in found] == ["venv", "pip", "privctl"]
    assert not any(path.is_relative_to(judged) for path in found)
    gitlab = " ".join(example(root, "gitlab-ci.yml")["privacy gate"]["before_script"])
    assert "python -I -m pip" in gitlab


def test_the_launcher_refuses_a_python_without_pinned_wheels(root: Path, tmp_path: Path) -> None:
    folder = launcher(root, tmp_path)
    (folder / ".environment/installed.txt").write_text("another set\n")
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    more = {**os.environ, "PYTHON": str(tmp_path / "old")}
    done = subprocess.run([str(folder / "privctl"), "--version"], env=more, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no Python 3.11, 3.12 or 3.13, for which packages are pinned" in done.stderr


def test_a_gate_needs_blake3_and_click_alone(folder: Path, root: Path) -> None:
    gate = ["gate", "release/model.report.json", "release/model.audit.report.json", "--model", "release/model"]
    gate += ["--policy", "privctl-policy.toml", "--recompute", "false", "--format"]
    forms = ("text", "json", "sarif", "junit", "github", "markdown")
    ended = bare(folder, root, "", *([*gate, form] for form in forms), ["inspect", "release/model"])
    assert [code for code, _ in ended] == [0] * 7, ended
    assert all(output for _, output in ended)


def test_what_is_pinned_is_enough_to_compute_guarantees_again(folder: Path, root: Path) -> None:
    gate = ["gate", "release/model.report.json", "release/model.audit.report.json", "--model", "release/model"]
    for allowed, code in (("numpy scipy flint", 0), ("", 3)):
        ((found, output),) = bare(folder, root, allowed, [*gate, "--policy", "privctl-policy.toml"])
        assert found == code, output


def test_what_is_not_compared_without_numpy_is_said(folder: Path, root: Path) -> None:
    """A policy about attacks alone is decided without numpy, by figures that nothing checked."""
    (folder / "attacks.toml").write_text("max_auc = 0.99\n")
    gate = ["gate", "release/model.report.json", "release/model.audit.report.json", "--model", "release/model"]
    gate += ["--policy", "attacks.toml"]
    said = "no audit was compared with the ranks and scores that it kept, because numpy is not installed"
    for allowed, more, noted in (
        ("", [], True), ("numpy scipy flint", [], False), ("", ["--recompute", "false"], False)
    ):  # fmt: skip
        ((code, output),) = bare(folder, root, allowed, [*gate, *more])
        assert (code, said in " ".join(output.split())) == (0, noted), output


def test_what_is_missing_is_named_by_its_package_in_one_sentence(folder: Path, root: Path) -> None:
    """Wherever it is imported; the module of python-flint has another name, under which another package is found."""
    call = ["verify", "release/model.report.json"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, "numpy scipy", json.dumps([call])],
        cwd=folder, env={**os.environ, "PYTHONPATH": search_path(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout) == [[4, ""]]
    sentence = "the package python-flint is not installed; install privctl and its dependencies as the README says"
    assert done.stderr == f"privctl: {sentence}\n"
    gate = ["gate", "release/model.report.json", "--policy", "privctl-policy.toml"]
    ((code, output),) = bare(folder, root, "numpy scipy", gate)
    assert (code in (1, 3), "python-flint is not installed" in " ".join(output.split())) == (True, True), output


def pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([\w.]+)", text.replace("_", "-"), re.MULTILINE))


def test_the_pins_are_those_that_are_tested(root: Path) -> None:
    import tomllib

    text = (root / "ci/requirements.txt").read_text()
    found = pinned(text)
    assert set(found) == {"blake3", "click", "numpy", "python-flint", "scipy", "typing-extensions"}
    tested = pinned((root / "constraints.txt").read_text())
    assert found == {name: tested[name] for name in found}
    assert len(set(re.findall("sha256:([0-9a-f]{64})", text))) == text.count("sha256:") >= 49
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {"blake3>=1.0", "click>=8.4"} <= set(version["dependencies"])
    gitlab = " ".join(example(root, "gitlab-ci.yml")["privacy gate"]["before_script"])
    for name, number in found.items():
        assert f" {name}=={number}" in gitlab
    assert "--no-deps" in gitlab


def test_the_bill_of_materials(root: Path) -> None:
    whole = json.loads((root / "ci/sbom.json").read_text())
    process = subprocess.run([sys.executable, str(root / "ci/sbom.py")], capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == whole, "run python ci/sbom.py > ci/sbom.json"
    assert (whole["bomFormat"], whole["specVersion"]) == ("CycloneDX", "1.5")
    text = (root / "ci/requirements.txt").read_text()
    assert {c["name"]: c["version"] for c in whole["components"]} == pinned(text)
    held = {h["content"] for c in whole["components"] for h in c["hashes"]}
    assert held == set(re.findall("sha256:([0-9a-f]{64})", text))
    assert len({c["bom-ref"] for c in whole["components"]}) == 6
    assert whole["dependencies"][0]["dependsOn"] == sorted(c["bom-ref"] for c in whole["components"])


@pytest.mark.parametrize("line", ["click>=8", "click==8.5.1", "click==8.5.1 --hash=md5:00", "-r other.txt"])
def test_what_is_not_pinned_by_hash_is_no_bill(root: Path, line: str) -> None:
    import runpy

    pins = runpy.run_path(str(root / "ci/sbom.py"))["pins"]
    with pytest.raises(ValueError, match="is not NAME==VERSION"):
        pins(f"# comment\n{line}\n")


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", "examples/ci/github.yml", "docs/guide.md"])
def test_actions_of_others_are_pinned_by_commit(root: Path, path: str) -> None:
    """Each with the version it is; ``git ls-remote --tags`` of the action's repository tells."""
    used = re.findall(r"uses: (\S+)( # v\d+\.\d+\.\d+)?", (root / path).read_text())
    assert used
    for name, version in used:
        if not name.startswith("OWNER/"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)
            assert version


def test_the_gitlab_template(folder: Path, root: Path) -> None:
    job = example(root, "gitlab-ci.yml")["privacy gate"]
    assert sum("privctl gate" in line for line in job["script"]) == 2
    script = "\n".join(job["script"])
    done = shell(folder, root, script, job["variables"])
    assert done.returncode == 0, done.stderr
    report = folder / job["artifacts"]["reports"]["junit"]
    assert ET.parse(report).getroot().attrib["failures"] == "0"
    spoil(folder)
    assert shell(folder, root, script, job["variables"]).returncode == 1
    assert ET.parse(report).getroot().attrib["failures"] != "0"


def test_the_pre_commit_example(folder: Path, root: Path) -> None:
    (repository,) = example(root, "pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    call = shlex.join([*shlex.split(hook["entry"]), *hook["args"]])
    assert hook["pass_filenames"] is False
    assert shell(folder, root, call, {}).returncode == 0
    (folder / "release/model.audit.report.json").unlink()
    assert shell(folder, root, call, {}).returncode == 3
    for path in ("release/model.report.json", "privctl-policy.toml"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "README.md")


def test_the_hook_for_others(root: Path) -> None:
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    (repository,) = example(root, "pre-commit-config.yaml")["repos"]
    assert hook["id"] == repository["hooks"][0]["id"]
    program, command = hook["entry"].split()
    assert (program, command, hook["language"]) == ("ci/privctl", "gate", "script")
    assert os.access(root / program, os.X_OK)
    assert re.search(hook["files"], "a/pyproject.toml")


def test_the_policy_of_the_examples_asks_what_it_says(root: Path) -> None:
    policy = read_policy(root / EXAMPLES / "privctl-policy.toml", {}, {}, RULES)
    assert (policy.max_epsilon, policy.required_steps, policy.require_model) == (8, ("audit",), True)


def test_the_lines_of_the_guide(folder: Path, root: Path) -> None:
    """The lines a user pastes are those of the example, and the command beside them passes."""
    text = (root / "docs" / "guide.md").read_text()
    section = text[text.index("## The gate in CI") :]
    (pasted,) = re.findall(r"```yaml\n(.*?)```", section[: section.index("\n## ")], re.DOTALL)
    steps = yaml.safe_load(pasted)
    (inputs,) = [step["with"] for step in steps if "/privctl@" in step.get("uses", "")]
    script, variables = action(root, inputs)
    assert shell(folder, root, script, variables).returncode == 0
    assert len(pasted.splitlines()) <= 10
