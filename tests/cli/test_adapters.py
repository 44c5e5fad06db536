"""Adapters audited and trained on their base: what is measured is what peft loads."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.models.kinds import TEXT_CLASSIFIER
from privctl.models.language import load_model
from privctl.reports.files import read_report
from tests.models.tasks.small import architecture, words

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, an adapter on it as peft writes them, and texts."""
    folder = tmp_path_factory.mktemp("adapters")
    base = architecture(folder / "base", "gpt2", n_layer=1)
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM
    auto.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    settings = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    save_adapter(peft.get_peft_model(auto.from_pretrained(base), settings), folder / "adapter")
    drawn = random.Random(0)
    for name in ("train", "other"):
        lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(3, 9)))} for _ in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def save_adapter(joined: Any, folder: Path) -> None:
    for name, weights in joined.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    joined.save_pretrained(folder)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which the adapter names the base that lies beside it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "base"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(adapter: Path, **keys: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def by_peft(base: Path, adapter: Path, auto: Any = None, **more: Any) -> Any:
    network = (auto or transformers.AutoModelForCausalLM).from_pretrained(base, **more)
    return peft.PeftModel.from_pretrained(network, adapter).eval()


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(input_ids=torch.arange(10)[None] + 4).logits
    return found


AUDIT = ("--members", "train.jsonl", "--nonmembers", "other.jsonl", "--attack", "loss", "--device", "cpu", "-q")


def test_what_is_audited_is_what_peft_loads(folder: Path) -> None:
    with_peft = logits(by_peft(folder / "base", folder / "adapter"))
    assert torch.equal(logits(load_model(folder / "adapter", device="cpu").network), with_peft)
    assert not torch.allclose(logits(load_model(folder / "base", device="cpu").network), with_peft, atol=1e-2)


def test_an_audit_digests_adapter_and_base(folder: Path) -> None:
    assert run(["audit", "adapter", *AUDIT]) == 0
    report_path = folder / "adapter.audit.report.json"
    report = read_report(report_path)
    roles = {artifact.role: Path(artifact.path).as_posix() for artifact in report.inputs}
    assert roles["model"] == "adapter/adapter_model.safetensors"
    assert roles["base-model.safetensors"] == "base/model.safetensors"
    assert {"base-config.json", "base-tokenizer.json"} <= roles.keys()
    assert "adapter/adapter_config.json" in roles.values()
    assert run(["verify", str(report_path), "-q"]) == 0
    by_peft(folder / "base", folder / "adapter").merge_and_unload().save_pretrained(folder / "merged")
    words().tokenizer.save_pretrained(folder / "merged")
    for other in ("merged", "base"):
        assert run(["audit", other, *AUDIT]) == 0
    found, same, without = (load_file(folder / f"{n}.audit.scores.safetensors") for n in ("adapter", "merged", "base"))
    scores = [name for name, array in found.items() if array.dtype.kind == "f"]
    assert all(np.allclose(found[name], same[name], rtol=1e-4, atol=1e-5, equal_nan=True) for name in scores)
    assert not all(np.allclose(found[name], without[name], rtol=1e-2, equal_nan=True) for name in scores)
    with (folder / "base" / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert run(["verify", str(report_path), "-q"]) == 1


def test_a_base_is_given_or_named_and_never_downloaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder / "adapter", base_model_name_or_path="owner/base")
    assert run(["audit", "adapter", *AUDIT]) == 3
    stderr = capsys.readouterr().err
    assert "belongs on 'owner/base', which is not a model's folder here" in stderr
    assert "nothing is downloaded" in stderr
    assert run(["audit", "adapter", "--base", "base", *AUDIT]) == 0
    assert run(["audit", "base", "--base", "adapter", *AUDIT]) == 2
    assert "--base needs --secrets, or an adapter as MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "because"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "only LORA is loaded"),
        ({"init_lora_weights": "pissa"}, "changes the base too"),
        ({"r": 100_000}, "the rank 100000"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"bias": "all"}, "bias"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"use_dora": True}, "asks for"),
    ],
)
def test_settings_that_are_refused(
    folder: Path, keys: dict[str, object], because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "adapter", **keys)
    assert run(["audit", "adapter", *AUDIT]) == 3
    assert because in capsys.readouterr().err
    assert not (folder / "adapter.audit.report.json").exists()


def test_an_adapter_of_another_base_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = architecture(folder / "wide", "gpt2", n_layer=1, n_embd=32)
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(other)).save_pretrained(other)
    words().tokenizer.save_pretrained(other)
    assert run(["audit", "adapter", "--base", "wide", *AUDIT]) == 3
    assert "give another --base" in capsys.readouterr().err or "is not the one in" in capsys.readouterr().err


def test_weights_that_peft_would_load_otherwise_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = peft.set_peft_model_state_dict

    def planted(network: Any, tensors: dict[str, torch.Tensor], **more: Any) -> Any:
        name = next(iter(tensors))
        return genuine(network, {**tensors, name: tensors[name] + 1e-3}, **more)

    monkeypatch.setattr(peft, "set_peft_model_state_dict", planted)
    assert run(["audit", "adapter", *AUDIT]) == 3


def test_a_classifier_with_a_head_of_its_own(folder: Path) -> None:
    base = architecture(folder / "bert", "bert")
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    save_adapter(peft.get_peft_model(auto.from_pretrained(base, num_labels=3), settings), folder / "classes")
    edit(folder / "classes", base_model_name_or_path="bert")
    found = load_model(folder / "classes", device="cpu", kind=TEXT_CLASSIFIER)
    expected = logits(by_peft(base, folder / "classes", auto, num_labels=3))
    assert expected.shape == (1, 3)
    assert torch.equal(logits(found.network), expected)
    labelled(folder / "one.jsonl", classes=3)
    labelled(folder / "two.jsonl", classes=3)
    call = ["audit", "classes", "--members", "one.jsonl", "--nonmembers", "two.jsonl", "--attack", "loss", "-q"]
    assert run(call) == 0


def labelled(path: Path, classes: int) -> Path:
    lines = [{"text": f"{path.stem} {word}", "label": f"LABEL_{i % classes}"} for i, word in enumerate(WORDS * 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


TRAIN = (
    *("--data", "train.jsonl", "--held-out", "other.jsonl", "--batch-size", "8", "--epochs", "1"),
    *("--micro-tokens", "160", "--device", "cpu"),
)
DP = ("dp-sgd", "--epsilon", "8", "--optimizer", "sgd", "--learning-rate", "0.1")
FERRET = ("ferret", "--epsilon", "8", "--release", "gaussian", "--fire-probability", "0.9", "--learning-rate", "0.1")
DPQUANT = ("dpquant", *DP[1:], "--format", "luq-fp4", "--layers", "random")
CLIPPED = ("clipped", "--optimizer", "sgd", "--learning-rate", "0.1")
NEW = ("--lora-rank", "2", "--save-adapter")


def perplexity(network: Any, folder: Path, texts: Path) -> float:
    """By transformers' own loss, text by text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    total, tokens = 0.0, 0
    for line in texts.read_text().splitlines():
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            total += float(network(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return float(np.exp(total / tokens))


def measured(report: PrivacyReport, quantity: str) -> float | None:
    return next(e.estimate for e in report.evidence if e.quantity == quantity)


def gate(output: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    policy = output.with_name("policy.toml")
    policy.write_text('max_epsilon = 9\naccepted_assumptions = ["starting weights", "vocabulary"]\n'
                      )  # fmt: skip
    capsys.readouterr()
    code = run(["gate", str(output), "--policy", str(policy)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize(
    ("given", "method"),
    [
        (True, DP),
        pytest.param(True, FERRET, marks=pytest.mark.slow),
        # What a new adapter adds to a given one is the same for every method; one beside a new head is quick below.
        pytest.param(False, DP, marks=pytest.mark.slow),
        *(
            pytest.param(given, method, marks=pytest.mark.slow)
            for given, method in itertools.product([True, False], [CLIPPED, ("plain",)])
        ),
        pytest.param(False, DPQUANT, marks=pytest.mark.slow),
        pytest.param(False, FERRET, marks=pytest.mark.slow),
        pytest.param(True, DPQUANT, marks=pytest.mark.slow),
    ],
)
def test_the_adapter_alone_is_trained_and_loads_as_measured(
    given: bool, method: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, more = ("adapter", ()) if given else ("base", NEW)
    before = (folder / "base" / "model.safetensors").read_bytes()
    assert run(["retrain", method[0], name, *method[1:], *more, *TRAIN, "-o", "out", "-q"]) == 0
    assert (folder / "base" / "model.safetensors").read_bytes() == before
    names = {p.name for p in (folder / "out").iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    assert not names & {"model.safetensors", "config.json"}
    report = report_of(folder / "out")
    assert report.parameters["adapter"] is True
    assert "base-model.safetensors" in {artifact.role for artifact in report.inputs}
    network = by_peft(folder / "base", folder / "out")
    found = measured(report, "held-out perplexity")
    assert found == pytest.approx(perplexity(network, folder / "out", folder / "other.jsonl"), rel=1e-5)
    start = load_file(folder / "adapter" / "adapter_model.safetensors")
    if method is FERRET:
        call = ["retrain", "ferret", name, "--replay", "out.updates.safetensors", "-o", "again", "-q"]
        assert run(call) == 0
        again = load_file(folder / "again" / "adapter_model.safetensors")
        first = load_file(folder / "out" / "adapter_model.safetensors")
        assert again.keys() == first.keys()
        assert all((again[tensor] == first[tensor]).all() for tensor in first)
        assert sum(report.parameters["group_sizes"]) == sum(tensor.size for tensor in first.values())
        assert run(["verify", "again", "-q"]) == 0
    if method is DPQUANT:
        assert {name.endswith("base_layer") for name in report.parameters["layer_names"]} == {True, False}
    if given:
        trained = load_file(folder / "out" / "adapter_model.safetensors")
        assert start.keys() == trained.keys()
        assert all((start[tensor] != trained[tensor]).mean() > 0.5 for tensor in start)
    assert run(["verify", "out", "-q"]) == 0
    assert run(["inspect", "out", "-q"]) == 0
    if method is DP:
        code, output = gate(folder / "out", capsys)
        assert code == 0, output
    with (folder / "base" / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert run(["verify", "out", "-q"]) == 1
    if method is DP:
        code, output = gate(folder / "out", capsys)
        assert code == 1
        assert "the base was changed or replaced since" in " ".join(output.split())


def test_an_audit_on_another_base_does_not_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", *DP[:1], "adapter", *DP[1:], *TRAIN, "-o", "out", "-q"]) == 0
    assert run(["audit", "out", *AUDIT]) == 0
    code, output = gate(folder / "out", capsys)
    assert code == 0, output
    shutil.copytree(folder / "base", folder / "other")
    with (folder / "other" / "model.safetensors").open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\0\0\0\0")
    assert run(["audit", "out", "--base", "other", *AUDIT, "-f"]) == 0
    code, output = gate(folder / "out", capsys)
    assert code == 1
    assert "the model.safetensors of the base model that the audit read is not the one" in " ".join(output.split())


def test_a_base_that_was_put_in_the_place_of_another_is_noticed(folder: Path) -> None:
    """The one that was trained on is unchanged, but the adapter is now loaded on another."""
    assert run(["retrain", *DP[:1], "base", *DP[1:], *NEW, *TRAIN, "-o", "out", "-q"]) == 0
    (folder / "base").rename(folder / "kept")
    assert run(["verify", "out", "-q"]) == 0
    shutil.copytree(folder / "kept", folder / "base")
    with (folder / "base" / "model.safetensors").open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\0\0\0\0")
    assert run(["verify", "out", "-q"]) == 1


@pytest.mark.slow
def test_noise_on_a_clipped_adapter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["retrain", "clipped", "base", "--optimizer", "sgd", "--learning-rate", "0.1", *NEW, *TRAIN]
    assert run([*call, "-o", "out", "-q"]) == 0
    assert run(["noise", "out", "--epsilon", "8", "-q"]) == 0
    assert run(["verify", "out.private", "-q"]) == 0
    by_peft(folder / "base", folder / "out.private")
    assert run(["audit", "out.private", *AUDIT]) == 0


def test_verify_notices_an_adapter_that_was_not_trained_as_reported(folder: Path) -> None:
    """The first weights are at hand, so that a move which the steps cannot make is seen."""
    assert run(["retrain", *DP[:1], "adapter", *DP[1:], *TRAIN, "-o", "out", "-q"]) == 0
    report_path = folder / "out.report.json"
    data = json.loads(report_path.read_text())
    for key, value in (("learning_rate", 1e-6), ("adapter", None)):
        forged = {**data, "parameters": {**data["parameters"], key: value}}
        report_path.write_text(json.dumps(forged))
        assert run(["verify", str(report_path), "-q"]) == 1, key


def test_a_new_head_is_released_with_the_adapter(folder: Path) -> None:
    base = architecture(folder / "bert", "bert")
    torch.manual_seed(0)
    transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    data, held_out = labelled(folder / "one.jsonl", classes=3), labelled(folder / "two.jsonl", classes=3)
    call = ["retrain", *DP[:1], "bert", *DP[1:], *NEW, "--task", "text-classification", "--data", str(data)]
    labels = ["--labels", "LABEL_0,LABEL_1,LABEL_2", "--batch-size", "8", "--epochs", "2", "--device", "cpu", "-q"]
    assert run([*call, "--held-out", str(held_out), *labels, "-o", "out"]) == 0
    report = report_of(folder / "out")
    assert any("num_labels=3" in warning for warning in report.warnings)
    auto = transformers.AutoModelForSequenceClassification
    network = by_peft(base, folder / "out", auto, num_labels=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    texts = [json.loads(line) for line in held_out.read_text().splitlines()]
    batch = tokenizer([t["text"] for t in texts], padding=True, return_tensors="pt")
    with torch.no_grad():
        found = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
    right = np.mean([f"LABEL_{i}" == t["label"] for i, t in zip(found.tolist(), texts, strict=True)])
    assert measured(report, "held-out accuracy") == pytest.approx(right)
    assert run(["verify", "out", "-q"]) == 0
    again = ["retrain", "plain", "out", "--data", str(data), "--held-out", str(held_out), *labels, "-o", "again"]
    assert run(again) == 0
    assert report_of(folder / "again").parameters["fresh_tensors"] == []


@pytest.mark.parametrize(
    ("call", "because"),
    [
        (("plain", "adapter", "--train", "*"), "--train does not apply"),
        (("plain", "adapter", "--lora-rank", "2"), "--lora-rank does not apply"),
        (("plain", "base", "--save-adapter"), "give both"),
        (("plain", "base", "--base", "base"), "is a whole model"),
        (("plain", "base", *NEW, "--from-scratch"), "keeps the base as it is"),
        (("clipped", "base", "--lora-rank", "2"), "add --save-adapter"),
        (("plain", "base", *NEW, "--convert", "batch-norm"), "keeps the base as it is"),
        (("dp-sgd", "adapter", "--epsilon", "8", "--convert", "batch-norm"), "changes the base, which the adapter"),
    ],
)
def test_options_that_do_not_go_together(
    call: tuple[str, ...], because: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert run(["retrain", *call, "--data", "train.jsonl", "-o", "out"]) == 2
    assert because in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_the_function_trains_an_adapter_too(folder: Path) -> None:
    import privctl

    report = privctl.retrain(
        "plain", "adapter", data="train.jsonl", output="out", base="base", epochs=1, batch_size=8, device="cpu"
    )
    assert report.parameters["adapter"] is True
