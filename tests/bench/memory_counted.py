"""Memory of a private step by exact bytes of tensors, of models too large for any machine at hand.

Tensors are torch's fake ones: they have shapes and formats, and no numbers. The code takes a GPU's way, of a card of
80 GiB. What is counted is what tensors hold at their peak; a GPU's libraries, and what its allocator cannot use of
what it holds, come on top. A model's layers are alike, so the peak of each part of a step grows by the same bytes with
each layer: two shallow models give those of the deep one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import transformers as hf
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from privctl.models.tasks.language import token_losses
from privctl.train.clipping import Clipping, PerExample, rules, terms
from privctl.train.clipping import passes as backward_passes
from privctl.train.network.memory import checkpointed
from privctl.train.network.tensor_bytes import TensorBytes, bytes_of

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

RANK = 16
#: Bytes that Adam's moments take for a trained number, and a gradient does.
_MOMENTS, _GRADIENT = 8, 4
_CARD = 80 << 30
#: Layers of the shallow models.
SHALLOW = (3, 4)


@dataclass(frozen=True, slots=True)
class Llama:
    """The numbers of a model of Llama's kind."""

    width: int
    wide: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool = False


SIZES = {
    "1B": Llama(2048, 8192, 16, 32, 8, 128_256, tied=True),
    "3B": Llama(3072, 8192, 28, 24, 8, 128_256, tied=True),
    "7B": Llama(4096, 11_008, 32, 32, 32, 32_000),
    "13B": Llama(5120, 13_824, 40, 40, 40, 32_000),
    "70B": Llama(8192, 28_672, 80, 64, 8, 32_000),
}
#: Way to train -> bits of a frozen base; None trains all numbers, as float32.
WAYS: dict[str, int | None] = {"all": None, "LoRA, bf16 base": 16, "LoRA, 4-bit base": 4}


class Counted(TensorBytes):
    """Counts fake tensors too; where the code asks for a number it is told that a condition on padding holds."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(func):
            return True
        return super().__torch_dispatch__(func, types, args, kwargs)


class _FourBit(torch.autograd.Function):
    """A product by a weight that is held in 4 bits: float32 numbers are made of it, and let go of, at each use."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.shape = shape
        return nn.functional.linear(inputs, torch.empty(shape))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ torch.empty(ctx.shape).to(gradient.dtype), None


_FOUR_BIT: Callable[[Tensor, tuple[int, int]], Tensor] = _FourBit.apply


class FourBitLinear(nn.Linear):
    """What bitsandbytes' layer holds: codes, a byte a block of 64 for its scale, and what those are quantized by."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        blocks = -(-plain.weight.numel() // 64)
        self.shape = (plain.out_features, plain.in_features)
        self.weight = nn.Parameter(torch.empty(-(-plain.weight.numel() // 2), dtype=torch.uint8), requires_grad=False)
        self.register_buffer("scales", torch.empty(blocks, dtype=torch.uint8))
        self.register_buffer("scales_of_scales", torch.empty(-(-blocks // 256)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply."""
        return _FOUR_BIT(inputs, self.shape)


def build(size: Llama, layers: int, bits: int | None, *, recomputed: bool = False) -> nn.Module:
    """The network of so many layers, ready to be trained; its blocks may be ``recomputed`` in the backward pass."""
    network = _network(size, layers, bits)
    return checkpointed(network) if recomputed else network


def _network(size: Llama, layers: int, bits: int | None) -> nn.Module:
    config = hf.LlamaConfig(
        hidden_size=size.width, intermediate_size=size.wide, num_hidden_layers=layers, vocab_size=size.vocabulary,
        num_attention_heads=size.heads, num_key_value_heads=size.key_heads, tie_word_embeddings=size.tied,
        max_position_embeddings=8192,
    )  # fmt: skip
    network: nn.Module = hf.LlamaForCausalLM(config).eval()
    if bits is None:
        return network
    import peft

    network.requires_grad_(False)
    # It moves layers that are where they should be, which fake ones cannot.
    with mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
        joined: nn.Module = peft.get_peft_model(
            network,  # type: ignore[arg-type]
            peft.LoraConfig(r=RANK, target_modules="all-linear"),
        ).eval()
    for module in joined.modules():
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Linear) and bits == 16:
            base.weight.data = base.weight.data.bfloat16()
        elif isinstance(base, nn.Linear) and bits == 4:
            module.base_layer = FourBitLinear(base)
    return joined


@contextmanager
def fake(*, gpu: bool) -> Iterator[None]:
    """Inside tensors are fake, and the code takes a GPU's way or a processor's."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        # It tells by numbers, of which there are none; tests hold the answer to be right for this class.
        stack.enter_context(mock.patch.object(rules, "is_scaled_rms_norm", _by_name))
        # A random state is no fake tensor.
        stack.enter_context(mock.patch.object(backward_passes, "_random_bytes", return_value=[]))
        if gpu:
            card = SimpleNamespace(total_memory=_CARD)
            stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True), create=True))
            stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", return_value=card))
            stack.callback(terms._of_card.cache_clear)
            terms._of_card.cache_clear()
        yield


def _by_name(module: nn.Module) -> bool:
    return type(module).__name__ == "LlamaRMSNorm"


class _Parts:
    """The peak of each part of a step: up to the first layer, in it, between it and the last, in that, and back."""

    def __init__(self, network: nn.Module, counted: TensorBytes) -> None:
        self.peaks: dict[str, int] = {}
        self.passes = 1  # which of the backward passes it is
        self._part, self._counted = "begin", counted
        layers = next(list(m) for m in network.modules() if isinstance(m, nn.ModuleList))
        self._handles: list[RemovableHandle] = []
        for layer, name, after in ((layers[0], "first", "middle"), (layers[-1], "last", "head")):
            self._handles.append(layer.register_forward_pre_hook(lambda *_, name=name: self.begins(name)))
            back = {"first": "back, first", "last": "back, last"}[name]
            self._handles.append(
                layer.register_forward_hook(lambda _m, _a, out, after=after, back=back: self._left(out, after, back))
            )
        below = layers[-2]
        self._handles.append(below.register_forward_hook(lambda _m, _a, out: self._left(out, None, "back, middle")))

    def _left(self, output: Any, after: str | None, back: str) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        tensor.register_hook(lambda _: self.begins(back if self.passes == 1 else f"{back}, again"))
        if after is not None:
            self.begins(after)

    def begins(self, part: str) -> None:
        """What comes is counted to ``part``."""
        self.peaks[self._part] = max(self.peaks.get(self._part, 0), self._counted.most)
        self._counted.reset_peak()
        self._part = part

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()


class _Marked(PerExample):
    """Tells where the backward pass has ended."""

    parts: _Parts

    def _pass(self, *arguments: Any) -> Any:
        found = super()._pass(*arguments)
        self.parts.begins("clip")
        self.parts.passes += 1
        return found


@contextmanager
def private_step(network: nn.Module, examples: int, positions: int, *, bf16: bool) -> Iterator[Callable[[], None]]:
    """Adds the clipped gradients of a micro-batch of full length, with no update."""
    with PerExample(network, Clipping(norm=1.0)) as engine:
        losses = _losses(network, examples, positions, bf16=bf16)

        def step() -> None:
            engine.accumulate(losses, check_finite=False)

        yield step


def _losses(network: nn.Module, examples: int, positions: int, *, bf16: bool) -> Callable[[], Tensor]:
    ids = torch.zeros(examples, positions, dtype=torch.int64)
    mask, weights = torch.ones_like(ids), torch.ones(examples, positions)

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = network(input_ids=ids, attention_mask=mask, use_cache=False).logits
            return (token_losses(logits, ids.roll(-1, 1)) * weights).sum(1)

    return losses


def step_peaks(network: nn.Module, examples: int, positions: int, *, bf16: bool, passes: int = 1) -> dict[str, int]:
    """Bytes above weights, gradients and moments, at the peak of each part of a micro-batch that is not the first."""
    losses = _losses(network, examples, positions, bf16=bf16)
    with _Marked(network, Clipping(norm=1.0), passes=passes) as engine:
        engine._checked, engine._used, engine._idle = True, set(engine.trainable), set()
        for parameter in engine.trainable.values():
            parameter.grad = torch.empty_like(parameter)
        counted = Counted()
        counted.start()
        parts = engine.parts = _Parts(network, counted)
        try:
            engine.accumulate(losses, check_finite=False)
            parts.begins("end")
        finally:
            counted.stop()
            parts.remove()
    return parts.peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes of a training: of weights, of gradients and moments, and of what a micro-batch takes in each part of it.

    ``trained`` numbers; ``parts`` as ``step_peaks`` gives them. A process with shards holds the parameters ``outside``
    the blocks whole for a while; while layers compute also those of two ``block``s and the buffer that one is gathered
    in, one less at the head; and then the ``largest`` gradient with its buffer.
    """

    weights: int
    trained: int
    parts: dict[str, int]
    outside: int
    block: int
    largest: int

    @property
    def micro(self) -> int:
        """What a micro-batch takes at its peak."""
        return max(self.parts.values())

    @property
    def total(self) -> int:
        """On one card."""
        return self.weights + (_GRADIENT + _MOMENTS) * self.trained + self.micro

    def shared(self, cards: int) -> int:
        """On each of several."""
        whole = {"begin": 0, "end": 0, "head": 2 * self.block, "clip": 2 * self.largest}
        gathered = max(bytes_ + whole.get(part, 3 * self.block) for part, bytes_ in self.parts.items())
        return (self.weights + (_GRADIENT + _MOMENTS) * self.trained) // cards + self.outside + gathered


def needs(
    size: Llama,
    bits: int | None,
    *,
    examples: Sequence[int],
    positions: int,
    recomputed: bool,
    layers: int = 0,
    passes: int = 1,
) -> list[Need]:
    """What training takes by ``examples`` of a micro-batch, of a model of that ``size`` or of fewer ``layers``.

    See ``WAYS`` for ``bits``; gradients are clipped in so many ``passes``.
    """
    found = [list(shallow(size, bits, depth, examples, positions, recomputed, passes)) for depth in SHALLOW]
    return [extrapolated(pair, layers or size.layers) for pair in zip(*found, strict=True)]


def extrapolated(found: Sequence[Need], layers: int) -> Need:
    """The need of a model of so many layers, from those of ``SHALLOW`` layers."""
    one, other = found

    def at(first: int, second: int) -> int:
        return first + (second - first) * (layers - SHALLOW[0]) // (SHALLOW[1] - SHALLOW[0])

    return Need(
        weights=at(one.weights, other.weights),
        trained=at(one.trained, other.trained),
        parts={part: at(one.parts[part], other.parts[part]) for part in one.parts},
        outside=at(one.outside, other.outside),
        block=one.block,
        largest=one.largest,
    )


def shallow(
    size: Llama,
    bits: int | None,
    layers: int,
    examples: Sequence[int],
    positions: int,
    recomputed: bool,
    passes: int = 1,
) -> Iterator[Need]:
    """What a model of so few layers takes, counted, by ``examples``."""
    with fake(gpu=True):
        network = build(size, layers, bits, recomputed=recomputed)
        for count in examples:
            yield need_of(network, step_peaks(network, count, positions, bf16=True, passes=passes))


def need_of(network: nn.Module, parts: dict[str, int]) -> Need:
    """What training the ``network`` takes, given the peaks of a step's parts."""
    blocks = next(list(m) for m in network.modules() if isinstance(m, nn.ModuleList))
    block = bytes_of(blocks[0])
    trained = [p.numel() for p in network.parameters() if p.requires_grad]
    return Need(
        weights=bytes_of(network),
        trained=sum(trained),
        parts=parts,
        outside=bytes_of(network) - len(blocks) * block,
        block=block,
        largest=_GRADIENT * max(trained),
    )
