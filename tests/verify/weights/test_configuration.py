"""The configuration beside trained weights is the one that the training began with, whatever its digest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.storage.digest import file_digest
from tests.cli.short_runs import dp_sgd, prepared
from tests.verify.kinds import Kinds
from verify.run import Verification, read, verify

NAME, GENERATION = "config.json", "generation_config.json"


@pytest.fixture
def report_path(kinds: Kinds, tmp_path: Path) -> Path:
    """The report of a copy of a training, with its model and the folder that it began with."""
    genuine = kinds["dp-sgd"].path
    for name in (genuine.name, "dp-sgd", "start", "train.jsonl"):
        place = genuine.with_name(name)
        (shutil.copytree if place.is_dir() else shutil.copy)(place, tmp_path / name)
    return tmp_path / genuine.name


def edited(report_path: Path, name: str = NAME, **changed: object) -> Verification:
    """The verification after entries of a released configuration were changed together with its digest."""
    place, data = report_path.with_name("dp-sgd") / name, json.loads(report_path.read_text())
    entries = {**json.loads(place.read_text()), **changed}
    place.write_text(json.dumps({name: value for name, value in entries.items() if value is not None}))
    (artifact,) = [each for each in data["outputs"] if each["path"].endswith(f"/{name}")]
    artifact |= {"digest": file_digest(place), "bytes": place.stat().st_size}
    report_path.write_text(json.dumps(data))
    return verify(report_path, read(report_path))


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"layer_norm_epsilon": 0.09}, "entry layer_norm_epsilon is 0.09"),
        ({"activation_function": "relu"}, "entry activation_function is relu"),
        ({"n_head": 4}, "entry n_head is 4"),
        ({"note": "60 records of ward 7"}, "entry note is 60 records of ward 7"),
    ],
)
def test_an_entry_that_no_training_changes_is_refuted(report_path: Path, changed: dict[str, object], word: str) -> None:
    found = edited(report_path, **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.subject == NAME)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"temperature": 0.01}, "entry temperature is 0.01"),
        ({"note": "60 records of ward 7"}, "entry note is 60 records of ward 7"),
        ({"sequence_bias": [[[5], 10.0]]}, "entry sequence_bias is "),
        ({"bos_token_id": None}, "entry bos_token_id is not set"),
        (
            {"transformers_version": {"ward": 7}},
            "entry transformers_version is {'ward': 7}, which transformers does not",
        ),
    ],
)
def test_an_entry_of_the_generation_configuration_is_refuted(
    report_path: Path, changed: dict[str, object], word: str
) -> None:
    found = edited(report_path, GENERATION, **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.subject == GENERATION)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["BertModel"]),
        ("_name_or_path", "60 records of ward 7"),
        ("dtype", "float16"),
        ("transformers_version", "ward 7"),
    ],
)
def test_a_note_that_transformers_does_not_write_is_refuted(report_path: Path, name: str, value: object) -> None:
    found = edited(report_path, **{name: value})
    assert found.exit_code is ExitCode.REFUTED
    assert any(f"entry {name} is " in verdict.reason for verdict in found.verdicts if verdict.subject == NAME)


@pytest.fixture(scope="module")
def from_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a training that began with weights and a generation configuration."""
    folder = prepared(tmp_path_factory.mktemp("checkpoint"), 30)
    network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "start"))
    network.generation_config.temperature, network.generation_config.do_sample = 0.7, True
    network.save_pretrained(folder / "start")
    steps = ["--steps", "2", "--batch-size", "6", "--noise-multiplier", "1", "--device", "cpu", "-q"]
    assert run(dp_sgd(folder, folder / "out", *steps)) == 0
    return folder / "out.report.json"


def test_a_generation_configuration_is_kept_and_compared_where_it_is_at_hand(from_checkpoint: Path) -> None:
    assert json.loads((from_checkpoint.with_name("out") / GENERATION).read_text())["temperature"] == 0.7
    for gone in (False, True):
        if gone:
            (from_checkpoint.with_name("start") / GENERATION).unlink()
        found = verify(from_checkpoint, read(from_checkpoint))
        assert found.exit_code is ExitCode.OK
        reasons = [omission.reason for omission in found.omissions if omission.what == "configuration, not compared"]
        assert reasons == [f"the {GENERATION} of the model that the training began with is not at hand"] * gone


def test_what_transformers_writes_may_differ(report_path: Path) -> None:
    found = edited(report_path, transformers_version="5.0.0", dtype=None, architectures=["GPT2LMHeadModel"])
    assert found.exit_code is ExitCode.OK
    assert not [omission for omission in found.omissions if omission.what.startswith("configuration")]


def test_it_is_said_that_the_first_configuration_is_not_at_hand(report_path: Path) -> None:
    (report_path.with_name("start") / NAME).unlink()
    found = verify(report_path, read(report_path))
    (reason,) = [omission.reason for omission in found.omissions if omission.what == "configuration, not compared"]
    assert reason == f"the {NAME} of the model that the training began with is not at hand, or not named"


def test_another_transformers_may_write_an_entry_otherwise(report_path: Path) -> None:
    data = json.loads(report_path.read_text())
    data["versions"]["transformers"] = "4.0.0"
    report_path.write_text(json.dumps(data))
    found = edited(report_path, layer_norm_epsilon=0.09)
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any("or transformers 4.0.0 writes it otherwise than" in verdict.reason for verdict in found.verdicts)
