"""Settings of what layers are measured on, and what a report says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.guarantee import AssumptionState
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.choice import check
from privctl.train.methods.dpquant.report import _assumptions
from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode, Sensitivity
from privctl.train.settings.choices import FormatName
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest, SecretsRequest


def asked(*, secrets: bool = False, **settings: Any) -> RetrainRequest:
    return RetrainRequest(
        method=method_named("dpquant"), model=ModelRequest(path=Path("m")), data=DataRequest(train=Path("d")),
        output=Path("o"), settings=DpquantSettings(format=FormatName.LUQ_FP4, **settings),
        secrets=SecretsRequest(plan=Path("plan.safetensors")) if secrets else None,
    )  # fmt: skip


def test_a_plan_of_secrets_does_not_count_private_measurements() -> None:
    with pytest.raises(CommandError, match="--secrets cannot be combined with --sensitivity private"):
        check(asked(secrets=True, sensitivity=Sensitivity.PRIVATE))
    check(asked(secrets=True, layers=LayerMode.RANDOM))
    check(asked(secrets=True))


@pytest.mark.parametrize(
    ("settings", "name", "state"),
    [
        ({}, "synthetic measurements", AssumptionState.ENFORCED),
        ({"public_records": Path("public.jsonl")}, "public measurements", AssumptionState.ASSERTED),
        ({"layers": LayerMode.RANDOM}, None, None),
    ],
)
def test_what_layers_are_measured_on_is_a_premise(
    settings: dict[str, Any], name: str | None, state: AssumptionState | None
) -> None:
    job: Any = SimpleNamespace(request=asked(**settings))
    found = {assumption.name: assumption.state for assumption in _assumptions(job, measured=False)}
    expected = {"public rounding": AssumptionState.ENFORCED, "rounding by example": AssumptionState.ENFORCED}
    assert found == expected | ({} if name is None else {name: state})
