"""Plans of batches that are not Poisson: verify knows every bound that they state, and confirms it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privctl.accounting.methods import METHODS, TIGHT
from privctl.cli import run
from tests.few import few
from verify.texts.accountants import ACCOUNTANTS


@pytest.mark.parametrize("batches", few([each.value for each in TIGHT], 2))
def test_a_plan_of_any_batches_is_verified(batches: str, tmp_path: Path) -> None:
    plan = ["--noise-multiplier", "2", "--sample-rate", "0.5", "--steps", "2", "--delta", "1e-5", "--batches", batches]
    assert run(["account", *plan, "--no-peers", "-o", str(tmp_path / "plan.json"), "-q"]) == 0
    assert run(["verify", str(tmp_path / "plan.json"), "-q"]) == 0


@pytest.mark.forged("the plan states the epsilon of twice the noise")
@pytest.mark.parametrize("batches", few(["shuffled", "fixed-size"], 0))
def test_a_plan_with_half_of_its_noise_is_refuted(batches: str, tmp_path: Path) -> None:
    plan = ["--sample-rate", "0.25", "--steps", "8", "--delta", "1e-5", "--batches", batches, "--no-peers", "-q"]
    for name, noise in (("whole", "2"), ("half", "1")):
        assert run(["account", "--noise-multiplier", noise, *plan, "-o", str(tmp_path / f"{name}.json")]) == 0
    whole, half = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "half"))
    for place, source in zip(half["guarantees"], whole["guarantees"], strict=True):
        place["epsilon"] = source["epsilon"]
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(half))
    assert run(["verify", str(forged), "-q"]) == 1


def test_every_method_of_a_plan_is_one_that_verify_knows() -> None:
    for method in {*METHODS.values(), *TIGHT.values()}:
        sources = [text for name, text in ACCOUNTANTS.items() if re.fullmatch(name, method.title)]
        assert any(re.fullmatch(text, method.source) for text in sources), method.title
