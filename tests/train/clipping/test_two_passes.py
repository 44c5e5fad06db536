"""``--clipping-passes 2``: the same norms and sums as in one pass, and no layer's tensors are kept for all norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample, check, sinks
from privctl.train.clipping.engine import NotFiniteError
from privctl.train.clipping.factors import ROUNDING_MARGIN
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.measure import merge, squares_by_parameter
from privctl.train.methods.clipped import METHOD as CLIPPED
from privctl.train.network import memory
from privctl.train.network.memory import checkpointed
from privctl.train.network.tensor_bytes import TensorBytes
from privctl.train.settings.choices import ClippingStyle
from privctl.train.steps.contribution import clipping_of
from tests.train.clipping.support import Batch, Gradients, Losses, agree, causal, classified, distance, length, tokens
from tests.train.clipping.test_families import GROUPED, gpt2
from tests.train.clipping.test_promotion import RelativeBias


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    torch.manual_seed(0)


def spread(model: nn.Module) -> nn.Module:
    """The model past initial zeros and ones, and far enough that gradients differ."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def lora() -> nn.Module:
    import peft

    plain = gpt2().requires_grad_(False)
    return peft.get_peft_model(plain, peft.LoraConfig(r=3, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))


def pixels(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["x"]).flatten(1).square().mean(1)


def bf16(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return causal(model, batch)


def seeded(model: nn.Module, batch: Batch) -> Tensor:
    torch.manual_seed(5)
    return causal(model, batch)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 5, 2, bias=False))


DROPS = {"embd_pdrop": 0.3, "resid_pdrop": 0.3, "attn_pdrop": 0.3}
IMAGES = {"x": torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(1))}
TEXTS = tokens(4, 9, 40)
CASES: dict[str, tuple[Callable[[], nn.Module], Losses, Batch]] = {
    "tied": (gpt2, causal, TEXTS),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)), causal, TEXTS),
    "lora": (lora, causal, TEXTS),
    "convolutions": (convolutions, pixels, IMAGES),
    "promoted": (lambda: RelativeBias(), pixels, {"x": torch.randn(4, 6, 8)}),
    "dropout": (lambda: gpt2(**DROPS).train(), seeded, TEXTS),
    "checkpointed": (lambda: checkpointed(gpt2(n_layer=3)), causal, TEXTS),
    "checkpointed, dropout": (lambda: checkpointed(gpt2(**DROPS)).train(), seeded, TEXTS),
    "bf16": (lambda: gpt2(tie_word_embeddings=False), bf16, TEXTS),
}


def model_case(name: str) -> tuple[nn.Module, Losses, Batch]:
    make, losses, batch = CASES[name]
    model = make()
    return spread(model if "dropout" in name else model.eval()), losses, batch


def clipped(
    model: nn.Module, losses: Losses, batch: Batch, passes: int, style: ClippingStyle = ClippingStyle.FLAT
) -> tuple[Gradients, Tensor]:
    """The sum after two calls, the first of which also compares with autograd, and the norms of the second."""
    model.zero_grad()
    with PerExample(model, Clipping(norm=0.5, style=style), passes=passes) as engine:
        for weight in (1.0, 0.5):
            norms = engine.accumulate(lambda: losses(model, batch), weight=weight).norms
        found = {name: p.grad.clone() for name, p in engine.trainable.items()}
    model.zero_grad()
    return found, norms


#: Of the cases, what the quick suite runs; the others are slow.
QUICK = {"tied", "convolutions", "promoted", "checkpointed, dropout", "bf16"}


@pytest.mark.parametrize(
    ("name", "style"),
    [
        pytest.param(name, style, marks=() if name in QUICK and style is ClippingStyle.FLAT else pytest.mark.slow)
        for name in CASES
        for style in (ClippingStyle.FLAT, ClippingStyle.PER_LAYER)
    ],
)
def test_the_sum_is_that_of_one_pass(name: str, style: ClippingStyle) -> None:
    model, losses, batch = model_case(name)
    (one, norms), (two, same) = (clipped(model, losses, batch, passes, style) for passes in (1, 2))
    assert length(one) > 0.1
    assert distance(two, one) < 1e-6
    torch.testing.assert_close(same, norms, rtol=1e-6, atol=0)


def test_draws_that_are_not_repeated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a layer that is computed again draws another dropout; with it a backward pass draws."""
    plain = memory.checkpoint

    def forgetful(*arguments: Any, **settings: Any) -> Any:
        return plain(*arguments, **{**settings, "preserve_rng_state": False, "determinism_check": "none"})

    monkeypatch.setattr(memory, "checkpoint", forgetful)
    model, losses, batch = model_case("checkpointed, dropout")
    with pytest.raises(InputError, match="draws random numbers in its backward pass.*--clipping-passes 1"):
        clipped(model, losses, batch, 2)


class Moody(torch.autograd.Function):
    """The identity, whose gradient is longer in each backward pass, by no draw that torch could tell of."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Moody.passes += 1
        return gradient * (1 + 0.1 * Moody.passes**2)


def test_a_second_pass_of_another_gradient_is_refused() -> None:
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)
    model = nn.Sequential(first, last)

    def losses(_: nn.Module, batch: Batch) -> Tensor:
        return last(Moody.apply(first(batch["x"]))).square().mean(1)

    Moody.passes = -1  # so that the pass of the comparison and the first one agree
    with (
        PerExample(model, Clipping(norm=0.5), passes=2, may_promote=False) as engine,
        pytest.raises(InputError, match=r"row 0 has norm .* in one backward pass and .* in the next"),
    ):
        engine.accumulate(lambda: losses(model, {"x": torch.randn(3, 8)}))
    assert all(p.grad is None for p in model.parameters())


class Growing(nn.Module):
    """A layer that counts how often it was run, which a checkpoint does again in every backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return torch.tanh(self.layer(x)) * torch.full((), 1.0005**self.runs)


def test_passes_that_differ_by_less_than_a_thousandth_are_not_the_same() -> None:
    """What the first measured, the second would add a little longer: past the margin for rounding, in the end."""
    torch.manual_seed(0)
    first, grows, last = nn.Linear(8, 8), Growing(), nn.Linear(8, 8)

    def losses() -> Tensor:
        middle = checkpoint(grows, first(torch.ones(3, 8)), use_reentrant=False)
        return last(middle).square().mean(1)

    model = nn.ModuleList([first, grows, last])
    with (
        PerExample(model, Clipping(norm=0.5), passes=2, may_promote=False) as engine,
        pytest.raises(InputError, match=r"in one backward pass and .* in the next"),
    ):
        engine.accumulate(losses)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(("longer", "refused"), [(2.0**-13, False), (2.0**-11, True), (0.99e-3, True)])
def test_a_gradient_longer_than_measured_is_refused_well_within_the_margin(
    passes: int, longer: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipped by the measured norm, what is added would exceed the clip norm by as much: the margin is 2^-10."""
    for kind in (sinks.KeepingSink, sinks.MeasuringSink):
        formed = kind.row_norms

        def planted(self: Any, rows: Any, formed: Any = formed) -> dict[int, float]:
            return {row: (1 + longer) * norm for row, norm in formed(self, rows).items()}

        monkeypatch.setattr(kind, "row_norms", planted)
    model, losses, batch = model_case("convolutions")
    expected = pytest.raises(InputError, match="as it would be added") if refused else nullcontext()
    with PerExample(model, Clipping(norm=0.5), passes=passes) as engine, expected:
        engine.accumulate(lambda: losses(model, batch))


def test_no_tolerance_of_a_norm_reaches_the_margin_that_pays_for_it() -> None:
    """Nor half of it, for what is left has to hold the rounding of sums; ``make_private`` has the smaller margin."""
    assert max(check._NORM_TOLERANCE, check._REPEAT_TOLERANCE, check._REPEAT_TOLERANCE_REDUCED) <= ROUNDING_MARGIN / 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_add_nothing(value: float) -> None:
    """Nothing of a batch with such a row is added; the others by themselves are what one pass makes of them."""
    model = spread(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
    x = torch.randn(5, 8)
    broken = x.clone()
    broken[3, 1] = value
    expected, _ = clipped(model, pixels, {"x": x[[0, 1, 2, 4]]}, 1)
    with PerExample(model, Clipping(norm=0.5), passes=2) as engine:
        engine.accumulate(lambda: pixels(model, {"x": x[[0, 1, 2, 4]]}))
        before = {name: p.grad.clone() for name, p in engine.trainable.items()}
        with pytest.raises(NotFiniteError) as caught:
            engine.accumulate(lambda: pixels(model, {"x": broken}), weight=0.0)
        assert caught.value.rows == (3,)
        assert all(torch.equal(p.grad, before[name]) for name, p in engine.trainable.items())
        engine.accumulate(lambda: pixels(model, {"x": x[[0, 1, 2, 4]]}), weight=0.5)
        found = {name: p.grad for name, p in engine.trainable.items()}
        assert distance(found, expected) < 1e-6


@pytest.mark.parametrize(("passes", "bf16", "norm"), [(1, True, 1.0), (2, False, 1.0), (2, True, 1 - 2**-4)])
def test_without_noise_a_second_pass_in_bfloat16_has_a_margin(passes: int, bf16: bool, norm: float) -> None:
    """Its gradients may round otherwise than those that were measured."""
    asked = SimpleNamespace(bf16=bf16, clipping_passes=passes, clip_norm=1.0)
    job: Any = SimpleNamespace(recipe=asked, request=SimpleNamespace(method=CLIPPED, clipping=ClippingStyle.FLAT))
    assert clipping_of(job).norm == norm


def test_a_weight_of_zero_adds_exactly_zero() -> None:
    model, losses, batch = model_case("tied")
    with PerExample(model, Clipping(norm=0.5), passes=2) as engine:
        engine.accumulate(lambda: losses(model, batch), weight=0.0)
        assert all(not p.grad.any() for p in engine.trainable.values())


def test_every_row_is_handed_on_without_keeping_the_others() -> None:
    model, losses, batch = model_case("tied")
    found = []
    for passes in (1, 2):
        with PerExample(model, Clipping(norm=0.5), passes=passes) as engine:
            found.append(engine.rows(lambda: losses(model, batch), [0, 2], torch.clone)[1])
    for one, two in zip(*found, strict=True):
        assert one.keys() == two.keys()
        assert distance(two, one) < 1e-6


def test_a_parameter_that_no_gradient_reaches_has_a_zero_one() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.idle(x)
            return self.used(x)

    model = Idle()
    found, _ = clipped(model, pixels, {"x": torch.randn(3, 8)}, 2)
    assert not found["idle.weight"].any()
    assert found["used.weight"].any()


def test_layers_that_read_one_tensor_share_its_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one pass: four Gram matrices of inputs for seven linear layers of a block, and one of the head."""
    read = list[int]()

    def watching(terms: Any) -> Any:
        uses = [use for term in terms.values() for use in merge(term)]
        places = {use.inputs.data_ptr() for use in uses if isinstance(use, Outer)}
        assert len(places) <= 1
        read.append(len(places))
        return squares_by_parameter(terms)

    monkeypatch.setattr(sinks, "squares_by_parameter", watching)
    model = spread(hf.LlamaForCausalLM(hf.LlamaConfig(**{**GROUPED, "hidden_size": 64, "vocab_size": 300})))
    with PerExample(model, Clipping(norm=0.5), passes=2) as engine:
        engine._checked = True
        engine.accumulate(lambda: causal(model, TEXTS))
    assert sum(read) == 2 * 4 + 1


def most_held(model: nn.Module, batch: Batch, passes: int) -> int:
    """Bytes of tensors at a micro-batch's peak, above parameters and gradients, without comparing with autograd."""
    counted = TensorBytes()
    with PerExample(model, Clipping(norm=0.5), passes=passes) as engine:
        engine._checked = True
        for parameter in engine.trainable.values():
            parameter.grad = torch.zeros_like(parameter)
        counted.start()
        try:
            engine.accumulate(lambda: causal(model, batch), check_finite=False)
        finally:
            counted.stop()
    model.zero_grad()
    return counted.most


@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_peak_grows_by_no_layer_but_what_a_checkpoint_holds(tied: bool) -> None:
    """A deeper model takes one input a layer more; in one pass all inputs and output gradients of its linear layers."""
    batch = tokens(4, 16, 40)
    peaks = {
        (layers, passes): most_held(
            checkpointed(gpt2(n_layer=layers, n_embd=64, tie_word_embeddings=tied)).eval(), batch, passes
        )
        for layers in (3, 4)
        for passes in (1, 2)
    }
    position = 4 * 4 * 16 * 64  # bytes of one activation
    assert peaks[4, 2] - peaks[3, 2] < 1.5 * position
    assert peaks[4, 1] - peaks[3, 1] > 8 * position


@pytest.mark.slow
def test_two_passes_agree_with_plain_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition, not against the other way."""
    plain = PerExample.__init__

    def twice(self: PerExample, *arguments: Any, **keywords: Any) -> None:
        plain(self, *arguments, **{**keywords, "passes": 2})

    monkeypatch.setattr(PerExample, "__init__", twice)
    for name in ("tied", "convolutions", "promoted"):
        agree(*model_case(name))
    model = spread(hf.BertForSequenceClassification(hf.BertConfig(**{**GROUPED, "num_attention_heads": 2})))
    agree(model.eval(), classified, {**tokens(4, 9, 40), "labels": torch.tensor([0, 1, 1, 0])})


def test_a_layer_measured_but_not_added_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: what the equality with one pass would show if the second pass missed a layer."""
    receive = sinks.AddingSink.receive

    def forgetful(self: Any, names: Any, terms: dict[str, Any]) -> None:
        receive(self, names, {name: uses for name, uses in terms.items() if "c_fc" not in name})

    model, losses, batch = model_case("tied")
    one, _ = clipped(model, losses, batch, 1)
    monkeypatch.setattr(sinks.AddingSink, "receive", forgetful)
    assert distance(clipped(model, losses, batch, 2)[0], one) > 1e-3


def test_a_tied_weight_measured_by_each_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a parameter counts as final after its first use."""
    start = sinks.MeasuringSink.__init__

    def hasty(self: Any, uses: Any, *arguments: Any, **keywords: Any) -> None:
        start(self, dict.fromkeys(uses, 1), *arguments, **keywords)

    monkeypatch.setattr(sinks.MeasuringSink, "__init__", hasty)
    model, losses, batch = model_case("tied")
    with (
        PerExample(model, Clipping(norm=0.5), passes=2, may_promote=False) as engine,
        pytest.raises(InputError, match=r"parameter 'transformer.wte.weight' came of more uses than"),
    ):
        engine.accumulate(lambda: losses(model, batch))


def test_a_use_beyond_those_that_were_counted_is_refused() -> None:
    """Its gradient would take the place of the others' in the norm."""
    layer = nn.Linear(2, 2, bias=False)
    measured = sinks.MeasuringSink({"weight": 1}, {"weight": layer.weight}, torch.device("cpu"))
    term = Outer(inputs=torch.ones(1, 1, 2), gradients=torch.ones(1, 1, 2))
    measured.receive({"weight"}, {"weight": [term]})
    with pytest.raises(InputError, match="more uses than the forward pass made"):
        measured.receive({"weight"}, {"weight": [term]})
