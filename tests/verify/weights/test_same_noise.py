"""Reports of other settings that put the same noise into the weights: they pass, and verify says that it sees no more.

As ``docs/threat-model.md`` states: under gradient descent, weights show learning rate x noise multiplier x clip norm x
sqrt(steps) / batch size, and none of these factors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from tests.cli.short_runs import dp_sgd, prepared
from verify.run import Verification, read, verify

pytestmark = pytest.mark.forged("each report is of another training than its weights")
#: Options of a training, and of others whose noise is as large, or ten times as large.
TRUE = {"--steps": "16", "--batch-size": "12", "--learning-rate": "0.1", "--noise-multiplier": "1", "--clip-norm": "1"}
ALIKE = {
    "ten times the noise multiplier": {"--noise-multiplier": "10", "--clip-norm": "0.1"},
    "a quarter of the steps": {"--steps": "4", "--batch-size": "3", "--learning-rate": "0.05"},
}
OTHER = {"ten times the noise multiplier alone": {"--noise-multiplier": "10"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("alike"), 60)
    for name, more in {"true": {}, **ALIKE, **OTHER}.items():
        options = [word for pair in {**TRUE, **more}.items() for word in pair]
        output = folder / name.replace(" ", "-")
        assert (
            run(dp_sgd(folder, output, "--optimizer", "sgd", "--delta", "1e-5", "--device", "cpu", "-q", *options)) == 0
        )
    return folder


def forged(folder: Path, name: str) -> tuple[float, Verification]:
    """The stated over the true epsilon, and the verification of the weights under the report of the run ``name``."""
    true, other = (json.loads((folder / f"{n}.report.json").read_text()) for n in ("true", name.replace(" ", "-")))
    path = folder / "forged.report.json"
    path.write_text(json.dumps({**other, "outputs": true["outputs"]}))
    stated, genuine = (each["guarantees"][0]["epsilon"] for each in (other, true))
    return stated / genuine, verify(path, read(path))


@pytest.mark.parametrize("name", ALIKE)
def test_settings_with_the_same_noise_pass_and_it_is_said(folder: Path, name: str) -> None:
    share, found = forged(folder, name)
    assert share < 0.3
    assert found.exit_code is ExitCode.OK
    (reason,) = [verdict.reason for verdict in found.verdicts if verdict.subject == "weights"]
    assert "not settings that together give the same noise, such as twice the noise multiplier with half" in reason


@pytest.mark.parametrize("name", OTHER)
def test_noise_of_another_size_does_not(folder: Path, name: str) -> None:
    assert forged(folder, name)[1].exit_code is ExitCode.REFUTED
