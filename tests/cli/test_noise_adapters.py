"""``privctl noise`` on an adapter: what comes out is an adapter that peft loads, and every command knows it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from tests.cli.noised import FACTS, snapshot
from tests.models.tasks.small import architecture
from verify.run import verify

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and an adapter on it, as peft writes them."""
    folder = tmp_path_factory.mktemp("adapters")
    base = architecture(folder / "base", "gpt2", n_layer=1)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    network = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    adapted = peft.get_peft_model(network, config)
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter" / "training_args.bin").write_bytes(b"traces")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy whose adapter names the base that lies beside it."""
    for name in ("base", "adapter"):
        shutil.copytree(trained / name, tmp_path / name)
    edit(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "base"))
    return tmp_path


def edit(adapter: Path, **keys: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_an_adapter_with_noise_is_an_adapter_that_peft_loads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["noise", str(folder / "adapter"), *FACTS]) == 0
    private = folder / "adapter.private"
    assert {p.name for p in private.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    before, after = (load_file(folder / n / "adapter_model.safetensors") for n in ("adapter", "adapter.private"))
    assert before.keys() == after.keys()
    assert all(np.count_nonzero(before[name] != after[name]) > 0.9 * before[name].size for name in before)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    loaded = peft.PeftModel.from_pretrained(base, private)
    held = {name.replace(".default", ""): weights for name, weights in loaded.named_parameters() if "lora_" in name}
    assert held.keys() == after.keys()
    assert all(np.array_equal(held[name].detach().numpy(), after[name]) for name in after)

    report_path = folder / "adapter.private.report.json"
    report = read_report(report_path)
    assert "base-model.safetensors" in {artifact.role for artifact in report.inputs}
    assert any(str(folder / "base") in line and "among the inputs" in line for line in report.warnings)
    assert any("training_args.bin" in omission.what for omission in report.omissions)
    found = verify(report_path, report)
    assert {v.outcome for v in found.verdicts if v.subject == "noise"} == {Outcome.CONSISTENT}
    for command in ("inspect", "verify"):
        assert run([command, str(private), "-q"]) == 0, command
    policy = folder / "policy.toml"
    policy.write_text(
        'max_epsilon = 2\nat_delta = 1e-5\naccepted_assumptions = ["training-facts", "training-rounding"]\n'
    )
    capsys.readouterr()
    code = run(["gate", str(private), "--policy", str(policy)])
    captured = capsys.readouterr()
    assert code == 0, captured.out + captured.err


def test_weights_that_were_changed_afterwards_are_refuted(folder: Path) -> None:
    assert run(["noise", str(folder / "adapter"), "-q", *FACTS]) == 0
    with (folder / "adapter.private" / "adapter_model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert run(["inspect", str(folder / "adapter.private"), "-q"]) == 1
    assert run(["verify", str(folder / "adapter.private.report.json"), "-q"]) == 1


def test_a_configuration_that_was_changed_afterwards_is_refuted(folder: Path) -> None:
    assert run(["noise", str(folder / "adapter"), "-q", *FACTS]) == 0
    edit(folder / "adapter.private", lora_alpha=99)
    assert run(["inspect", str(folder / "adapter.private"), "-q"]) == 1


def test_a_base_that_is_not_at_hand_is_said_to_be(folder: Path) -> None:
    edit(folder / "adapter", base_model_name_or_path="owner/base")
    assert run(["noise", str(folder / "adapter"), "-q", *FACTS]) == 0
    report = read_report(folder / "adapter.private.report.json")
    assert any("an adapter of owner/base, whose digests are not known here" in line for line in report.warnings)


@pytest.mark.parametrize(
    ("keys", "because"),
    [
        ({"init_lora_weights": "eva"}, "init_lora_weights"),
        ({"trust_remote_code": True}, "import or download code"),
        ({"peft_type": None}, "names no peft_type"),
    ],
)
def test_adapters_that_are_refused(
    folder: Path, keys: dict[str, object], because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "adapter", **keys)
    before = snapshot(folder)
    assert run(["noise", str(folder / "adapter"), *FACTS]) == 3
    assert because in capsys.readouterr().err
    assert snapshot(folder) == before


def test_what_names_code_is_left_out(folder: Path) -> None:
    edit(folder / "adapter", auto_mapping={"base_model_class": "X", "parent_library": "antigravity"})
    assert run(["noise", str(folder / "adapter"), "-q", *FACTS]) == 0
    assert "parent_library" not in (folder / "adapter.private" / "adapter_config.json").read_text()


def test_weights_of_a_whole_model_are_never_taken_for_an_adapter(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "adapter" / "adapter_config.json").unlink()
    assert run(["noise", str(folder / "adapter"), *FACTS]) == 3
    assert "without adapter_config.json" in capsys.readouterr().err
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        shutil.copy(folder / "adapter" / "adapter_model.safetensors", folder / "base" / name)
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "a"}\n')
    call = ["audit", str(folder / "base"), "--members", str(texts), "--nonmembers", str(texts)]
    assert run(call) == 3
    assert "also holds weights that are not part of the model" in capsys.readouterr().err


def test_a_base_that_an_adapter_names_takes_no_noise_away(folder: Path) -> None:
    """Whoever supplies the adapter supplies the name too: such a base may hold the adapter's own weights."""
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    save_file({**load_file(folder / "base" / "model.safetensors"), **weights}, folder / "base" / "model.safetensors")
    assert run(["noise", str(folder / "adapter"), *FACTS]) == 0
    after = load_file(folder / "adapter.private" / "adapter_model.safetensors")
    assert all(np.count_nonzero(weights[name] != after[name]) > 0.9 * weights[name].size for name in weights)
