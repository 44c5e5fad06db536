"""Parts of forward passes by machine code: those of double precision, rounded as often as torch does, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN, GELUActivation
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM, LlamaMLP, LlamaRMSNorm

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from llvmlite import ir

from privctl.machine_code.building import broadcast, load
from privctl.machine_code.compiling import CompiledModule
from privctl.machine_code.threads import SharedCode
from privctl.models import inference
from privctl.models.activations import KERNELS, fused_activations
from privctl.models.fused import gate, gate_program, lookup, lookup_program, norm, norm_program, rotary, rotary_program
from privctl.models.inference import fast_inference

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
PARTS: dict[str, tuple[Any, Any]] = {
    "norm": (norm, norm_program),
    "gate": (gate, gate_program),
    "lookup": (lookup, lookup_program),
    "rotary": (rotary, rotary_program),
}
#: What each is compiled for: a kind of numbers, a LayerNorm rather than an RMSNorm, gates rather than activations.
CASES: list[tuple[Any, ...]] = [("norm", dtype, centred) for dtype in DTYPES.values() for centred in (False, True)]
CASES += [("gate",), ("lookup", False), ("lookup", True), ("rotary", torch.float32), ("rotary", torch.bfloat16)]


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    for part, _ in PARTS.values():
        part._tested_code.cache_clear()
    yield
    for part, _ in PARTS.values():
        part._tested_code.cache_clear()


def normalized(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Rounded to the format of x before and after the product with the weight."""
    wide = x.double()
    rows = (wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()).to(x.dtype)
    return (rows.double() * weight.double()).to(x.dtype)


def gated(gates: Tensor, values: Tensor) -> Tensor:
    """Rounded to the format of the gates before and after the product."""
    return (functional.silu(gates.double()).to(gates.dtype).double() * values.double()).to(gates.dtype)


def code_of(part: str, *arguments: Any, **named: Any) -> SharedCode:
    return SharedCode.of(CompiledModule(PARTS[part][1].assembly(*arguments, **named)), part)


def assert_rounded_alike(found: Tensor, expected: Tensor) -> None:
    float32 = found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=(4 if float32 else 1) * torch.finfo(found.dtype).eps, atol=1e-37)
    assert float32 or (found == expected).double().mean() > 0.98


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("size", [48, 160])
def test_norms_are_those_of_double_precision(kind: str, lanes: int, size: int) -> None:
    x = (torch.randn(40, size) * torch.logspace(-4, 4, 40)[:, None]).to(DTYPES[kind])
    weight, bias = torch.randn(2, size).to(DTYPES[kind])
    found = norm._normalized(code_of("norm", kind, lanes, centred=False), x, weight, bias, 1e-6)
    assert_rounded_alike(found, normalized(x, weight, 1e-6))
    x += x.abs().mean(1, keepdim=True)
    found = norm._normalized(code_of("norm", kind, lanes, centred=True), x, weight, bias, 1e-6)
    exact = functional.layer_norm(x.double(), (size,), weight.double(), bias.double(), 1e-6)
    unit = torch.finfo(x.dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=unit, atol=2.0**-20)
    assert kind == "F32" or (found == exact.to(x.dtype)).double().mean() > 0.98


@pytest.mark.parametrize("lanes", [8, 16])
def test_gates_in_float32_are_those_of_double_precision(lanes: int) -> None:
    gates = torch.randn(40, 48) * torch.logspace(-4, 1.5, 40)[:, None]
    values = torch.randn(40, 48)
    expected = gated(gates, values)
    assert_rounded_alike(gate._gated(code_of("gate", lanes), gates, values), expected)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kernel", [functional.silu, *dict.fromkeys(KERNELS.values())])
def test_activations_in_bfloat16_are_torchs_bit_by_bit_for_every_number(kernel: Any, lanes: int) -> None:
    numbers = lookup._all_numbers().view(-1, 64)
    assert len(numbers.view(torch.int16).unique()) == 65_536
    found = lookup._looked_up(code_of("lookup", lanes, gated=False), kernel, numbers)
    assert torch.equal(found.view(torch.int16), kernel(numbers).view(torch.int16))


@pytest.mark.parametrize("lanes", [8, 16])
def test_gates_in_bfloat16_are_torchs_bit_by_bit(lanes: int) -> None:
    gates = (torch.randn(40, 48) * torch.logspace(-4, 1.5, 40)[:, None]).bfloat16()
    values = torch.randn(48, 40).bfloat16().mT
    expected = functional.silu(gates) * values
    found = lookup._gated(code_of("lookup", lanes, gated=True), functional.silu, gates, values)
    assert found.data_ptr() == gates.data_ptr()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("examples", [1, 3])
def test_embeddings_of_positions_are_torchs_bit_by_bit(kind: str, lanes: int, examples: int) -> None:
    values = torch.randn(3, 7, 5, 64).to(DTYPES[kind]).transpose(1, 2)
    angles = torch.randn(examples, 7, 64)
    turns = [each.to(DTYPES[kind]) for each in (angles.cos(), angles.sin())]
    expected, _ = modeling_llama.apply_rotary_pos_emb(values, values, *turns)
    found = rotary._rotated(code_of("rotary", kind, lanes), values, *turns)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_a_model_embeds_positions_in_one_operation(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(
        vocab_size=20, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).to(dtype).eval()
    ids, before = torch.randint(20, (2, 300)), modeling_llama.apply_rotary_pos_emb
    with torch.inference_mode(), fast_inference(nn.Sequential(model)):
        used = noted(monkeypatch, "rotated", rotary.rotated)
        found = model(ids).logits
        monkeypatch.setattr(inference, "suits_rotary", lambda *_: False)
        assert torch.equal(found, model(ids).logits)
        with fast_inference(model):
            assert modeling_llama.apply_rotary_pos_emb is not before
        assert modeling_llama.apply_rotary_pos_emb is not before
    assert used == [(2, 2, 300, 64), (2, 1, 300, 64)] * 2
    assert modeling_llama.apply_rotary_pos_emb is before


def test_another_formula_for_positions_is_left_alone() -> None:
    """Cohere turns neighbours, not halves."""
    before = modeling_cohere.apply_rotary_pos_emb
    config: Any = modeling_cohere.CohereConfig(hidden_size=16, num_attention_heads=2)
    with fast_inference(modeling_cohere.CohereAttention(config, 0)):
        assert modeling_cohere.apply_rotary_pos_emb is before


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_what_is_not_finite_stays_where_it_is(dtype: torch.dtype) -> None:
    x, weight = torch.randn(64, 512).to(dtype), torch.ones(512).to(dtype)
    changed = x.clone()
    changed[3, 5], changed[7, 9] = torch.nan, torch.inf
    others = [row for row in range(64) if row not in (3, 7)]
    found = norm.rms_norm(changed, weight, 1e-6)
    assert found[3].isnan().all()
    assert found[7, 9].isnan()
    assert torch.equal(found[others], norm.rms_norm(x, weight, 1e-6)[others])
    found = norm.layer_norm(changed, weight, weight, 1e-6)
    assert found[[3, 7]].isnan().all()
    assert torch.equal(found[others], norm.layer_norm(x, weight, weight, 1e-6)[others])
    found = gate.gate_(functional.silu, changed.clone(), torch.ones_like(x))
    assert found[3, 5].isnan()
    assert (~found.isfinite()).nonzero().tolist() == [[3, 5], [7, 9]]


def noted(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> list[torch.Size]:
    used: list[torch.Size] = []

    def noting(*arguments: Any) -> Tensor:
        used.append(next(each.shape for each in arguments if isinstance(each, Tensor)))
        return function(*arguments)

    monkeypatch.setattr(inference, name, noting)
    return used


def test_a_model_uses_norms_in_any_layout_and_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = noted(monkeypatch, "rms_norm", norm.rms_norm)
    layer = LlamaRMSNorm(128)
    layer.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(320, 8, 128).transpose(0, 1)
    with torch.inference_mode(), fast_inference(nn.Sequential(layer)):
        alone = layer(x)
        torch.set_num_threads(2)
        assert torch.equal(layer(x), alone)
    assert used == [x.shape] * 2
    torch.testing.assert_close(alone, normalized(x, layer.weight, 1e-6), rtol=1e-6, atol=0)


def test_a_model_uses_layer_norms_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    used = noted(monkeypatch, "layer_norm", norm.layer_norm)
    layer, x = nn.LayerNorm(128, eps=1e-3).bfloat16(), 1 + 3 * torch.randn(320, 8, 128).bfloat16()
    with torch.no_grad():
        layer.weight.uniform_(0.5, 1.5)
        layer.bias.normal_()
        before = layer(x)
    with fast_inference(nn.Sequential(layer)):
        assert layer(x).requires_grad
        with torch.inference_mode():
            found = layer(x)
    assert used == [x.shape]
    torch.testing.assert_close(found, before, rtol=2**-7, atol=2**-9)
    assert (found == before).double().mean() > 0.99


def test_other_layer_norms_are_left_alone() -> None:
    x = torch.randn(320, 8, 128)
    for layer in (nn.LayerNorm(128), nn.LayerNorm((8, 128)), nn.LayerNorm(128, elementwise_affine=False)):
        for dtype in DTYPES.values():
            layer, own = layer.to(dtype), x.to(dtype)
            with torch.inference_mode(), fast_inference(nn.Sequential(nn.Linear(1, 1), layer)):
                if layer.normalized_shape != (128,) or dtype == torch.float32 or layer.bias is None:
                    assert torch.equal(layer(own), nn.LayerNorm.forward(layer, own))


def gated_layer(**settings: Any) -> LlamaMLP:
    return LlamaMLP(LlamaConfig(hidden_size=32, intermediate_size=96, **settings))


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("silu", torch.float32), ("silu", torch.bfloat16), ("gelu", torch.bfloat16), ("gelu_new", torch.bfloat16)],
)
def test_a_model_uses_gates(activation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    used = noted(monkeypatch, "gate_", gate.gate_)
    layer, x = gated_layer(hidden_act=activation).to(dtype), torch.randn(2, 320, 32).to(dtype)
    with torch.inference_mode(), fused_activations(layer):
        before = layer(x)
    with torch.inference_mode(), fast_inference(nn.Sequential(layer)):
        found, few = layer(x), layer(x[:, :4])
    assert used == [(2, 320, 96)]
    if dtype == torch.bfloat16:
        assert torch.equal(found, before)
    else:
        torch.testing.assert_close(found, before, rtol=1e-5, atol=1e-6)
    assert torch.allclose(few, before[:, :4], atol=1e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "silu", "swish"])
def test_activations_in_bfloat16_are_looked_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = noted(monkeypatch, "looked_up", lookup.looked_up)
    module, x = ACT2FN[name], 3 * torch.randn(2, 300, 128).bfloat16()
    network = nn.Sequential(nn.Linear(1, 1), module)
    with torch.inference_mode(), fused_activations(network):
        before = module(x)
    with torch.inference_mode(), fast_inference(network):
        assert torch.equal(module(x), before)
        torch.testing.assert_close(module(x.mT), before.mT)  # by torch's operations, which round otherwise there
    assert used == [x.shape]
    assert "forward" not in vars(module)


class _OtherGELU(GELUActivation):
    """A class that may compute something else."""


def test_other_activations_are_left_alone() -> None:
    for module in (nn.ReLU(), nn.SiLU(inplace=True), _OtherGELU(), nn.Hardswish()):
        with fast_inference(nn.Sequential(nn.Linear(1, 1), module)):
            assert "forward" not in vars(module)


class _LimitedMLP(LlamaMLP):
    """A layer of the same parts that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(max=1.0))


def test_other_layers_of_that_name_are_left_alone() -> None:
    limited = _LimitedMLP(LlamaConfig(hidden_size=32, intermediate_size=96))
    hooked = gated_layer()
    hooked.gate_proj.register_forward_hook(lambda module, given, output: output + 1)
    for layer in (limited, gated_layer(hidden_act="relu"), hooked):
        x = torch.randn(2, 320, 32)
        with torch.inference_mode():
            before = layer(x)
            with fast_inference(nn.Sequential(layer)):
                assert torch.equal(layer(x), before)


def test_what_does_not_suit_takes_torchs_operations() -> None:
    fine, weight = torch.randn(300, 128), torch.ones(128)
    assert norm.suits_rms_norm(fine, weight)
    silu, half = functional.silu, fine.bfloat16()
    assert gate.suits_gate(silu, fine, fine.clone())
    assert gate.suits_gate(functional.gelu, half, half.clone())
    assert lookup.suits_lookup(half)
    for x in (fine.double(), fine[:10], fine[:, :100], fine.half()):
        own = weight.to(x.dtype)[: x.shape[1]]
        assert not norm.suits_rms_norm(x, own)
        assert not norm.suits_layer_norm(x, own, own)
        assert not gate.suits_gate(silu, x, x)
        assert not lookup.suits_lookup(x)
    assert not norm.suits_rms_norm(half, weight)
    one = weight.bfloat16()
    assert norm.suits_layer_norm(half, one, one)
    assert not norm.suits_layer_norm(fine, weight, weight)
    assert not norm.suits_layer_norm(half, one, weight)
    assert not norm.suits_layer_norm(half, one, one.clone().requires_grad_())
    assert not norm.suits_layer_norm(half.view(-1, 4, 128), one.expand(4, 128), one.expand(4, 128))
    assert not gate.suits_gate(silu, fine, fine[:1])
    assert not gate.suits_gate(silu, half, fine)
    assert not gate.suits_gate(functional.gelu, fine, fine.clone())
    assert not lookup.suits_lookup(half.mT)
    assert not lookup.suits_lookup(half[:10])
    assert not lookup.suits_lookup(half.clone().requires_grad_())
    q, turns = torch.randn(4, 100, 3, 64).transpose(1, 2), torch.randn(2, 1, 100, 64)
    assert rotary.suits_rotary(q, *turns)
    assert not rotary.suits_rotary(q.contiguous(), *turns)
    assert not rotary.suits_rotary(q[..., :60], *turns[..., :60])
    assert not rotary.suits_rotary(q, *turns[:, 0])
    assert not rotary.suits_rotary(q.bfloat16(), *turns)
    assert not norm.suits_rms_norm(fine.requires_grad_(), weight)
    with torch.inference_mode():
        assert norm.suits_rms_norm(fine, weight)


def _cut(values: Any, builder: Any, dropped: int) -> Any:
    """``values`` without the lowest bits of each."""
    bits = ir.VectorType(ir.IntType(16 if values.type.element == ir.IntType(16) else 32), values.type.count)
    mask = ir.Constant(bits, [-1 << dropped] * values.type.count)
    return builder.bitcast(builder.and_(builder.bitcast(values, bits), mask), values.type)


def _rounded(builder: Any, values: Any, kind: str) -> Any:
    return _cut(values, builder, 18 if kind == "BF16" else 6)


def _exponential(module: Any, builder: Any, x: Any) -> Any:
    return _cut(_exact_exponential(module, builder, x), builder, 6)


def _broadcast(builder: Any, number: Any, lanes: int) -> Any:
    return _cut(broadcast(builder, number, lanes), builder, 18)


def _load(builder: Any, *place: Any) -> Any:
    return _cut(load(builder, *place), builder, 1)


_exact_exponential = gate_program._exponential
PLANTED = {"norm": ("broadcast", _broadcast), "rotary": ("rounded", _rounded)}
PLANTED |= {"gate": ("_exponential", _exponential), "lookup": ("load", _load)}


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_code_that_is_wrong_is_not_used(case: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are lost in what is between the operations, or in what is read."""
    name, *arguments = case
    part, program = PARTS[name]
    assert part._tested_code(*arguments) is not None
    part._tested_code.cache_clear()
    monkeypatch.setattr(program, *PLANTED[name])
    assert part._tested_code(*arguments) is None


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_torch_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.delitem(sys.modules, "privctl.machine_code.compiling")
    for name in ("gate_program", "lookup_program", "norm_program", "rotary_program", "numbers"):
        monkeypatch.delitem(sys.modules, f"privctl.models.fused.{name}")
        monkeypatch.delattr(f"privctl.models.fused.{name}")
    assert not norm.suits_rms_norm(torch.randn(300, 128), torch.ones(128))
    assert not gate.suits_gate(functional.silu, torch.randn(300, 128), torch.ones(300, 128))
    assert not lookup.suits_lookup(torch.ones(300, 128).bfloat16())
    assert not rotary.suits_rotary(torch.randn(4, 100, 3, 64).transpose(1, 2), *torch.ones(2, 1, 100, 64))
