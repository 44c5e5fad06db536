"""``--convert batch-norm`` with ``--dry-run`` and ``--resume``: planned as converted, and gone on with as begun."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageClassification

from privctl.cli import run
from privctl.train.state import interrupts
from tests.cli.test_converted_norms import DPQUANT, FERRET
from tests.cli.test_written_models import DP, IMAGES, agrees, pixels_of, report_of, retrain

CONVERT = (*IMAGES, "--convert", "batch-norm")


@pytest.mark.slow
@pytest.mark.parametrize("method", [FERRET, DPQUANT, (*DP, "--optimizer", "sgd")])
def test_a_converted_run_is_planned_interrupted_and_resumed(
    method: tuple[str, ...], resnet: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    output = tmp_path / "out"
    assert retrain(method, resnet, images, output, *CONVERT, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert not list(tmp_path.glob("out*")), "a plan writes nothing"
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "deferred_interrupts", lambda notify: nullcontext(lambda: True))
        assert retrain(method, resnet, images, output, *CONVERT) != 0
    assert "--resume" in capsys.readouterr().err
    assert retrain(method, resnet, images, output, *IMAGES, "--norm", "frozen", "--resume") == 2
    assert "was begun without --norm" in capsys.readouterr().err
    assert retrain(method, resnet, images, output, *CONVERT, "--resume") == 0
    report = report_of(output)
    network: Any = AutoModelForImageClassification.from_pretrained(output)
    pixels, labels = pixels_of(images, output)
    with torch.no_grad():
        agrees(output, network.eval()(pixels).logits, labels)
    trained = sum(p.numel() for n, p in network.named_parameters())
    assert (report.parameters["converted"], f"{trained}\n" in planned) == ("batch-norm", True)
    assert run(["verify", str(output.with_name("out.report.json")), "-q"]) == 0
