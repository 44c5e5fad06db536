"""FERRET's steps against non-private ones: time and memory of every method, signs of differences, and whole runs.

In a fired step one tensor's derivative along a random direction is found, by each method, for a tensor late in the
network, one in the middle and the embedding. All parties take turns in one process, on one thread; ratios are between
processor times of the same round. Memory is measured in a fresh process for each; how large a model may be is measured
by ``ferret_memory``. A whole run is counted from the steps' times: of FERRET-MAX at the paper's settings most steps
fire nothing and cost nothing. Some steps of ``privctl.train.methods.ferret`` are made as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from tests.bench.common import RESULTS, count_what_is_held, forget_peak, forked, publish, status_mib

if TYPE_CHECKING:
    from torch import nn

    from tests.bench.dp_sgd_parties import Work
    from tests.bench.dp_sgd_shapes import Shape

#: The paper's: 10 000 records in batches of 50, 5 epochs.
STEPS, RATE = 1000, 0.005
EPSILONS = (0.1, 0.5, 1.0, 2.0)
#: Whole training steps that runs are compared with, as ``dp_sgd_parties`` names them.
PEERS = ("privctl", "opacus hooks", "opacus ghost", "fastdp", "fastdp origin_params")
BASE, INFERENCE = "non-private", "inference"
METHODS = ("backward", "partial", "forward", "difference", "auto")
SEED = b"bench"
#: Tensors, evenly spread, whose mean stands for that of all.
SAMPLED = 10
_SAMPLE = "sample"

Step = Callable[[], object]
Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=2, help="each takes minutes")
    parser.add_argument("--shape", action="append", help="only shapes whose names begin so; default: GPT-2 tied, BERT")
    parser.add_argument("--examples", type=int, help="in a batch; default: what dp-sgd takes")
    parser.add_argument("--run-steps", type=int, default=150, help="of privctl.train.methods.ferret; 0 leaves it out")
    parser.add_argument("--fastdp", help="the folder that FastDP's source was unpacked in")
    parser.add_argument("--limit-mib", type=float, default=2048, help="memory that the largest model is sought for")
    parser.add_argument("--largest-only", action="store_true", help="measure that alone, into the JSON that is there")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    if options.fastdp:
        sys.path.insert(0, options.fastdp)
    import torch

    for module in ("transformers", "privctl.train.directional", "torch._decomp.decompositions_for_jvp"):
        import_module(module)  # so that it counts in no one's memory
    from tests.bench import dp_sgd_parties, dp_sgd_shapes, ferret_memory

    torch.set_num_threads(1)
    headings = ["shape", "what", "cpu / step", "peak MiB", "/ inference"]
    found = ferret_memory.largest(options.limit_mib)
    if options.largest_only:
        path = Path(options.output) if options.output else RESULTS / "ferret.json"
        data = json.loads(path.read_text()) if path.exists() else {"shapes": []}
        kept = {name: value for name, value in data.items() if name != "bench"}
        publish("ferret", headings, ferret_memory.rows(found), {**kept, "largest": found}, options.output)
        return
    prefixes = tuple(options.shape or ["GPT-2 6x512 tied", "BERT"])
    peers = [name for name in dp_sgd_parties.present() if name in PEERS]
    data = {
        "rounds": options.rounds,
        "threads": 1,
        "paper": {"steps": STEPS, "sample_rate": RATE},
        "left_out": [name for name in PEERS if name not in peers],
        "shapes": [_measured(s, peers, options) for n, s in dp_sgd_shapes.SHAPES.items() if n.startswith(prefixes)],
        "largest": found,
    }
    lines = [*(row for shape in data["shapes"] for row in _rows(shape)), *ferret_memory.rows(found)]
    publish("ferret", headings, lines, data, options.output)


def _measured(shape: Shape, peers: list[str], options: argparse.Namespace) -> Result:
    print(shape.name, file=sys.stderr, flush=True)
    size = (options.examples or shape.examples, shape.positions)
    names = list(forked(lambda: dict.fromkeys(_parties(shape, size, []), 0)))
    memory = {}
    for name in names:
        if not name.startswith(_SAMPLE) and not name.endswith("auto"):  # which is one of the others
            memory[name] = forked(lambda name=name: {"peak_mib": _peak(shape, size, name)}).get("peak_mib")
    times = forked(lambda: _times(shape, size, peers, options.rounds))
    found: Result = {
        "shape": shape.name,
        "examples": size[0],
        "positions": size[1],
        "times": times,
        "peak_mib": memory,
        "agreement": forked(lambda: _agreement(shape)),
    }
    if "fails" not in times:
        found["runs"] = _runs(forked(lambda: {"groups": len(list(shape.make().parameters()))})["groups"], times)
    found["trainer"] = _trainer(shape, size, options.run_steps)
    return found


def _work(shape: Shape, size: tuple[int, int]) -> Work:
    from tests.bench.dp_sgd import work_of as work

    return work(shape, "cpu", size, noise=1.0)


def _places(model: nn.Module) -> dict[str, str]:
    """A tensor late in the network, one in the middle, and the embedding or whatever comes first."""
    from privctl.train.directional.cost import work

    names = [name for name, p in model.named_parameters() if p.dim() > 1]
    above = {name: share.above for name, share in zip(names, work(model, *([name] for name in names)), strict=True)}
    first = next(iter(above))
    return {
        "late": min(above, key=lambda name: abs(above[name] - 0.12)),
        "middle": min(above, key=lambda name: abs(above[name] - 0.5)),
        "first": first,
    }


def _fired(model: nn.Module, name: str, method: str, losses_of: Callable[[], Any], *, examples: bool = False) -> Step:
    """A fired step: direction and derivative; with ``examples`` each one's."""
    from privctl.train.directional import Derivatives, FiredGroup, direction

    derivatives, fired = Derivatives(model, method), [FiredGroup(index=0, parameters=(name,))]
    shapes = {name: model.get_parameter(name).shape}
    steps = iter(range(1 << 30))

    def step() -> object:
        ask = derivatives.per_example if examples else derivatives.batch
        return ask(losses_of, fired, [direction(SEED, next(steps), 0, shapes)])

    return step


def _parties(shape: Shape, size: tuple[int, int], peers: list[str]) -> dict[str, Step]:
    """What takes turns, by name; nothing is trained but by the non-private step."""
    import torch

    from tests.bench.dp_sgd_parties import PARTIES

    work = _work(shape, size)
    model = work.model

    def losses_of() -> Any:
        return work.losses_of(model)

    def inference() -> None:
        with torch.no_grad():
            losses_of()

    found: dict[str, Step] = {INFERENCE: inference}
    for place, name in _places(model).items():
        for method in METHODS:
            found[f"{place}, {method}"] = _fired(model, name, method, losses_of)
        for method in METHODS[1:]:
            found[f"{place}, each example, {method}"] = _fired(model, name, method, losses_of, examples=True)
    names = [name for name, _ in model.named_parameters()]
    for i in range(SAMPLED):
        name = names[round(i * (len(names) - 1) / (SAMPLED - 1))]
        found[f"{_SAMPLE} {i}: {name}"] = _fired(model, name, "auto", losses_of)
    for name in (BASE, *peers):
        found[name] = _late(lambda name=name: PARTIES[name](_work(shape, size)))
    return found


def _late(make: Callable[[], Step]) -> Step:
    """Network and optimizer are made when they are first needed, so that they count in no one else's memory."""
    steps: list[Step] = []

    def step() -> object:
        if not steps:
            steps.append(make())
        return steps[0]()

    return step


def _peak(shape: Shape, size: tuple[int, int], name: str) -> float:
    """The most memory of a step that is not the first, above what the libraries take, in MiB."""
    from tests.bench.dp_sgd_parties import PARTIES

    count_what_is_held()
    before = status_mib("VmRSS")
    step = PARTIES[BASE](_work(shape, size)) if name == BASE else _parties(shape, size, [])[name]
    step()
    gc.collect()
    forget_peak()
    step()
    return status_mib("VmHWM") - before


def _times(shape: Shape, size: tuple[int, int], peers: list[str], rounds: int) -> Result:
    """Processor time of every party by that of a non-private step of the same round."""
    steps = _parties(shape, size, peers)
    used: dict[str, list[float]] = {name: [] for name in steps}
    failed: set[str] = set()
    order = list(steps)
    for i in range(-1, rounds):  # before the first round all are warmed
        for name in order[i % len(order) :] + order[: i % len(order)]:
            if name in failed:
                continue
            began = time.process_time()
            try:
                steps[name]()
            except Exception as fault:
                print(f"{name} fails: {fault}"[:200], file=sys.stderr)
                failed.add(name)
            if i >= 0:
                used[name].append(time.process_time() - began)
        print(f"round {i + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        name: {"to_step": median(a / b for a, b in zip(each, used[BASE], strict=True)), "processor_s": each}
        for name, each in used.items()
        if name not in failed
    }


def _agreement(shape: Shape) -> Result:
    """Every tensor's sign by differences and by a backward pass, on a small batch."""
    import torch

    from privctl.train.directional import Derivatives, FiredGroup, agreement, direction
    from privctl.train.directional.difference import STEP

    work = _work(shape, (4, min(64, shape.positions)))
    model = work.model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):  # away from where many gradients are exactly zero
        optimizer.zero_grad()
        work.losses_of(model).mean().backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    names = [name for name, _ in model.named_parameters()]
    fired = [FiredGroup(index=i, parameters=(name,)) for i, name in enumerate(names)]
    directions = [direction(SEED, 0, i, {name: model.get_parameter(name).shape}) for i, name in enumerate(names)]
    found = {}
    for step in (STEP / 10, STEP, 3 * STEP):
        derivatives = Derivatives(model, "difference", step=step)
        one = agreement(derivatives, lambda: work.losses_of(model), fired, directions)
        found[f"{step:g}"] = {
            "count": one.count, "equal": one.equal, "above": one.above, "equal_above": one.equal_above,
            "error": one.error,
        }  # fmt: skip
    return found


def _runs(groups: int, times: Mapping[str, Any]) -> Result:
    """Whole runs of FERRET-MAX by non-private ones, at most: as if every group that fires took a step of its own."""
    fired = mean(found["to_step"] for name, found in times.items() if name.startswith(_SAMPLE))
    ceiling = groups * STEPS * RATE * math.log(2)
    rows = {}
    for epsilon in EPSILONS:
        chance = epsilon / ceiling
        share = groups * chance * fired
        rows[f"{epsilon:g}"] = {
            "fire_probability": chance,
            "silent_steps": (1 - chance) ** groups,
            f"to_{BASE}": share,
            **{f"to_{name}": share / times[name]["to_step"] for name in PEERS if name in times},
        }
    return {"groups": groups, "fired_step": fired, "epsilon": rows}


def _trainer(shape: Shape, size: tuple[int, int], steps: int) -> Result:
    """Some steps of the optimizer itself at eps 0.5, by as many non-private ones."""
    if not steps:
        return {"left_out": "--run-steps 0"}
    if find_spec("privctl.train.methods.ferret") is None:
        return {"left_out": "privctl.train.methods.ferret is not installed"}
    return forked(lambda: _trained(shape, size, steps))


def _trained(shape: Shape, size: tuple[int, int], steps: int) -> Result:
    import torch

    from privctl.train.directional import Derivatives
    from tests.bench.dp_sgd_parties import PARTIES

    masks, publishing, trainer, update = (
        import_module(f"privctl.train.methods.ferret.{part}") for part in ("masks", "publish", "trainer", "update")
    )
    work = _work(shape, size)
    names = [name for name, _ in work.model.named_parameters()]
    derivatives = Derivatives(work.model)

    class Source:
        def amounts(self, step: int, fired: Any, directions: Any) -> Any:
            return publishing.signs(derivatives.batch(lambda: work.losses_of(work.model), fired, directions))

    chance = 0.5 / (len(names) * STEPS * RATE * math.log(2))
    schedule = masks.Masks(seed=b"bench masks 1234", groups=len(names), fire_probability=chance, steps=steps)
    run = trainer.FerretTrainer(
        network=work.model, groups=tuple((name,) for name in names), masks=schedule, source=Source(),
        rule=update.UpdateRule(steps=steps, learning_rate=1e-5), epoch_steps=steps, device=torch.device("cpu"),
    )  # fmt: skip
    plain = PARTIES[BASE](_work(shape, size))
    plain()
    began = time.process_time()
    plain()
    halfway = time.process_time()
    run.run()
    middle = time.process_time()
    plain()
    ended = time.process_time()
    base = steps * (halfway - began + ended - middle) / 2
    expected = steps * (1 - (1 - chance) ** len(names))
    return {
        "steps": steps, "fired_steps": schedule.active_steps, "expected_fired_steps": expected,
        "to_non_private": (middle - halfway) / base,
        "to_non_private_as_expected": (middle - halfway) / base * expected / max(1, schedule.active_steps),
    }  # fmt: skip


def _rows(shape: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    inference = shape["peak_mib"].get(INFERENCE) or math.nan
    for name, found in shape["times"].items():
        if name.startswith(_SAMPLE):
            continue
        memory = shape["peak_mib"].get(name)
        sizes = [f"{memory:.0f}", f"{memory / inference:.2f}"] if memory else ["-", "-"]
        rows.append([shape["shape"], name, f"{found['to_step']:.2f}", *sizes])
    for step, found in shape["agreement"].items():
        signs = f"{found['equal']}/{found['count']}, above noise {found['equal_above']}/{found['above']}"
        rows.append([shape["shape"], f"signs of differences, step {step}", signs, "-", "-"])
    for epsilon, found in shape.get("runs", {}).get("epsilon", {}).items():
        for other in (BASE, *PEERS):
            if f"to_{other}" in found:
                name = f"run at eps {epsilon}, {found['silent_steps']:.1%} silent / {other}"
                rows.append([shape["shape"], name, f"{found[f'to_{other}']:.3f}", "-", "-"])
    run = shape["trainer"]
    outcome = run.get("left_out") or run.get("fails")
    if outcome is None:
        outcome = f"{run['to_non_private_as_expected']:.3f} ({run['fired_steps']} of {run['steps']} steps fired)"
    rows.append([shape["shape"], "privctl.train.methods.ferret at eps 0.5", outcome, "-", "-"])
    return rows
