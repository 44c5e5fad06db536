"""Private training steps against non-private ones, Opacus and FastDP: time, memory, and whether they are right.

Each party has processes of its own, on one thread, forked from one that has loaded the libraries: one for its errors,
one for its peak memory, one for its times. Those for times take turns, a step each a round: the non-private one with
privctl's, and another with each peer, so that no more than five models are held at once. Ratios are between times of
the same round. Correctness is the relative distance of the clipped sum, without noise, from that of gradients found
one at a time.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import count_what_is_held, forget_peak, forked, publish, save, status_mib
from tests.bench.step_processes import Taken, in_turns

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    from tests.bench.dp_sgd_parties import Step, Work
    from tests.bench.dp_sgd_shapes import Shape

NOISE, SEED = 1.0, 0
#: Small models take this many times the rounds.
_MORE_ROUNDS = 3
#: A party whose clipped sum is further off than this is wrong rather than rounded, by what it computes in.
WRONG = {"cpu": 1e-3, "cuda": 3e-2}

Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=4, help="for non-private and privctl; small models take thrice")
    parser.add_argument("--peer-rounds", type=int, default=1, help="for the others, which take longer")
    parser.add_argument("--shape", action="append", help="only shapes whose names begin so; repeatable")
    parser.add_argument("--party", action="append", help="only this one beside the non-private step; repeatable")
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
    if options.party:
        names = [name for name in names if name in (dp_sgd_parties.BASE, *options.party)]
    prefixes = tuple(options.shape or [""])
    there = dp_sgd_shapes.SHAPES if kind == "cpu" else dp_sgd_shapes.LARGE | dp_sgd_shapes.SHAPES
    chosen = [shape for name, shape in there.items() if name.startswith(prefixes)]
    data: Result = {
        "rounds": f"GPT-2 {options.rounds}, others {_MORE_ROUNDS * options.rounds}",
        "threads": 1,
        "device": kind,
        "precision": "bf16 autocast" if kind == "cuda" else "float32",
        "left_out": [name for name in dp_sgd_parties.PARTIES if name not in names],
        "shapes": [],
    }
    published = "dp-sgd" if kind == "cpu" else "dp-sgd-cuda"
    for shape in chosen:
        data["shapes"].append(_measured(shape, _of_shape(shape, names, kind), kind, options))
        save(published, data, options.output)  # what is known, should the next shape take too long
    headings = ["shape", "party", "ms", "/ base", "cpu / base", "examples/s", "tokens/s", "peak MiB", "/ base", "error"]
    publish(published, headings, _rows(data), data, options.output)
    if failed := [
        entry["shape"] for entry in data["shapes"] if "fails" in entry["parties"].get(dp_sgd_parties.OURS, {})
    ]:
        sys.exit(f"privctl made no step of {', '.join(failed)}")


def _of_shape(shape: Shape, names: Sequence[str], kind: str) -> list[str]:
    """Those of ``names`` that fit the shape and the device, and that are not another party over again."""
    from tests.bench.dp_sgd_parties import FUSED, WITHOUT_CODE

    fitting = [name for name in names if name in (shape.parties or names)]
    return [n for n in fitting if (n != FUSED or shape.written_out) and (n != WITHOUT_CODE or kind == "cpu")]


def load_parties() -> None:
    """Import what the parties need, so that it counts in no one's memory."""
    import importlib

    modules = (
        "torch",
        "transformers",
        "privctl.train.steps.gradient_noise",
        "privctl.train.clipping",
        "privctl.integrations.make_private",
        "llvmlite.binding",
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
    for name, times in _times(shape, able, kind, options).items():
        parties[name] |= times
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

    from tests.bench.dp_sgd_parties import BASE, FUSED, OWN_LOOP, PARTLY, WITHOUT_CODE

    if name in (BASE, WITHOUT_CODE, FUSED, OWN_LOOP, PARTLY):
        return None
    expected, clip = _definition(work_of(shape, kind, shape.tiny, noise=0))
    work = work_of(shape, kind, shape.tiny, noise=0, clip=clip)
    step_of(work, name)()
    found = {n: p.grad for n, p in _named(work.model)}
    errors = [(expected[n] if g is None else g * work.count - expected[n]).norm() for n, g in found.items()]
    size = [g.norm() for g in expected.values()]
    return float(torch.stack(errors).norm() / torch.stack(size).norm())


def _definition(work: Work) -> tuple[dict[str, Tensor], float]:
    """Each example's gradient by autograd, clipped to the median norm, and that norm."""
    import torch

    parameters = dict(_named(work.model))
    work.optimizer()
    losses = work.losses_of(work.model)
    gradients = [torch.autograd.grad(one, list(parameters.values()), retain_graph=True) for one in losses]
    norms = [torch.stack([g.norm() for g in gradient]).norm() for gradient in gradients]
    clip = float(torch.stack(norms).median())
    factors = [min(1.0, clip / float(norm)) for norm in norms]
    sums = [sum(f * g for f, g in zip(factors, each, strict=True)) for each in zip(*gradients, strict=True)]
    return dict(zip(parameters, sums, strict=True)), clip


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name.removeprefix("_module."), parameter) for name, parameter in model.named_parameters()]


def _peak(shape: Shape, name: str, kind: str) -> float:
    """The most memory of a step that is not the first, above what the libraries take, in MiB.

    On a processor, pages of library files do not count: how many are touched says which code ran. On a GPU only its own
    memory counts, and the processor's is not asked for.
    """
    import torch

    from privctl.randomness.compiled.selection import tested_code
    from tests.bench.dp_sgd_parties import OURS, OWN_LOOP, PARTLY, WITHOUT_CODE

    if name in (OURS, OWN_LOOP, PARTLY) and kind == "cpu":
        tested_code(["F32"])  # LLVM holds as much for any model
    count_what_is_held()
    before = status_mib("RssAnon") if kind == "cpu" else 0.0
    step = step_of(work_of(shape, kind, (shape.examples, shape.positions), noise=NOISE), name)
    if name in (WITHOUT_CODE, OURS, PARTLY):
        step()  # the first also compares with autograd
    gc.collect()
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() / 2**20
    forget_peak()
    step()
    return status_mib("VmHWM") - status_mib("RssFile") - before


def _times(shape: Shape, names: list[str], kind: str, options: argparse.Namespace) -> dict[str, Result]:
    """Of each party what its steps took: privctl's beside the non-private one, and so each peer."""
    from tests.bench.dp_sgd_parties import BASE, FUSED, OURS, OWN_LOOP, PARTLY, WITHOUT_CODE

    factor = 1 if shape.fewer_rounds else _MORE_ROUNDS
    own = [name for name in names if name in (BASE, WITHOUT_CODE, FUSED, OURS, OWN_LOOP, PARTLY)]
    found = _times_of(shape, own, kind, factor * options.rounds)
    for name in names:
        if name not in own:
            found[name] = _times_of(shape, [BASE, name], kind, factor * options.peer_rounds)[name]
    return found


def _times_of(shape: Shape, names: list[str], kind: str, rounds: int) -> dict[str, Result]:
    from tests.bench.dp_sgd_parties import BASE

    try:
        taken = in_turns({name: partial(_timed_step, shape, name, kind) for name in names}, rounds)
    except RuntimeError as fault:
        return {name: {"fails": str(fault)} for name in names}
    return {name: _summary(steps, taken[BASE], shape) for name, steps in taken.items()}


def _timed_step(shape: Shape, name: str, kind: str) -> Step:
    """A step that has ended when it returns."""
    import torch

    step = step_of(work_of(shape, kind, (shape.examples, shape.positions), noise=NOISE), name)
    if kind != "cuda":
        return step

    def synchronized() -> None:
        step()
        torch.cuda.synchronize()

    return synchronized


def _summary(steps: Sequence[Taken], base: Sequence[Taken], shape: Shape) -> Result:
    seconds = [step["seconds"] for step in steps]
    middle = median(seconds)
    return {
        "median_s": middle,
        "min_s": min(seconds),
        "to_non_private": _ratio("seconds", steps, base),
        "examples_per_s": shape.examples / middle,
        "tokens_per_s": shape.examples * shape.positions / middle if shape.tokens else None,
        "seconds": seconds,
        # Of a busy machine this says more: what other processes took is not in it.
        "processor_to_non_private": _ratio("processor", steps, base),
        "processor_seconds": [step["processor"] for step in steps],
        "page_faults": median(step["faults"] for step in steps),
    }


def _ratio(key: str, steps: Sequence[Taken], base: Sequence[Taken]) -> float:
    return median(one[key] / other[key] for one, other in zip(steps, base, strict=True))


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    """The table: one line for each shape and party."""
    from tests.bench.dp_sgd_parties import BASE

    rows = []
    for shape in data["shapes"]:
        for name, found in shape["parties"].items():
            if "fails" in found:
                rows.append([shape["shape"], name, *["-"] * 7, f"fails: {found['fails'][:90]}"])
                continue
            memory = found["peak_mib"] / shape["parties"][BASE]["peak_mib"]
            error = found["error"]
            deviation = "" if error is None else f"{error:.1e}" + (" WRONG" if error > WRONG[data["device"]] else "")
            ratios = [f"{found[key]:.2f}" for key in ("to_non_private", "processor_to_non_private")]
            times = [f"{1000 * found['median_s']:.0f}", *ratios]
            times += [
                f"{found['examples_per_s']:.1f}",
                f"{found['tokens_per_s']:.0f}" if found["tokens_per_s"] else "-",
            ]
            rows.append([shape["shape"], name, *times, f"{found['peak_mib']:.0f}", f"{memory:.2f}", deviation])
    return rows
