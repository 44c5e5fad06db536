"""bfloat16 where a GPU has it, unless asked otherwise; frozen weights are kept in it where that changes no number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.factors import rounding_margin
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.settings import DpquantSettings
from privctl.train.methods.ferret.settings import FerretSettings
from privctl.train.network import half_precision
from privctl.train.network.half_precision import hold_base, in_bfloat16, widen
from privctl.train.settings.choices import DerivativeMethod, FormatName
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest
from tests.models.tasks.small import architecture, same_records, words
from tests.train.clipping.support import Gradients, causal, tokens
from tests.train.clipping.test_families import GROUPED, gpt2

peft = pytest.importorskip("peft")
BATCH = tokens(3, 9, 40)


def request(**changes: Any) -> RetrainRequest:
    settings: dict[str, Any] = {
        "method": method_named("dp-sgd"), "model": ModelRequest(path=Path("m")), "data": DataRequest(train=Path("d")),
        "output": Path("o"),
    }  # fmt: skip
    return RetrainRequest(**settings | changes)


QUANTIZED = {"method": method_named("dpquant"), "settings": DpquantSettings(format=FormatName.LUQ_FP4)}
DIFFERENCES = {"method": method_named("ferret"), "settings": FerretSettings(derivatives=DerivativeMethod.DIFFERENCE)}


@pytest.mark.parametrize(
    ("device", "has_it", "changes", "expected"),
    [
        ("cuda", True, {}, True),
        ("cuda", False, {}, False),
        ("cuda", True, {"bf16": False}, False),
        ("cuda", True, DIFFERENCES, False),
        ("cuda", True, {"method": method_named("ferret")}, True),
        ("cuda", True, QUANTIZED, False),
        ("cuda", True, {**QUANTIZED, "bf16": True}, True),
        ("cpu", True, {}, False),
        ("cpu", False, {"bf16": True}, True),
    ],
)
def test_the_card_decides_unless_the_user_does(
    device: str, has_it: bool, changes: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_precision, "choose_device", lambda _: torch.device(device))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_it)
    assert in_bfloat16(request(**changes)) is expected


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)).eval()


def with_adapters(make: Any, *, rounded: bool = True) -> nn.Module:
    """A base whose file stored bfloat16, or float32, and adapters that change something."""
    torch.manual_seed(0)
    base = make()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(parameter.bfloat16().float() if rounded else parameter)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    frozen: nn.Module = adapted.eval()
    return frozen


def gradients(model: nn.Module, *, bf16: bool) -> Gradients:
    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return causal(model, BATCH)

    model.zero_grad()
    with PerExample(model, Clipping(norm=0.1)) as engine:
        engine.accumulate(losses)
        return {name: p.grad.clone() for name, p in engine.trainable.items() if p.grad is not None}


def in_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_held_base_changes_no_number(make: Any, one_thread: None) -> None:
    model = with_adapters(make)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = {bf16: gradients(model, bf16=bf16) for bf16 in (False, True)}
    with torch.no_grad():
        losses = causal(model, BATCH)
    size = in_bytes(model)
    held = hold_base(model)
    assert in_bytes(model) == size - 2 * sum(weight.numel() for weight in held)
    assert in_bytes(model) < 0.75 * size
    with torch.no_grad():
        torch.testing.assert_close(causal(model, BATCH), losses, rtol=1e-6, atol=0)
    found = gradients(model, bf16=True)
    for name, gradient in expected[True].items():
        assert torch.equal(found[name], gradient)
    for name, gradient in gradients(model, bf16=False).items():
        torch.testing.assert_close(gradient, expected[False][name], rtol=1e-5, atol=1e-7)
    widen(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_base_that_would_be_rounded_stays_as_it_is() -> None:
    model = with_adapters(llama, rounded=False)
    assert hold_base(model) == []
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_what_is_trained_or_shared_stays_as_it_is() -> None:
    model = with_adapters(gpt2)
    held = {id(weight) for weight in hold_base(model)}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in held) == ("base_layer.weight" in name), name
    assert model.get_input_embeddings().weight.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--save-adapter"], ["--checkpointing"]])
def test_adapters_on_a_held_base_are_released(more: list[str], tmp_path: Path) -> None:
    folder = words_and_weights(tmp_path / "start")
    lines = [json.dumps({"text": f"the {word} sat on the mat"}) for word in ("cat", "dog", "old") * 4]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    call = ["retrain", "dp-sgd", str(folder), "--data", str(tmp_path / "train.jsonl"), "--batch-size", "6", "--steps"]
    call += ["3", "--noise-multiplier", "1", "--lora-rank", "2", "--bf16", "-q", "-o", str(tmp_path / "out"), *more]
    assert run([*call, "--held-out", str(same_records(tmp_path / "train.jsonl"))]) == 0
    report = read_report(tmp_path / "out.report.json")
    assert report.parameters["bf16"] is True
    if "--save-adapter" not in more:
        merged = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}


def words_and_weights(folder: Path) -> Path:
    """A model's folder that stores bfloat16."""
    architecture(folder, "llama")
    words().tokenizer.save_pretrained(folder)
    hf.LlamaForCausalLM(hf.AutoConfig.from_pretrained(folder)).bfloat16().save_pretrained(folder)
    return folder


def test_rounding_in_bfloat16_stays_within_the_margin_that_is_left_for_it() -> None:
    """A record that is added, and pads the others, moves what they add; far more than float32's margin would hold."""
    torch.manual_seed(0)
    model, clip = gpt2(n_embd=64, n_positions=50).eval(), 1e-2
    ids, mask = tokens(48, 50, 40)["input_ids"], torch.ones(48, 50, dtype=torch.int64)
    mask[:47, 20:] = 0

    def summed(rows: slice, length: int) -> Gradients:
        chosen, visible = ids[rows, :length], mask[rows, :length]

        def losses() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(input_ids=chosen, attention_mask=visible, use_cache=False).logits[:, :-1].float()
            found = nn.functional.cross_entropy(logits.transpose(1, 2), chosen[:, 1:], reduction="none")
            return (found * visible[:, 1:]).sum(1)

        model.zero_grad()
        with PerExample(model, Clipping(norm=clip * (1 - rounding_margin(reduced=True)))) as engine:
            assert bool(engine.accumulate(losses).shorter.all())
            return {name: p.grad.clone() for name, p in engine.trainable.items() if p.grad is not None}

    whole, less, added = summed(slice(0, 48), 50), summed(slice(0, 47), 20), summed(slice(47, 48), 50)
    others = length_of({name: whole[name] - less[name] - added[name] for name in whole}) / clip
    assert rounding_margin(reduced=False) < others < rounding_margin(reduced=True)
    assert length_of({name: whole[name] - less[name] for name in whole}) <= clip


def length_of(gradients: Gradients) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
