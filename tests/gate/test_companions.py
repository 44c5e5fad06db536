"""What lies beside the weights must be the same at training, at the audit and at release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privctl.domain.gate import GateJudgement
from privctl.domain.report import Artifact
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.model_at_hand import model_at
from privctl.gate.policy import read_policy
from privctl.storage.digest import file_digest
from tests.conftest import WriteModel
from tests.gate.made import FAIL, INCONCLUSIVE, NOW, PASS, PROVED, auc, audit, making, of

STRAYS = [
    "adapter_model.safetensors",
    "adapter_config.json",
    "pytorch_model.bin",
    "modeling.py",
    "a.jsonl",
    "sub/x.json",
    "sub/model.safetensors",
    # Names of what only people read, or of what nobody looks at, with weights or settings in them.
    "LICENSE.safetensors",
    "readme.json",
    "NOTICE.tar.gz",
    "README.zip",
    ".model.safetensors",
    ".cache/pytorch_model.bin",
]
BESIDE = {"config.json": "{}", "tokenizer.json": '{"a": 1}', "generation_config.json": "{}"}


def artifact(role: str, path: Path, folder: str = "m") -> Artifact:
    return Artifact(role=role, path=f"{folder}/{path.name}", digest=file_digest(path), bytes=path.stat().st_size)


@pytest.fixture
def folder(tmp_path: Path, write_model: WriteModel) -> Path:
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m" / "model.safetensors", {"w": np.ones(3, np.float32)})
    for name, text in BESIDE.items():
        (tmp_path / "m" / name).write_text(text)
    weights = artifact("model", tmp_path / "m" / "model.safetensors")
    beside = [artifact("companion", tmp_path / "m" / name) for name in BESIDE]
    making(tmp_path / "m.report.json", PROVED, outputs=(weights, *beside))
    audited(tmp_path)
    return tmp_path


def audited(folder: Path, **changed: str) -> None:
    """An audit of the weights, which read the files beside them, some of them changed."""
    inputs = [artifact("model", folder / "m" / "model.safetensors")]
    for name, role in (("config.json", "config"), ("tokenizer.json", "tokenizer")):
        path = folder / name
        path.write_text(changed.get(role, BESIDE[name]))
        inputs.append(artifact(role, path))
    audit(folder / "a.report.json", auc(0.52, 0.48, 0.55), inputs=tuple(inputs))


def at_hand(folder: Path, model: bool = True) -> GateJudgement:
    policy = read_policy(None, {"max_auc": "0.6", "recompute": "false"}, {}, RULES)
    paths = [folder / "m.report.json", folder / "a.report.json"]
    return judge(paths, policy, model_at(folder / "m") if model else None, NOW)


def faults(judgement: GateJudgement) -> list[tuple[str, str]]:
    return [(finding.subject, finding.message) for finding in of(judgement, "model") if finding.outcome is not PASS]


def test_one_model_throughout_passes(folder: Path) -> None:
    (folder / "m" / "README.md").write_text("A model.")
    for name in (".gitattributes", "LICENSE-APACHE-2.0", "NOTICE.txt"):
        (folder / "m" / name).write_text("")
    for model in (True, False):
        assert faults(at_hand(folder, model)) == []
        assert at_hand(folder, model).outcome is PASS


def test_it_is_said_that_only_verify_compares_files_with_the_first(folder: Path) -> None:
    (passed,) = [finding.message for finding in of(at_hand(folder), "model") if finding.outcome is PASS]
    assert "; only privctl verify compares the files beside its weights" in passed


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("role", ["config", "tokenizer"])
def test_an_audit_of_another_configuration_fails(folder: Path, role: str, model: bool) -> None:
    audited(folder, **{role: '{"rms_norm_eps": 0.09}'})
    judgement = at_hand(folder, model)
    assert judgement.outcome is FAIL
    assert faults(judgement) == [
        (f"{role}.json", f"the {role}.json that the audit read is not the one released with the model")
    ]


@pytest.mark.parametrize("missing", ["config", "tokenizer"])
def test_an_audit_that_does_not_say_what_it_read_stays_open(folder: Path, missing: str) -> None:
    """Whoever audited another configuration could leave that out of the audit's report."""
    report = json.loads((folder / "a.report.json").read_text())
    report["inputs"] = [artifact for artifact in report["inputs"] if artifact["role"] != missing]
    (folder / "a.report.json").write_text(json.dumps(report))
    judgement = at_hand(folder)
    assert judgement.outcome is INCONCLUSIVE
    message = f"the audit's report does not list the {missing}.json that is released with the model"
    assert faults(judgement) == [(f"{missing}.json", message)]


@pytest.mark.parametrize("name", STRAYS)
def test_what_no_report_lists_fails(folder: Path, name: str) -> None:
    (folder / "m" / name).parent.mkdir(exist_ok=True)
    (folder / "m" / name).write_text("{}")
    judgement = at_hand(folder)
    assert judgement.outcome is FAIL
    assert faults(judgement) == [(name, f"{name} is in the model's folder, but no report lists it")]


def test_naming_the_weight_file_hides_nothing_beside_it(folder: Path) -> None:
    policy = read_policy(None, {"max_auc": "0.6", "recompute": "false"}, {}, RULES)
    paths = [folder / "m.report.json", folder / "a.report.json"]
    weights = folder / "m" / "model.safetensors"
    assert judge(paths, policy, model_at(weights), NOW).outcome is PASS
    (folder / "m" / "adapter_config.json").write_text("{}")
    assert judge(paths, policy, model_at(weights), NOW).outcome is FAIL


def test_a_link_to_a_folder_is_not_passed_over(folder: Path) -> None:
    """What it leads to is released with the model by whoever copies the folder, and read by a loader."""
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "model.safetensors").write_text("{}")
    (folder / "m" / "additional_chat_templates").symlink_to("../elsewhere")
    judgement = at_hand(folder)
    assert judgement.outcome is FAIL
    assert [subject for subject, _ in faults(judgement)] == ["additional_chat_templates"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "pytorch_model.bin", "evil.py"])
def test_weights_and_code_fail_though_the_report_lists_them(folder: Path, name: str) -> None:
    """Whoever edits the report lists the file too; what was audited, and computed, is the model without it."""
    (folder / "m" / name).write_text("{}")
    beside = [artifact("companion", folder / "m" / each) for each in (*BESIDE, name)]
    making(folder / "m.report.json", PROVED, outputs=(artifact("model", folder / "m" / "model.safetensors"), *beside))
    judgement = at_hand(folder)
    assert judgement.outcome is FAIL
    message = f"{name} is in the model's folder, but no step of privctl writes such a file there"
    assert (name, message) in faults(judgement)


@pytest.mark.parametrize(
    ("name", "keys", "word"),
    [
        ("config.json", {"transformers_weights": "others.safetensors"}, "take weights from a place"),
        ("config.json", {"quantization_config": {"quant_method": "x"}}, "import or download code"),
        ("config.json", {"auto_map": {"AutoModel": "someone/code--mine.Model"}}, "import or download code"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, "import or download code"),
        ("generation_config.json", {"custom_generate": "someone/code"}, "import or download code"),
        ("config.json", {"hidden_size": 8}, ""),
    ],
)
def test_a_moved_model_whose_configuration_leads_elsewhere_fails(
    folder: Path, name: str, keys: dict[str, object], word: str
) -> None:
    """Its report lists the file as it is, and does not lie beside it."""
    (folder / "m" / name).write_text(json.dumps(keys))
    beside = [artifact("companion", folder / "m" / each) for each in {*BESIDE, name}]
    making(folder / "m.report.json", PROVED, outputs=(artifact("model", folder / "m" / "model.safetensors"), *beside))
    moved = (folder / "m").rename(folder / "elsewhere")
    policy = read_policy(None, {"max_epsilon": "8", "recompute": "false"}, {}, RULES)
    found = faults(judge([folder / "m.report.json"], policy, model_at(moved), NOW))
    assert [(subject, word in message) for subject, message in found] == ([(name, True)] if word else [])


def test_weights_written_by_themselves_leave_the_rest_open(folder: Path) -> None:
    """An older report, or one of a lone file, names nothing beside the weights."""
    weights = artifact("model", folder / "m" / "model.safetensors")
    making(folder / "m.report.json", PROVED, outputs=(weights,))
    assert {finding.outcome for finding in of(at_hand(folder), "model")} == {PASS, INCONCLUSIVE}
    assert at_hand(folder, model=False).outcome is PASS
    audited(folder, config='{"rms_norm_eps": 0.09}')
    assert at_hand(folder).outcome is FAIL, "the model at hand has another"


def test_noise_that_changed_the_configuration_fails(folder: Path) -> None:
    weights = artifact("model", folder / "m" / "model.safetensors")
    (folder / "config.json").write_text('{"rms_norm_eps": 0.09}')
    first = Artifact(role="model", path="t/model.safetensors", digest="blake3:" + "1" * 64, bytes=4)
    trained = (first, artifact("companion", folder / "config.json", "t"))
    making(folder / "t.report.json", PROVED, outputs=trained)
    beside = [artifact("companion", folder / "m" / name) for name in BESIDE]
    making(
        folder / "m.report.json", PROVED, step="noise", inputs=(first,), outputs=(weights, *beside),
        parents=[folder / "t.report.json"],
    )  # fmt: skip
    judgement = at_hand(folder)
    assert judgement.outcome is FAIL
    assert ("config.json", "config.json is not the one that was written with the model before the noise") in faults(
        judgement
    )
