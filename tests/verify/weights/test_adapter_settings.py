"""The settings beside a trained adapter scale what its weights compute: edited ones are refuted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.verdict import Outcome
from privctl.storage.digest import file_digest
from tests.cli import test_adapter_bases, test_adapters
from tests.cli.test_adapters import CLIPPED, DP, NEW, TRAIN, edit
from tests.verify.reports import redigest
from verify.run import Verification, read, verify

pytest.importorskip("peft")

made, folder = test_adapters.made, test_adapter_bases.folder
NAME = "adapter_config.json"


@pytest.fixture(scope="module")
def trained(made: Path) -> Path:
    """``made`` with an adapter that was trained further, a new one, and one that got noise after its training."""
    edit(made / "adapter", base_model_name_or_path="base")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for output, method, start, more in (("given", DP, "adapter", ()), ("new", DP, "base", NEW)):
            assert run(["retrain", method[0], start, *method[1:], *more, *TRAIN, "-o", output, "-q"]) == 0
        assert run(["retrain", DP[0], "base", *DP[1:], *NEW[:2], *TRAIN, "-o", "merged", "-q"]) == 0
        assert run(["retrain", CLIPPED[0], "base", *CLIPPED[1:], *NEW, *TRAIN, "-o", "clipped", "-q"]) == 0
        assert run(["noise", "clipped", "--epsilon", "8", "-q", "-o", "noised"]) == 0
    return made


def edited(folder: Path, output: str, **changed: Any) -> Verification:
    """The verification after entries of the released settings were changed together with their digest."""
    edit(folder / output, **changed)
    place, report_path = folder / output / NAME, folder / f"{output}.report.json"
    data = json.loads(report_path.read_text())
    (artifact,) = [each for each in data["outputs"] if each["path"].endswith(f"/{NAME}")]
    artifact |= {"digest": file_digest(place), "bytes": place.stat().st_size}
    report_path.write_text(json.dumps(data))
    return verify(report_path, read(report_path))


def reasons(found: Verification) -> list[str]:
    refuted = [verdict for verdict in found.verdicts if verdict.outcome is Outcome.REFUTED]
    return [verdict.reason for verdict in refuted if verdict.subject == NAME]


@pytest.mark.parametrize("output", ["given", "new", "noised"])
def test_settings_as_they_were_written_pass(folder: Path, output: str) -> None:
    report_path = folder / f"{output}.report.json"
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.OK
    assert reasons(found) == []
    said = [each.reason for each in found.omissions if each.reason.startswith(NAME)]
    assert bool(said) == (output == "new")
    assert all(reason.endswith("the report's word, but for its rank, scale and modules") for reason in said)


@pytest.mark.parametrize(
    ("output", "changed", "word"),
    [
        ("given", {"lora_alpha": 1e-6}, "lora_alpha is 1e-06, where in the adapter that the training began with it is"),
        ("given", {"use_rslora": True}, "use_rslora is True"),
        ("given", {"alpha_pattern": {"c_attn": 0}}, "alpha_pattern.c_attn is 0"),
        ("given", {"note": "40 records of ward 7"}, "note is 40 records of ward 7"),
        ("given", {"target_modules": ["c_proj"]}, "its target_modules name no 'base_model.model.transformer.h.0"),
        ("new", {"lora_alpha": 1e-6}, "lora_alpha is 1e-06, where in a new adapter of rank 2, which the report states"),
        ("new", {"use_rslora": True}, "use_rslora is True"),
        ("new", {"rank_pattern": {"c_attn": 1}}, "rank_pattern.c_attn is 1"),
        ("new", {"target_modules": ["lm_head"]}, "its target_modules name no 'base_model.model.transformer.h.0"),
    ],
)
def test_other_settings_are_refuted(folder: Path, output: str, changed: dict[str, Any], word: str) -> None:
    """By an audit with an alpha of nearly 0, the adapter would reveal as little as its base."""
    found = edited(folder, output, **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in reason for reason in reasons(found)), reasons(found)


def test_another_version_of_transformers_excuses_nothing(folder: Path) -> None:
    report_path = folder / "given.report.json"
    data = json.loads(report_path.read_text())
    data["versions"]["transformers"] = "4.0.0"
    report_path.write_text(json.dumps(data))
    found = edited(folder, "given", lora_alpha=1e-6)
    assert len(reasons(found)) == 1


def test_noise_does_not_hide_settings_that_its_training_did_not_write(folder: Path) -> None:
    """The settings of both folders and both reports are edited alike."""
    edited(folder, "clipped", lora_alpha=1e-6)
    report_path, parent = folder / "noised.report.json", folder / "clipped.report.json"
    data = json.loads(report_path.read_text())
    (link,) = data["parents"]
    link["digest"] = file_digest(parent)
    report_path.write_text(json.dumps(data))
    found = edited(folder, "noised", lora_alpha=1e-6)
    assert found.exit_code is ExitCode.REFUTED
    assert any("lora_alpha is 1e-06" in reason for reason in reasons(found))


def test_it_is_said_that_the_first_settings_are_not_at_hand(folder: Path) -> None:
    (folder / "adapter" / NAME).unlink()
    report_path = folder / "given.report.json"
    found = verify(report_path, read(report_path))
    said = [omission.reason for omission in found.omissions if omission.what == "configuration, not compared"]
    assert said == [f"the {NAME} of the adapter that the training began with is not at hand, or not named"]


@pytest.mark.parametrize(("output", "word"), [("new", "neither"), ("given", "neither"), ("given", "both")])
def test_what_scales_an_adapter_follows_from_one_thing(folder: Path, output: str, word: str) -> None:
    """Without the rank, or the settings that it began with, nothing would show that its alpha was edited."""
    report_path = folder / f"{output}.report.json"
    data = json.loads(report_path.read_text())
    if word == "both":
        data["parameters"]["lora_rank"] = 2
    else:
        data["parameters"]["lora_rank"] = None
        data["inputs"] = [each for each in data["inputs"] if each["role"] != f"start-{NAME}"]
    report_path.write_text(json.dumps(data))
    found = edited(folder, output, lora_alpha=1e-6)
    assert found.exit_code is ExitCode.REFUTED
    assert any(f"it states {word} the rank of a new one" in verdict.reason for verdict in found.verdicts)


def stated(folder: Path, output: str, **changed: Any) -> Verification:
    """The verification after parameters of the report were changed."""
    data = json.loads((folder / f"{output}.report.json").read_text())
    data["parameters"] |= changed
    forged = folder / "forged.report.json"
    forged.write_text(json.dumps(data))
    return verify(forged, read(forged))


@pytest.mark.parametrize("output", ["new", "merged"])
@pytest.mark.parametrize(
    "changed", [{"learning_rate": 0}, {"learning_rate": None}, {"schedule": None}, {"updates": 0}, {"beta1": 1.5}]
)
def test_settings_that_no_training_has_do_not_pass_for_adapters(
    folder: Path, output: str, changed: dict[str, Any]
) -> None:
    assert stated(folder, output).exit_code is ExitCode.OK
    assert stated(folder, output, **changed).exit_code is not ExitCode.OK


def test_another_adapter_does_not_pass_for_a_new_one(folder: Path) -> None:
    """Its matrices B began as zeros, and the training can have moved them only so far."""
    place, report_path = folder / "new" / "adapter_model.safetensors", folder / "new.report.json"
    found = verify(report_path, read(report_path))
    assert any("the first weights were 0 in the matrices B" in verdict.reason for verdict in found.verdicts)
    assert any("other weights of a new adapter are drawn" in omission.reason for omission in found.omissions)
    weights = load_file(place)
    save_file({name: 50 * each if "lora_B" in name else each for name, each in weights.items()}, place)
    redigest(report_path, place)
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.REFUTED
    assert {verdict.subject for verdict in found.verdicts if verdict.outcome is Outcome.REFUTED} == {"weights"}
