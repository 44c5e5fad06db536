"""What a step of each private method asks of a GPU, before and after: old ways are switched on again in today's code.

*Before* is: each micro-batch looked at, a launch of noise for each tensor, and attention by its definition in FERRET's
forward derivatives. The Triton kernel of noise, which no processor runs, counts as one operation a launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from privctl.randomness.device.tensor_engine import TensorEngine
from privctl.train.directional import Derivatives, FiredGroup, direction, forward
from privctl.train.directional.attention import blockwise_attention
from privctl.train.network.tensor_bytes import TensorBytes
from privctl.train.quantized.formats import FORMATS
from privctl.train.quantized.layers import QuantizedLayers
from privctl.train.steps import gradient_noise
from privctl.train.steps.gradient_noise import CipherNoise
from privctl.train.steps.precision import Mark
from tests.bench.device_counts import MODELS, gpt2, step, texts
from tests.bench.emulated import emulated

#: Positions, and examples of 8 heads of 64 numbers.
LENGTHS = {128: 4, 512: 4, 2048: 1}
_ROUNDS = 5
_CPU = torch.device("cpu")
_AD: Any = forward_ad


class OneLaunch(TensorEngine):
    """Counts as a kernel of Triton does."""

    def release(self, flat: Tensor, *_: Any) -> None:
        flat.add_(0.0)

    def release_joined(self, flat: Tensor, *_: Any) -> None:
        flat.add_(0.0)


class AllQuantized:
    """Every layer in few bits, in every step."""

    rounds, side_releases_begun, numbers = True, 0, 0

    def __init__(self, network: nn.Module) -> None:
        self.layers = QuantizedLayers(network=network, format=FORMATS["luq-fp4"], seed=b"bench")
        self.layers.choose(frozenset(self.layers.names))

    def begin(self, step: int, place: int, mark: Mark) -> None:
        """See ``Precision``."""
        self.layers.begin(place)

    def on(self, examples: Sequence[int]) -> AbstractContextManager[None]:
        """See ``Precision``."""
        return self.layers.active(range(len(examples)))

    rehearsal = on

    def tensors(self) -> Mapping[str, Tensor]:
        """See ``Precision``."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], side_releases_begun: int) -> None:
        """See ``Precision``."""


@contextmanager
def by_definition() -> Iterator[None]:
    """Attention as it was."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _noise(engine: TensorEngine | None) -> CipherNoise:
    noise = CipherNoise(_CPU, seed=0)
    if engine is not None:
        noise._engine = engine
    return noise


def _each_alone(before: bool) -> AbstractContextManager[Any]:
    """A launch of noise for each tensor."""
    return mock.patch.object(gradient_noise, "_SHARED_BELOW", 0) if before else nullcontext()


def methods(micro_batches: int) -> dict[str, dict[str, dict[str, float]]]:
    """Model and method -> before and after -> waits, kernels and most bytes of one step beside the weights."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, make in MODELS.items():
        for method, few in (("dp-sgd", False), ("dpquant, luq-fp4", True)):
            if few and "adapters" in name:
                continue
            variants = {}
            for state, before in (("before", True), ("after", False)):
                torch.manual_seed(0)
                model = make().eval()
                with _each_alone(before):
                    counts = step(
                        model, micro_batches, bf16=not few, looked_at=before, noise=_noise(OneLaunch()),
                        precision=AllQuantized(model) if few else None,
                    )  # fmt: skip
                variants[state] = {key: counts[key] for key in ("waits", "kernels", "held")}
            found[f"{method}, {name}"] = variants
    found["ferret, forward, GPT-2 2x160"] = {"before": _ferret(by_definition), "after": _ferret(blockwise_attention)}
    return found


def _ferret(attention: Callable[[], AbstractContextManager[None]]) -> dict[str, float]:
    """Of a step in which the embedding fires: every example's derivative in one pass."""
    torch.manual_seed(0)
    model, corpus, name = gpt2().eval(), texts(4), "transformer.wte.weight"
    batch = corpus.batch(range(4), _CPU, 0)
    fired = [FiredGroup(index=0, parameters=(name,))]
    along = [direction(b"bench", 0, 0, {name: model.get_parameter(name).shape})]
    with mock.patch.object(forward, "blockwise_attention", attention), emulated() as counted:
        Derivatives(model, "forward").per_example(lambda: corpus.losses(model, batch), fired, along)
    return {
        "waits": counted.syncs.total(),
        "kernels": counted.kernels.total(),
        "held": counted.tensors.most,
    }


def noises() -> dict[str, dict[str, int]]:
    """By model: tensors, and operations of one release, before and after, of Triton and of tensor operations."""
    found = {}
    for name, make in MODELS.items():
        model = make()
        sizes = [p.shape for p in model.parameters() if p.requires_grad]
        counts = {"tensors": len(sizes)}
        for engine, kind in ((OneLaunch(), "triton"), (None, "tensor operations")):
            for state, before in (("before", True), ("after", False)):
                noise = _noise(engine)
                with _each_alone(before):
                    noise.release([torch.zeros(size) for size in sizes], 1.0, 0)
                    with emulated() as counted:
                        noise.release([torch.zeros(size) for size in sizes], 1.0, 1)
                zeros = counted.kernels["zeros"] + counted.kernels["zero_"] + counted.kernels["new_zeros"]
                counts[f"{kind} {state}"] = counted.kernels.total() - zeros
                assert not counted.syncs
        found[name] = counts
    return found


def attentions() -> dict[str, dict[str, float]]:
    """By kind and length: bytes of temporary tensors and seconds of a derivative, by definition and in blocks."""
    found = {}
    for length, examples in LENGTHS.items():
        for kind, keywords in (("causal", {"is_causal": True}), ("all positions", {})):
            torch.manual_seed(0)
            tensors = [torch.randn(examples, 8, length, 64) for _ in range(6)]
            variants = {"definition": by_definition, "blocks": blockwise_attention}
            row: dict[str, float] = {"examples": examples, "positions": length}
            for name, variant in variants.items():
                with TensorBytes() as held:
                    _slopes(tensors, variant, keywords)
                row[f"{name}_bytes"] = held.most
            taken: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(_ROUNDS):
                for name, variant in variants.items():
                    began = time.process_time()
                    _slopes(tensors, variant, keywords)
                    taken[name].append(time.process_time() - began)
            row |= {f"{name}_s": median(each) for name, each in taken.items()}
            row["ratio"] = median(b / a for a, b in zip(taken["definition"], taken["blocks"], strict=True))
            found[f"{kind}, {length}"] = row
    return found


def _slopes(
    tensors: list[Tensor], variant: Callable[[], AbstractContextManager[None]], keywords: dict[str, Any]
) -> None:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_AD.dual_level())
        stack.enter_context(variant())
        duals = [_AD.make_dual(value, along) for value, along in zip(tensors[:3], tensors[3:], strict=True)]
        functional.scaled_dot_product_attention(*duals, **keywords)
