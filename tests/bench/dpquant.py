"""What layers in few bits cost where they are simulated: private steps with all of them rounded, and measurements.

Shapes are those of ``dp-sgd``. A measurement is the forward passes that tell how much quantizing each layer alone
hurts, for as many examples as it has by default, 16; its cost is in unquantized private steps of the shape's batch.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench import quantized
from tests.bench.common import publish

if TYPE_CHECKING:
    import argparse

    from tests.bench.dp_sgd_shapes import Shape

MEASURED_EXAMPLES = 16
FORMAT = "luq-fp4"


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=5, help="of every shape and format")
    parser.add_argument("--shape", action="append", help="only shapes whose names begin so; default: one of each kind")
    parser.add_argument("--format", action="append", help="only these formats")
    parser.add_argument("--device", default="cpu", help="such as cuda, where FP8 is multiplied as such")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from tests.bench.dp_sgd_shapes import SHAPES

    device = torch.device(options.device)
    wanted = tuple(options.shape or quantized.DEFAULT_SHAPES)
    shapes = [shape for shape in SHAPES.values() if shape.name.startswith(wanted)]
    costs = {
        shape.name: quantized.cost(shape, options.rounds, device, formats=options.format or ()) for shape in shapes
    }
    measured = {
        shape.name: _measurement(shape, device, options.rounds, costs[shape.name][quantized.UNQUANTIZED]["median_s"])
        for shape in shapes
    }
    rows = quantized.rows(costs)
    for name, found in measured.items():
        for row in rows:
            if row[0] == name and row[1] == FORMAT:
                row.append(f"{found['steps']:.2f}")
    headings = [*quantized.HEADINGS, f"a measurement of {MEASURED_EXAMPLES}, in steps"]
    table = [row + [""] * (len(headings) - len(row)) for row in rows]
    data = {"device": str(device), "costs": costs, "measurements": measured}
    publish("dpquant", headings, table, data, options.output)


def _measurement(shape: Shape, device: Any, rounds: int, step: float) -> dict[str, Any]:
    """Seconds of one, and of how many unquantized steps that is the time."""
    import torch

    from privctl.models.tasks.base import evaluation_mode
    from privctl.train.quantized import FORMATS, QuantizedLayers
    from privctl.train.settings.choices import FormatName

    torch.set_num_threads(1)
    model = shape.make().train().to(device)
    batch = {name: values.to(device) for name, values in shape.batch(MEASURED_EXAMPLES, shape.positions).items()}
    layers = QuantizedLayers(network=model, format=FORMATS[FormatName(FORMAT)], seed=b"bench")
    times = []
    for turn in range(rounds):
        began = time.perf_counter()
        with evaluation_mode(model):
            for chosen in (frozenset[str](), *(frozenset({name}) for name in layers.names)):
                layers.choose(chosen)
                layers.begin(turn)
                with layers.active(range(MEASURED_EXAMPLES)):
                    shape.losses(model, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {"layers": len(layers.names), "median_s": median(times), "steps": median(times) / step, "seconds": times}
