"""Which computations are tested, and what is trained where a test asks for padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.train.contribution.findings import Dependence
from privctl.train.steps import contribution
from tests.train.preparation.test_job import job

CPU = torch.device("cpu")


@pytest.mark.parametrize(("bf16", "names"), [(False, ["float32"]), (True, ["float32", "bfloat16"])])
def test_gradients_are_tested_in_the_precision_they_are_computed_in(bf16: bool, names: list[str]) -> None:
    asked = job("dp-sgd", 1.0)
    asked = replace(asked, recipe=replace(asked.recipe, bf16=bf16))
    stages = contribution.gradient_stages(asked, nn.Linear(2, 2), CPU)
    assert [stage.name for stage in stages] == names
    assert [stage.reduced for stage in stages] == [False, True][: len(names)]
    assert contribution.gradient_stages(job("plain", 0.0), nn.Linear(2, 2), CPU) == []
