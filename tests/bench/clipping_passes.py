"""Private micro-batches clipped in one backward pass and in two: time, and bytes of tensors at the peak.

Times of a whole micro-batch, forward pass included, with neither noise nor update, in one thread; the ways are
interleaved. Large models are counted as ``python -m tests.bench memory`` counts them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish, save

if TYPE_CHECKING:
    from torch import Tensor, nn

_MIB = 2**20
#: Layers, width, vocabulary, whether the head is tied; examples and positions of a micro-batch.
MODELS = {
    "GPT-2 6x256, tied, 4 x 128": (6, 256, 2000, True, 4, 128),
    "GPT-2 12x256, 4 x 128": (12, 256, 2000, False, 4, 128),
}
EXAMPLES = (1, 4, 16)
CARDS = 8


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--positions", type=int, default=1024, help="tokens of a record of the counted models")
    parser.add_argument("--size", action="append", help="count only these of 1B, 3B, 7B, 13B and 70B; repeatable")


def main(options: argparse.Namespace) -> None:
    """Measure, count and publish."""
    import torch

    from tests.bench.memory_counted import SIZES, needs

    torch.set_num_threads(1)
    data: dict[str, Any] = {"rounds": options.rounds, "threads": 1, "positions": options.positions, "measured": []}
    for name, shape in MODELS.items():
        data["measured"] += [{"model": name, **one} for one in measured(*shape, rounds=options.rounds)]
        print(name, file=sys.stderr, flush=True)
    data["counted"] = []
    for name, passes in itertools.product(options.size or SIZES, (1, 2)):
        found = needs(SIZES[name], None, examples=EXAMPLES, positions=options.positions, recomputed=True, passes=passes)
        for examples, one in zip(EXAMPLES, found, strict=True):
            data["counted"].append({
                "size": name, "passes": passes, "examples": examples, "micro_batch": one.micro,
                "one_card": one.total, "each_of_cards": one.shared(CARDS),
            })  # fmt: skip
        save("clipping-passes", data, options.output)
        print(name, passes, file=sys.stderr, flush=True)
    rows = [[one["model"], str(one["checkpointed"]), str(one["passes"]), f"{one['ms']:.0f}", f"{one['ratio']:.2f}",
             f"{one['peak'] / _MIB:.0f}"] for one in data["measured"]]  # fmt: skip
    rows += [[f"{one['size']}, {one['examples']} x {options.positions}", "True", str(one["passes"]), "", "",
              f"{one['micro_batch'] / _MIB:.0f}"] for one in data["counted"]]  # fmt: skip
    headings = ["model", "checkpointed", "passes", "ms", "time, one pass = 1", "peak, MiB"]
    publish("clipping-passes", headings, rows, data, options.output)


def measured(
    layers: int, width: int, vocabulary: int, tied: bool, examples: int, positions: int, *, rounds: int
) -> list[dict[str, Any]]:
    """Of each way the median time of a micro-batch, its median ratio to one pass of the same round, and the peak."""
    import torch
    import transformers as hf

    from privctl.train.clipping import Clipping, PerExample
    from privctl.train.network.memory import checkpointed

    variants = list(itertools.product((False, True), (1, 2)))
    calls: dict[tuple[bool, int], Callable[[], object]] = {}
    peaks = {}
    ids = torch.randint(vocabulary, (examples, positions), generator=torch.Generator().manual_seed(0))
    for recomputed, passes in variants:
        torch.manual_seed(0)
        config = hf.GPT2Config(
            n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=vocabulary, n_positions=positions,
            tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        network: nn.Module = hf.GPT2LMHeadModel(config).eval()
        network = checkpointed(network) if recomputed else network
        engine = PerExample(network, Clipping(norm=1.0), passes=passes)
        calls[recomputed, passes] = _call(engine, network, ids)
        calls[recomputed, passes]()  # the first is compared with autograd
        peaks[recomputed, passes] = _peak(calls[recomputed, passes])
    taken: dict[tuple[bool, int], list[float]] = {variant: [] for variant in variants}
    for i in range(rounds):
        for variant in variants[i % len(variants) :] + variants[: i % len(variants)]:
            started = time.perf_counter()
            calls[variant]()
            taken[variant].append(time.perf_counter() - started)
    return [
        {
            "checkpointed": recomputed, "passes": passes, "peak": peaks[recomputed, passes],
            "ms": 1e3 * median(taken[recomputed, passes]),
            "ratio": median(a / b for a, b in zip(taken[recomputed, passes], taken[recomputed, 1], strict=True)),
        }
        for recomputed, passes in variants
    ]  # fmt: skip


def _call(engine: Any, network: Any, ids: Tensor) -> Callable[[], object]:
    from privctl.models.tasks.language import token_losses

    def losses() -> Tensor:
        logits = network(input_ids=ids, use_cache=False).logits
        total: Tensor = token_losses(logits, ids.roll(-1, 1)).sum(1)
        return total

    return lambda: engine.accumulate(losses, check_finite=False)


def _peak(call: Callable[[], object]) -> int:
    from privctl.train.network.tensor_bytes import TensorBytes

    counted = TensorBytes()
    counted.start()
    try:
        call()
    finally:
        counted.stop()
    return counted.most
