"""Private training steps against non-private ones, Opacus and FastDP: time, memory, and whether they are right.

The parties of a shape take turns in one process, on one thread; ratios are between times of the same round. Peak
memory and correctness are measured in a fresh process for each party, forked from one that has loaded the libraries.
Correctness is the relative distance of the clipped sum, without noise, from that of gradients found one at a time.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import count_what_is_held, forget_peak, forked, publish, save, status_mib

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    from tests.bench.dp_sgd_parties import Step, Work
    from tests.bench.dp_sgd_shapes import Shape

NOISE, SEED = 1.0, 0
#: A party whose clipped sum is further off than this is wrong rather than rounded, by what it computes in.
WRONG = {"cpu": 1e-3, "cuda": 3e-2}

Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=4, help="for non-private and privctl; small models take thrice")
    parser.add_argument("--peer-rounds", type=int, default=1, help="for the others, which take longer")
    parser.add_argument("--shape", action="append", help="only shapes whose names begin so; repeatable")
    parser.add_argument("--fastdp", help="the folder that FastDP's source was unpacked in")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda, where there is one")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking must not keep forked processes from the device
    if options.fastdp:
        sys.path.insert(0, options.fastdp)
    load_parties()
    import torch

    from tests.bench import dp_sgd_parties, dp_sgd_shapes

    torch.set_num_threads(1)
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = dp_sgd_parties.present()
    prefixes = tuple(options.shape or [""])
    there = dp_sgd_shapes.SHAPES if kind == "cpu" else dp_sgd_shapes.LARGE | dp_sgd_shapes.SHAPES
    chosen = [shape for name, shape in there.items() if name.startswith(prefixes)]
    data: Result = {
        "rounds": options.rounds,
        "threads": 1,
        "device": kind,
        "precision": "bf16 autocast" if kind == "cuda" else "float32",
        "left_out": [name for name in dp_sgd_parties.PARTIES if name not in names],
        "shapes": [],
    }
    published = "dp-sgd" if kind == "cpu" else "dp-sgd-cuda"
    for shape in chosen:
        data["shapes"].append(_measured(shape, [n for n in names if n in (shape.parties or names)], kind, options))
        save(published, data, options.output)  # what is known, should the next shape take too long
    headings = ["shape", "party", "ms", "/ base", "cpu / base", "examples/s", "tokens/s", "peak MiB", "/ base", "error"]
    publish(published, headings, _rows(data), data, options.output)
    if failed := [one["shape"] for one in data["shapes"] if "fails" in one["parties"][dp_sgd_parties.OURS]]:
        sys.exit(f"privctl made no step of {', '.join(failed)}")


def load_parties() -> None:
    """Import what the parties need, so that it counts in no one's memory."""
    import importlib

    modules = (
        "torch",
        "transformers",
        "privctl.train.steps.gradient_noise",
        "privctl.train.clipping",
        "opacus",
        "fastDP",
    )
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


def _measured(shape: Shape, names: list[str], kind: str, options: argparse.Namespace) -> Result:
    print(shape.name, file=sys.stderr, flush=True)
    parties: dict[str, Result] = {}
    for name in names:
        parties[name] = forked(lambda name=name: {"error": _error(shape, name, kind)})
        if "fails" not in parties[name]:
            parties[name] |= forked(lambda name=name: {"peak_mib": _peak(shape, name, kind)})
    able = [name for name in names if "fails" not in parties[name]]
    times = forked(lambda: _times(shape, able, kind, options))
    for name in able:
        parties[name] |= times.get(name) or {"fails": times.get("fails", "not timed")}
    return {"shape": shape.name, "examples": shape.examples, "positions": shape.positions, "parties": parties}


def work_of(shape: Shape, kind: str, size: tuple[int, int], *, noise: float, clip: float = 1.0) -> Work:
    """A new model of ``shape`` on the ``kind`` of device, with a batch of ``size``; always the same."""
    import torch

    from tests.bench.dp_sgd_parties import Work

    torch.manual_seed(SEED)
    place: device = torch.device(kind)
    with place:
        model = shape.make().train()
    batch = {name: values.to(place) for name, values in shape.batch(*size).items()}

    def losses_of(network: Any) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return shape.losses(network, batch).float()

    return Work(
        model=model, losses_of=losses_of, count=size[0], clip=clip, noise=noise, device=place, origin=shape.origin
    )


def step_of(work: Work, name: str) -> Step:
    """The step of the party of this ``name``."""
    from tests.bench.dp_sgd_parties import PARTIES

    return PARTIES[name](work)


def _error(shape: Shape, name: str, kind: str) -> float | None:
    """How far the clipped sum is from that of gradients found one at a time; about half of them are clipped."""
    import torch

    from tests.bench.dp_sgd_parties import BASE, PARTLY

    if name in (BASE, PARTLY):
        return None
    expected, clip = _definition(work_of(shape, kind, shape.tiny, noise=0))
    work = work_of(shape, kind, shape.tiny, noise=0, clip=clip)
    step_of(work, name)()
    found = {n: p.grad for n, p in _named(work.model)}
    off = [(expected[n] if g is None else g * work.count - expected[n]).norm() for n, g in found.items()]
    size = [g.norm() for g in expected.values()]
    return float(torch.stack(off).norm() / torch.stack(size).norm())


def _definition(work: Work) -> tuple[dict[str, Tensor], float]:
    """Each example's gradient by autograd, clipped to the median norm, and that norm."""
    import torch

    parameters = dict(_named(work.model))
    work.optimizer()
    losses = work.losses_of(work.model)
    gradients = [torch.autograd.grad(one, list(parameters.values()), retain_graph=True) for one in losses]
    norms = [torch.stack([g.norm() for g in each]).norm() for each in gradients]
    clip = float(torch.stack(norms).median())
    factors = [min(1.0, clip / float(norm)) for norm in norms]
    sums = [sum(f * g for f, g in zip(factors, each, strict=True)) for each in zip(*gradients, strict=True)]
    return dict(zip(parameters, sums, strict=True)), clip


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name.removeprefix("_module."), parameter) for name, parameter in model.named_parameters()]


def _peak(shape: Shape, name: str, kind: str) -> float:
    """The most memory of a step that is not the first, above what the libraries take, in MiB."""
    import torch

    from tests.bench.dp_sgd_parties import OURS, PARTLY

    count_what_is_held()
    before = status_mib("VmRSS")
    step = step_of(work_of(shape, kind, (shape.examples, shape.positions), noise=NOISE), name)
    if name in (OURS, PARTLY):
        step()  # the first also compares with autograd
    gc.collect()
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() / 2**20
    forget_peak()
    step()
    return status_mib("VmHWM") - before


def _times(shape: Shape, names: list[str], kind: str, options: argparse.Namespace) -> Result:
    """Every party once a round, each round beginning with the next one."""
    import torch

    from tests.bench.dp_sgd_parties import BASE, OURS, PARTLY

    size = (shape.examples, shape.positions)
    steps = {name: step_of(work_of(shape, kind, size, noise=NOISE), name) for name in names}
    factor = 1 if shape.fewer_rounds else 3
    seconds: dict[str, dict[int, float]] = {name: {} for name in names}
    processor: dict[str, dict[int, float]] = {name: {} for name in names}
    for i in range(-1, factor * options.rounds):  # before the first round all are warmed
        turn = [n for n in names if n in (BASE, OURS, PARTLY) or 0 <= i < factor * options.peer_rounds]
        for name in turn[i % len(turn) :] + turn[: i % len(turn)]:
            started, used = time.perf_counter(), time.process_time()
            steps[name]()
            if kind == "cuda":
                torch.cuda.synchronize()
            if i >= 0:
                seconds[name][i], processor[name][i] = time.perf_counter() - started, time.process_time() - used
    return {
        name: {
            **_summary(seconds[name], seconds[BASE], shape),
            # Of a busy machine this says more: what other processes took is not in it.
            "processor_to_non_private": median(_ratios(processor[name], processor[BASE])),
            "processor_seconds": list(processor[name].values()),
        }
        for name in names
    }


def _ratios(times: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    return [each / base[i] for i, each in times.items()]


def _summary(seconds: Mapping[int, float], base: Mapping[int, float], shape: Shape) -> Result:
    middle = median(seconds.values())
    return {
        "median_s": middle,
        "min_s": min(seconds.values()),
        "to_non_private": median(_ratios(seconds, base)),
        "examples_per_s": shape.examples / middle,
        "tokens_per_s": shape.examples * shape.positions / middle if shape.tokens else None,
        "seconds": list(seconds.values()),
    }


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    """The table: one line for each shape and party."""
    from tests.bench.dp_sgd_parties import BASE

    rows = []
    for one in data["shapes"]:
        for name, found in one["parties"].items():
            if "fails" in found:
                rows.append([one["shape"], name, *["-"] * 7, f"fails: {found['fails'][:90]}"])
                continue
            memory = found["peak_mib"] / one["parties"][BASE]["peak_mib"]
            error = found["error"]
            said = "" if error is None else f"{error:.1e}" + (" WRONG" if error > WRONG[data["device"]] else "")
            ratios = [f"{found[key]:.2f}" for key in ("to_non_private", "processor_to_non_private")]
            times = [f"{1000 * found['median_s']:.0f}", *ratios]
            times += [
                f"{found['examples_per_s']:.1f}",
                f"{found['tokens_per_s']:.0f}" if found["tokens_per_s"] else "-",
            ]
            rows.append([one["shape"], name, *times, f"{found['peak_mib']:.0f}", f"{memory:.2f}", said])
    return rows
