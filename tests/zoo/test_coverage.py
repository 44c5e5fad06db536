"""The bench ``coverage`` on two architectures: privctl is right on both, Opacus on one, and its faults are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.bench import coverage, coverage_opacus
from tests.bench.coverage import FAILS, LESS, NONE, REFUSED, RIGHT, UNTRIED, WRONG
from tests.zoo.gradients import norms_of, relative_error

pytest.importorskip("opacus")


@pytest.mark.slow
def test_a_model_that_both_train(one_thread: None) -> None:
    found = coverage.measured("text-classification", "bert")
    assert found["privctl"]["outcome"] == RIGHT
    assert {mode: each["outcome"] for mode, each in found["opacus"].items()} == dict.fromkeys(
        coverage_opacus.MODES, RIGHT
    )


def test_a_model_that_privctl_alone_trains(one_thread: None) -> None:
    """OPT hands a number to the module of its positions, which Opacus's hooks take for a tensor."""
    found = coverage.measured("causal-lm", "opt")
    assert found["privctl"]["outcome"] == RIGHT
    assert {each["outcome"] for each in found["opacus"].values()} == {FAILS}
    assert "'int' object" in found["opacus"]["hooks"]["reason"]


def test_in_bfloat16_privctl_alone_is_tried(one_thread: None) -> None:
    found = coverage.measured("causal-lm", "opt", half=True)
    assert found["opacus"] == {}
    assert found["privctl"]["outcome"] == RIGHT
    assert 1e-4 < found["privctl"]["difference"] < 0.1, "sums in float32 differ by less"


class Twice(nn.Module):
    """Uses a layer's weight once through the layer and once without it, where no hook of the layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return (self.layer(rows).tanh() @ self.layer.weight).square().sum(-1)


def test_a_sum_that_is_wrong_is_noticed() -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    network = Twice()
    gradients = [
        dict(zip(["layer.weight"], torch.autograd.grad(network(row[None]).sum(), network.parameters()), strict=True))
        for row in rows
    ]
    limits = {"seconds": 60, "mib": 4096}
    found = coverage_opacus.tried(network, lambda called: called(rows), gradients, (), limits)
    assert {mode: each["outcome"] for mode, each in found.items()} == dict.fromkeys(coverage_opacus.MODES, WRONG)


def test_the_error_is_of_the_clipped_sum() -> None:
    network = nn.Linear(2, 1, bias=False)
    gradients = [{"weight": torch.tensor([[3.0, 4.0]])}, {"weight": torch.tensor([[0.0, 1.0]])}]
    norms = norms_of(gradients, ["weight"])
    assert norms.tolist() == [5.0, 1.0]
    network.weight.grad = torch.tensor([[0.6, 1.8]])
    factors = (1.0 / norms).clamp(max=1.0)
    assert relative_error(network, gradients, factors, ["weight"]) < 1e-6
    network.weight.grad = torch.tensor([[0.6, 0.8]])  # the second record is missing
    assert relative_error(network, gradients, factors, ["weight"]) == pytest.approx(1 / (0.36 + 3.24) ** 0.5)


def row(task: str, ours: str, **modes: str) -> dict[str, Any]:
    return {
        "task": task,
        "architecture": "a",
        "privctl": {"outcome": ours},
        "opacus": {mode: {"outcome": ended} for mode, ended in modes.items()},
    }


def test_a_pair_counts_by_its_best_mode() -> None:
    rows = [
        row("x", RIGHT, hooks=WRONG, ghost=RIGHT),
        row("x", RIGHT, hooks=FAILS, ghost=WRONG),
        row("x", RIGHT, hooks=LESS, ghost=WRONG),
        row("y", RIGHT, hooks=FAILS, ghost=FAILS),
        row("y", REFUSED),
        row("y", NONE),
    ]
    assert coverage.table_rows(rows) == [
        ["x", "3", "3", "0", "0", "1", "1", "1", "0", "0"],
        ["y", "2", "1", "1", "0", "0", "0", "0", "1", "1"],
        ["all", "5", "4", "1", "0", "1", "1", "1", "1", "1"],
    ]
    assert coverage.counts(rows) == (5, 4, 1, 1)
    assert coverage.best({}) == UNTRIED


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    assert coverage._stored(tmp_path / "none.json") == {}
    (tmp_path / "some.json").write_text('{"rows": [{"task": "x", "architecture": "a"}]}')
    assert coverage._stored(tmp_path / "some.json") == {("x", "a"): {"task": "x", "architecture": "a"}}
