"""What lies beside the weights, and what they were drawn from: neither makes a loader or a verifier look elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.verdict import Outcome
from privctl.storage.digest import file_digest
from tests.verify.kinds import Kinds
from verify.checks import findings
from verify.run import read, verify


def copied(kinds: Kinds, folder: Path, keys: dict[str, Any]) -> Path:
    """The report of dp-sgd with its model, whose config.json has further ``keys`` and is listed as it is."""
    genuine = kinds["dp-sgd"]
    assert genuine.model is not None
    model = folder / genuine.model.name
    shutil.copytree(genuine.model, model)
    report = json.loads(genuine.path.read_text())
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **keys}))
    for artifact in report["outputs"]:
        if artifact["path"].endswith("/config.json"):
            artifact.update(digest=file_digest(config), bytes=config.stat().st_size)
    path = folder / genuine.path.name
    path.write_text(json.dumps(report))
    return path


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({}, None),
        ({"transformers_weights": "others.safetensors"}, "take weights from a place that no digest covers"),
        ({"quantization_config": {"quant_method": "other"}}, "import or download code"),
        ({"text_config": {"auto_map": {"AutoModel": "someone/code--mine.Model"}}}, "has auto_map, and it makes"),
    ],
)
def test_no_configuration_leads_elsewhere(kinds: Kinds, tmp_path: Path, keys: dict[str, Any], word: str | None) -> None:
    place = copied(kinds, tmp_path, keys)
    found = [finding.reason for finding in findings(place, read(place), ()) if finding.outcome is Outcome.REFUTED]
    assert [word is not None and word in reason for reason in found] == ([] if word is None else [True])


@pytest.mark.parametrize(
    ("parameter", "value", "word"),
    [
        ("initial_seed", None, "does not say from which seed"),
        ("task", "seq2seq-lm", "cannot be made again"),
    ],
)
def test_drawn_weights_that_cannot_be_drawn_again_do_not_pass(
    kinds: Kinds, parameter: str, value: Any, word: str
) -> None:
    """They take nothing but what the report states: one that does not say may be any model's."""
    genuine = kinds["dp-sgd"].path
    report = json.loads(genuine.read_text())
    report["parameters"][parameter] = value
    report_path = genuine.with_name("undrawn.report.json")
    report_path.write_text(json.dumps(report))
    found = verify(report_path, read(report_path))
    report_path.unlink()
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.outcome is Outcome.INCONCLUSIVE)


@pytest.mark.forged("the report of the training before the noise was edited")
def test_noise_on_weights_whose_training_moved_them_farther_than_it_says(kinds: Kinds, tmp_path: Path) -> None:
    """A smaller learning rate in the report of the training asks for less noise, and the chain fits together again."""
    source, noised = kinds["clipped"].path.parent, tmp_path / "noised.report.json"
    for name in ("clipped", "start"):
        shutil.copytree(source / name, tmp_path / name)
    shutil.copy(source / "train.jsonl", tmp_path)
    report = json.loads(kinds["clipped"].path.read_text())
    for edited in (False, True):
        if edited:
            report["parameters"]["learning_rate"] = report["mechanism"]["learning_rate"] = 5e-6
        (tmp_path / "clipped.report.json").write_text(json.dumps(report))
        asked = ["noise", str(tmp_path / "clipped"), "--epsilon", "1", "--calibration", "gaussian", "-q", "--force"]
        assert run([*asked, "--regime", "nonconvex", "-o", str(tmp_path / "noised")]) == 0
        found = verify(noised, read(noised))
        assert found.exit_code is (ExitCode.REFUTED if edited else ExitCode.OK)
    assert any("moved by" in verdict.reason for verdict in found.verdicts if verdict.outcome is Outcome.REFUTED)
