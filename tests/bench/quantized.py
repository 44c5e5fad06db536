"""What rounding layers costs: private training steps with every layer quantized, against the same without.

All of a shape's variants step the same model in turn, in one process and on one thread; ratios are between times of the
same round. Processor time leaves out what other processes took of a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tests.bench.dp_sgd_shapes import Shape

UNQUANTIZED = "unquantized"
SEED = 0
#: Shapes whose steps are timed where the caller names none.
DEFAULT_SHAPES = ("GPT-2 6x512 tied", "BERT 4x256", "ResNet-9 GroupNorm")

Result = dict[str, Any]
Step = Callable[[], None]


def cost(shape: Shape, rounds: int, device: torch.device, *, formats: Sequence[str] = ()) -> Result:
    """Times of ``shape``'s steps by variant, and their median ratios to the unquantized step's, on one thread."""
    import torch

    from privctl.train.quantized import FORMATS

    torch.set_num_threads(1)
    variants = _steps(shape, device, list(formats) or [str(name) for name in FORMATS])
    wall: dict[str, list[float]] = {name: [] for name in variants}
    processor: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for i in range(-1, rounds):  # before the first round all are warmed
        for name in names[i % len(names) :] + names[: i % len(names)]:
            started, used = time.perf_counter(), time.process_time()
            variants[name]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if i >= 0:
                wall[name].append(time.perf_counter() - started)
                processor[name].append(time.process_time() - used)
    return {
        name: {
            "median_s": median(wall[name]),
            "to_unquantized": _ratio(wall, name),
            "processor_to_unquantized": _ratio(processor, name),
            "seconds": wall[name],
            "processor_seconds": processor[name],
        }
        for name in names
    }


def rows(results: Mapping[str, Result]) -> list[list[str]]:
    """The table's lines, of shape, variant, milliseconds and both ratios, from ``cost`` by shape."""
    return [
        [shape, name, f"{1000 * one['median_s']:.0f}", f"{one['to_unquantized']:.2f}",
         f"{one['processor_to_unquantized']:.2f}"]
        for shape, found in results.items()
        for name, one in found.items()
    ]  # fmt: skip


HEADINGS = ["shape", "format", "ms", "/ unquantized", "cpu / unquantized"]


def _steps(shape: Shape, device: torch.device, formats: list[str]) -> dict[str, Step]:
    """Whole private steps: clipped gradients, noise, update."""
    import torch

    from privctl.train.clipping import Clipping, PerExample
    from privctl.train.quantized import FORMATS, QuantizedLayers
    from privctl.train.settings.choices import FormatName
    from privctl.train.steps.gradient_noise import noise_for

    torch.manual_seed(SEED)
    model = shape.make().train().to(device)
    batch = {name: values.to(device) for name, values in shape.batch(shape.examples, shape.positions).items()}
    engine, noise = PerExample(model, Clipping(norm=1.0)), noise_for(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    counter = iter(range(1 << 30))

    def losses() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return shape.losses(model, batch).float()

    def update() -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        noise.release(gradients, 1 / shape.examples, next(counter))
        optimizer.step()

    def unquantized() -> None:
        optimizer.zero_grad(set_to_none=True)
        engine.accumulate(losses, weight=1 / shape.examples)
        update()

    def step_in(name: str) -> Step:
        layers = QuantizedLayers(network=model, format=FORMATS[FormatName(name)], seed=b"bench")
        layers.choose(frozenset(layers.names))
        steps = iter(range(1 << 30))

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            layers.begin(next(steps))
            with layers.active(range(shape.examples)):
                engine.accumulate(losses, weight=1 / shape.examples)
            update()

        return step

    engine.verify(losses)
    return {UNQUANTIZED: unquantized, **{name: step_in(name) for name in formats}}


def _ratio(times: Mapping[str, Sequence[float]], name: str) -> float:
    return median(a / b for a, b in zip(times[name], times[UNQUANTIZED], strict=True))
