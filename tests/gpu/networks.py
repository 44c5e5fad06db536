"""Networks of known sizes on a device, and the steps that measurements take with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample
from tests.train.clipping.support import causal, tokens

#: Name -> width, width of the feed-forward layers, layers, heads, heads of keys and values, vocabulary: Llama's.
SIZES = {
    "124M": (768, 2048, 12, 12, 12, 50_257),
    "1B": (2048, 8192, 16, 32, 8, 128_256),
    "3B": (3072, 8192, 28, 24, 8, 128_256),
    "7B": (4096, 11_008, 32, 32, 32, 32_000),
}
TOY = (64, 128, 2, 4, 2, 300)
#: Positions of a record, in toys too.
POSITIONS = {False: 512, True: 32}

Step = AbstractContextManager[Callable[[], None]]


def llama(size: tuple[int, ...], device: torch.device) -> nn.Module:
    """An untrained Llama."""
    width, wide, layers, heads, key_heads, vocabulary = size
    config = hf.LlamaConfig(
        hidden_size=width, intermediate_size=wide, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, vocab_size=vocabulary, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device(device):
        return hf.LlamaForCausalLM(config).eval()


def with_adapters(network: nn.Module) -> nn.Module:
    """The network, frozen, under adapters of rank 16 on all linear layers; its numbers are bfloat16's."""
    import peft

    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())
    adapted: nn.Module = peft.get_peft_model(network, peft.LoraConfig(r=16, target_modules="all-linear"))  # type: ignore[arg-type]
    return adapted.eval()


def wait(device: torch.device) -> None:
    """Until the device has computed all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device, rounds: int = 3, *, warm: int = 1) -> float:
    """The least time of a few calls after ``warm`` others."""
    found = []
    for _ in range(rounds + warm):
        wait(device)
        started = time.perf_counter()
        call()
        wait(device)
        found.append(time.perf_counter() - started)
    return min(found[warm:])


def peak_gib(device: torch.device) -> float | None:
    """The most memory held since the last ``reset_peak_memory_stats``; None on a processor."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


@contextmanager
def private(
    model: Any, examples: int, positions: int, device: torch.device, *, bf16: bool
) -> Iterator[Callable[[], None]]:
    """A private micro-batch, whose gradients are dropped."""
    ids = tokens(examples, positions, model.config.vocab_size)["input_ids"].to(device)

    def losses() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return causal(model, {"input_ids": ids})

    def run() -> None:
        model.zero_grad()
        engine.accumulate(losses, check_finite=False)

    with PerExample(model, Clipping(norm=1.0)) as engine:
        yield run


@contextmanager
def plain(
    model: Any, examples: int, positions: int, device: torch.device, *, bf16: bool
) -> Iterator[Callable[[], None]]:
    """The same without clipping."""
    ids = tokens(examples, positions, model.config.vocab_size)["input_ids"].to(device)

    def run() -> None:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            losses = causal(model, {"input_ids": ids})
        losses.sum().backward()

    yield run
