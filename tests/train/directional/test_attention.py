"""Attention in blocks of queries, with its derivative, against torch's by definition and against finite memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from privctl.train.directional import Derivatives, attention
from privctl.train.directional.attention import blockwise_attention
from privctl.train.network.tensor_bytes import TensorBytes
from tests.train.directional.support import case

LEVEL: Any = forward_ad
#: Queries (2, 4, 37, 5) attend to 41 keys by default.
ROWS, KEYS = 37, 41
LOWER = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(3)
HOLES = (torch.arange(2 * ROWS * KEYS).view(2, 1, ROWS, KEYS) % 3 > 0) & (torch.arange(ROWS)[:, None] != 6)
BIAS = torch.linspace(-2, 2, 4 * ROWS * KEYS, dtype=torch.float64).view(1, 4, ROWS, KEYS)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.7},
    "a mask for all": {"attn_mask": LOWER},
    "a mask in which a row sees nothing": {"attn_mask": HOLES},
    "numbers that are added": {"attn_mask": BIAS.masked_fill(HOLES.logical_not(), -torch.inf)},
    "the lowest number added": {"attn_mask": BIAS.masked_fill(LOWER.logical_not(), torch.finfo(torch.float64).min)},
}


def attention_inputs(seed: str, shared: int = 4, kind: torch.dtype = torch.float64, keys: int = KEYS) -> list[Tensor]:
    """Query, key and value, of which ``shared`` heads serve all, and then their derivatives."""
    drawn = torch.Generator().manual_seed(len(seed))
    shapes = ((2, 4, ROWS, 5), (2, shared, keys, 5), (2, shared, keys, 3)) * 2
    return [torch.randn(shape, generator=drawn, dtype=torch.float64).to(kind) for shape in shapes]


def slopes(tensors: list[Tensor], *, blocks: bool, known: str = "qkv", **keywords: Any) -> tuple[Tensor, Tensor | None]:
    """Output and derivative; only what is ``known`` has a derivative itself."""
    values, along = tensors[:3], tensors[3:]
    with torch.no_grad(), LEVEL.dual_level():
        duals = [
            LEVEL.make_dual(value, direction) if name in known else value
            for name, value, direction in zip("qkv", values, along, strict=True)
        ]
        if "m" in known:
            keywords["attn_mask"] = LEVEL.make_dual(keywords["attn_mask"], keywords["attn_mask"].cos().nan_to_num())
        with blockwise_attention() if blocks else sdpa_kernel(SDPBackend.MATH):
            found = functional.scaled_dot_product_attention(*duals, **keywords)
        value, slope = LEVEL.unpack_dual(found)
    return value, slope


def agree(tensors: list[Tensor], tolerance: float = 1e-12, **keywords: Any) -> None:
    found, expected = (slopes(tensors, blocks=blocks, **keywords) for blocks in (True, False))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param == "many blocks":
        monkeypatch.setattr(attention, "_CPU_BLOCK", 1)
        monkeypatch.setattr(attention, "_FEWEST_ROWS", 8)
        return 2 * -(-ROWS // 8)
    return 1


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_definitions_derivative(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made_blocks = []
    attended = attention._QueryBlock.attended
    monkeypatch.setattr(attention._QueryBlock, "attended", lambda self: made_blocks.append(self) or attended(self))
    agree(attention_inputs(name), **CASES[name])
    assert len(made_blocks) == blocks
    if name != "a mask in which a row sees nothing" and "attn_mask" in CASES[name]:
        return
    for known in ("q", "k", "v", "qk"):
        agree(attention_inputs(name), known=known, **CASES[name])


@pytest.mark.parametrize("keys", [20, ROWS, KEYS])
def test_causal_rows_see_their_own_position_and_those_before(keys: int, blocks: int) -> None:
    agree(attention_inputs("causal", keys=keys), is_causal=True)


@pytest.mark.parametrize("shared", [1, 2])
def test_queries_that_share_a_key(shared: int, blocks: int) -> None:
    for keywords in ({"is_causal": True}, {"attn_mask": LOWER}, {"attn_mask": BIAS}):
        agree(attention_inputs("shared", shared), enable_gqa=True, **keywords)


def test_a_learned_bias_has_a_derivative_too(blocks: int) -> None:
    for known in ("m", "qm", "qkvm"):
        agree(attention_inputs("bias"), known=known, attn_mask=BIAS)


def test_lower_precision_is_computed_in_float32(blocks: int) -> None:
    for keywords in ({"is_causal": True}, {"attn_mask": BIAS.bfloat16()}):
        tensors = attention_inputs("half", kind=torch.bfloat16)
        found = slopes(tensors, blocks=True, **keywords)
        exact = slopes([tensor.double() for tensor in tensors], blocks=False, **{
            name: value.double() if isinstance(value, Tensor) else value for name, value in keywords.items()
        })  # fmt: skip
        for ours, theirs in zip(found, exact, strict=True):
            assert ours is not None
            assert theirs is not None
            assert ours.dtype == torch.bfloat16
            torch.testing.assert_close(ours.double(), theirs, rtol=2**-8, atol=2**-14 * float(theirs.abs().max()))


def test_autocast_settles_the_precision() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found, slope = slopes(attention_inputs("cast", kind=torch.float32), blocks=True, is_causal=True)
    assert slope is not None
    assert found.dtype == slope.dtype == torch.bfloat16


def test_what_is_not_covered_goes_by_the_definition() -> None:
    query, key, value, *along = attention_inputs("other")
    flat = [tensor.flatten(0, 1) for tensor in (query, key, value, *along)]
    agree(flat, is_causal=True)
    torch.manual_seed(0)
    dropped = slopes([query, key, value, *along], blocks=True, dropout_p=0.5)
    torch.manual_seed(0)
    expected = slopes([query, key, value, *along], blocks=False, dropout_p=0.5)
    for ours, theirs in zip(dropped, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    unequal = [query, key[:, :2], value[:, :2], along[0], along[1][:, :2], along[2][:, :2]]
    with pytest.raises(RuntimeError, match=r"[Ss]ize|expand"):  # keys are shared only on request
        slopes(unequal, blocks=True)


def test_without_a_derivative_a_fused_kernel_computes() -> None:
    with torch.no_grad(), LEVEL.dual_level(), blockwise_attention(), torch.profiler.profile() as profile:
        functional.scaled_dot_product_attention(*attention_inputs("none", kind=torch.float32)[:1] * 3)
    names = {event.key for event in profile.key_averages()}
    assert not any("_math" in name for name in names)
    assert any("flash" in name for name in names)


def test_attention_inside_torchs_own_modules_has_a_derivative() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    values, along = torch.randn(2, 3, 5, 8).unbind()
    with torch.no_grad(), LEVEL.dual_level():
        dual = LEVEL.make_dual(values, along)
        with blockwise_attention():
            _, slope = LEVEL.unpack_dual(layer(dual, dual, dual, need_weights=False)[0])
    step = 1e-3
    with torch.no_grad():
        ahead, behind = (layer(*[values + shift * along] * 3, need_weights=False)[0] for shift in (step, -step))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-2, atol=1e-3)


def test_memory_grows_with_positions_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 heads of 8 numbers; the definition holds the scores of all pairs several times."""
    monkeypatch.setattr(attention, "_CPU_BLOCK", 1 << 18)

    def most(positions: int, *, blocks: bool) -> int:
        tensors = [torch.ones(1, 4, positions, 8) for _ in range(6)]
        with TensorBytes() as held:
            slopes(tensors, blocks=blocks, is_causal=True)
        return held.most

    scores = 4 * 4 * 512 * 512
    assert most(512, blocks=False) > 3 * scores
    assert most(512, blocks=True) < scores / 2
    assert most(1024, blocks=True) < 2.2 * most(512, blocks=True)


def test_forward_derivatives_of_a_network_take_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, count = case("gpt2"), 0
    own = attention._attention

    def counted(call: Any) -> tuple[Tensor, Tensor]:
        nonlocal count
        count += 1
        return own(call)

    monkeypatch.setattr(attention, "_attention", counted)
    for fired, along in zip(setup.fired, setup.directions(), strict=True):
        before = count
        Derivatives(setup.model, "forward").per_example(setup.losses_of, [fired], [along])
        above = {"transformer.h.1.mlp.c_fc.weight": 0, "transformer.wte.weight": 2, "transformer.wpe.weight": 2}
        assert count - before == above.get(fired.parameters[0], 2)
