"""A gate does not believe what is guaranteed: it computes it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.storage.digest import file_digest
from tests.bytecode import search_path
from tests.cli.test_gate import AUDIT, OWN, Capture, edit, here

__all__ = ["here"]

Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [lambda d: d.update(outputs=[]), lambda d: d["outputs"][2].update(digest="blake3:" + "0" * 64)],
)
def test_an_audit_of_weights_that_no_report_wrote(here: Path, capsys: Capture, change: Change) -> None:
    edit(OWN, change)
    edit(AUDIT, lambda d: d["parents"][0].update(digest=file_digest(Path(OWN))))
    assert run(["gate", OWN, AUDIT, "--max-epsilon", "3"]) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    for words in ("no report given says how", "are not those that the ranks that it kept name"):
        assert words in stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["guarantees"][0].update(epsilon=0.5), "does not follow"),
        (lambda data: data["guarantees"][0].update(delta=1e-12), "does not follow"),
        (lambda data: data["mechanism"]["events"][0].update(noise_multiplier=50.0), "does not follow"),
        (lambda data: data["mechanism"]["events"][0].update(steps=1), "does not follow"),
        (lambda data: data.update(mechanism=None), "cannot be decided"),
    ],
)
def test_an_edited_number_does_not_pass(
    here: Path, capsys: Capture, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    assert run(["gate", OWN, "--max-epsilon", "3"]) == 0
    edit(OWN, change)
    capsys.readouterr()
    assert run(["gate", OWN, "--max-epsilon", "3", "--json"]) in (1, 3)
    found = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["rule"] == "recomputed"]
    assert any(says in each["message"] for each in found)
    assert run(["gate", OWN, "--max-epsilon", "3", "--recompute", "false"]) == 0


@pytest.mark.forged("every assumption reworded, and what belongs to a guarantee taken away")
def test_what_verify_does_not_know_does_not_pass_the_gate(here: Path) -> None:
    genuine = json.loads(Path(OWN).read_text())
    count = len(genuine["guarantees"][0]["assumptions"])
    assert count >= 8

    def reworded(index: int) -> Change:
        return lambda data: data["guarantees"][0]["assumptions"][index].update(statement="all is well")

    changes = [*map(reworded, range(count)), lambda data: data["guarantees"][0].update(name="dp-sgd, tightened")]
    changes += [lambda data: data["guarantees"][0].update(accountant="ours"), lambda data: data.update(step="train")]
    changes += [lambda data: data["guarantees"].append(data["guarantees"][0])]
    changes += [lambda data: data["guarantees"][0].update(risks=data["guarantees"][0]["risks"][1:])]
    for change in changes:
        edit(OWN, change)
        assert run(["gate", OWN, "--max-epsilon", "3", "-q"]) in (1, 3)
        assert run(["verify", OWN, "-q"]) in (1, 3)
        Path(OWN).write_text(json.dumps(genuine))


@pytest.mark.parametrize(
    "setting",
    [
        *({"optimizer": "adamwx"}, {"schedule": "none"}, {"beta1": 2.8}, {"beta2": 1.0}),
        *({"momentum": -0.1}, {"clip_norm": 0.0}, {"learning_rate": -1.0}, {"warmup_steps": -1}, None),
    ],
)
@pytest.mark.forged("another model's weights, in a training of which nothing can be said")
def test_a_training_that_privctl_does_not_do_passes_nothing(
    here: Path, capsys: Capture, setting: dict[str, Any] | None
) -> None:
    """Weights are held against the settings, so settings that nothing follows from would let any weights pass."""
    pasted = json.loads(Path("release/clipped.report.json").read_text())["outputs"]

    def forge(data: dict[str, Any]) -> None:
        data["outputs"] = pasted
        if setting is None:
            data["inputs"] = []
        else:
            data["parameters"].update(setting)

    edit(OWN, forge)
    assert run(["gate", OWN, "--model", "release/clipped", "--max-epsilon", "3", "-q"]) in (1, 3)
    assert run(["verify", OWN, "-q"]) in (1, 3)
    capsys.readouterr()
    assert run(["gate", OWN, "--model", "release/clipped", "--max-epsilon", "3", "--json"]) in (1, 3)
    found = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["rule"] == "recomputed"]
    named = "names no data" if setting is None else next(iter(setting))
    assert any(named in each["message"] for each in found)


@pytest.mark.parametrize("name", ["optimizer", "schedule", "trained", "beta1", "learning_rate", "updates"])
@pytest.mark.forged("another model's weights, and a setting left out")
def test_a_setting_that_is_left_out_lets_no_weights_pass(here: Path, capsys: Capture, name: str) -> None:
    pasted = json.loads(Path("release/clipped.report.json").read_text())["outputs"]
    edit(OWN, lambda data: (data.update(outputs=pasted), data["parameters"].pop(name)))
    assert run(["verify", OWN, "-q"]) in (1, 3)
    assert "so the weights could be any training's" in " ".join(capsys.readouterr().out.split())


def test_without_scipy_nothing_is_recomputed_and_that_is_said(here: Path) -> None:
    script = (
        "import sys\nsys.modules['scipy'] = None\nfrom privctl.cli import run\n"
        f"sys.exit(run(['gate', {OWN!r}, '--max-epsilon', '3']))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search_path(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "set recompute = false" in " ".join(done.stdout.split())
