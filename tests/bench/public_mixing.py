"""Private fine-tuning with public records of a near domain: mixed into each step, trained on before, both, or alone.

The model is pretrained here on programs. Private are tldr-pages of single systems, public those of commands that all
systems have. Every way that uses public records computes as many of their gradients. Learning rates and weights are
chosen, for each way and epsilon, by runs on a seed that the comparison does not use; no epsilon counts that choice. A
seed decides on the batches and on the noise, which all ways of one seed and epsilon share. Results are written after
every run, and a stopped bench goes on where it was stopped.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import RESULTS, publish, save
from tests.bench.finetune import paired, spread
from tests.bench.finetune_cells import DELTA, MAX_LENGTH, coins, losses_of, remove
from tests.bench.finetune_model import Size, available, pretrain, texts_by_domain

if TYPE_CHECKING:
    import argparse

    from privctl.train.settings.request import RetrainRequest

_TUNING_SEED = 1000
PRIVATE, PUBLIC, HELD_OUT = 1000, 1000, 300
BATCH, EPOCHS = 128, 3
SIZE = Size(layers=2, width=64, heads=4, vocabulary=1024, positions=48, pretraining_tokens=750_000)
EPSILONS = (8.0, 2.0)
HEADINGS = (
    "epsilon", "training", "seeds", "weight", "held-out loss, nats", "loss minus that of dp-sgd, 95 % interval",
    "minus that of public first",
)  # fmt: skip
ALONE, MIXED, FIRST = "dp-sgd", "dp-sgd, public mixed in", "public first, then dp-sgd"
BOTH = "public first, then dp-sgd, public mixed in"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How public records take part: in so many ``passes`` before, in ``batch`` of them a step; where tuning begins."""

    passes: int = 0
    batch: int = 0
    rate: float
    weight: float = 0.0


#: Each that uses public records goes through them three times: 24 steps of 128 are three passes, of 42 one.
WAYS = {
    ALONE: Way(rate=4e-3),
    MIXED: Way(batch=BATCH, rate=4e-3, weight=1.0),
    FIRST: Way(passes=3, rate=2e-3),
    BOTH: Way(passes=2, batch=42, rate=2e-3, weight=1.0),
}
_PASSES = 3


def _only(passes: int) -> str:
    """The name of training on public records alone."""
    return "public only" if passes == _PASSES else f"public only, {passes} of its {_PASSES} passes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Files of records and the pretrained model in a folder."""

    folder: Path

    def file(self, name: str) -> Path:
        """The records called ``name``."""
        return self.folder / f"{name}.jsonl"

    @property
    def model(self) -> Path:
        """The pretrained model."""
        return self.folder / "model"

    def prepare(self) -> Row:
        """Write records, and pretrain unless that was done; returns what was done then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found, facts = texts_by_domain(random.Random(0)), self.folder / "facts.json"
        random.Random(1).shuffle(found.common)
        random.Random(2).shuffle(found.programs)
        lists = {
            "held-out": found.single[:HELD_OUT],
            "private": found.single[HELD_OUT : HELD_OUT + PRIVATE],
            "public": found.common[:PUBLIC],
        }
        for name, texts in lists.items():
            self.file(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        if not facts.is_file():
            facts.write_text(json.dumps(pretrain(SIZE, found.programs, self.model, found.common[:PUBLIC])))
        stored: Row = json.loads(facts.read_text())
        return stored


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, action="append", choices=EPSILONS, help="repeatable; default: both")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="repeatable; default: all")
    parser.add_argument("--folder", type=Path, required=True, help="where models are kept between runs")


def main(options: argparse.Namespace) -> None:
    """Pretrain, tune, train and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    if not available():
        raise SystemExit("the text of ../shared/data is not there")
    path = Path(options.output) if options.output else RESULTS / "public-mixing.json"
    found: Row = json.loads(path.read_text()) if path.is_file() else {"runs": [], "chosen": {}}
    found = {name: value for name, value in found.items() if name not in ("bench", "machine")}
    place = Place(folder=options.folder)
    settings = {"private": PRIVATE, "public": PUBLIC, "held_out": HELD_OUT, "batch": BATCH, "epochs": EPOCHS}
    found |= {"pretraining": place.prepare(), **settings, "passes": _PASSES, "delta": DELTA, "threads": 1}
    bench = _Bench(place, found, options.output)
    only, _ = bench.tuned(_only(_PASSES), None, (2e-3, 0.0))
    for seed in range(options.seeds):
        bench.only(only, seed)
    # One of these for all private runs that begin with it: its own spread is that of public only. Two passes are its
    # first two, because the learning rate is constant and the order of the records follows from the seed.
    starts = {variant.passes: bench.only(only, 0, variant.passes) for variant in WAYS.values() if variant.passes}
    chosen, ways = {name: (variant.rate, variant.weight) for name, variant in WAYS.items()}, options.way or list(WAYS)
    for epsilon in options.epsilon or EPSILONS:  # each begins where the last one ended
        for variant in ways:
            chosen[variant] = bench.tuned(variant, epsilon, chosen[variant], starts)
        for seed in range(options.seeds):
            for variant in ways:
                bench.private(variant, epsilon, *chosen[variant], seed, starts)
    publish("public-mixing", HEADINGS, rows(found), found, options.output)


class _Bench:
    """Runs what ``found`` has not yet."""

    def __init__(self, place: Place, found: Row, output: str | None) -> None:
        self.place, self.found, self.output = place, found, output

    def tuned(
        self, variant: str, epsilon: float | None, begin: tuple[float, float], starts: Mapping[int, Path] | None = None
    ) -> tuple[float, float]:
        """Rate, in steps of factor 2, and weight, of factor 4, of least loss on the tuning seed."""
        tried: dict[tuple[float, float], float] = {}

        def loss(at: tuple[float, float]) -> float:
            if at not in tried:
                if epsilon is None or starts is None:
                    self.only(at[0], _TUNING_SEED)
                    run = self._known(variant, None, *at, _TUNING_SEED)
                else:
                    run = self.private(variant, epsilon, *at, _TUNING_SEED, starts)
                assert run is not None
                tried[at] = run["loss"]
            return tried[at]

        best = begin
        while True:
            rate, weight = best
            near = [(2 * rate, weight), (rate / 2, weight)]
            near += [(rate, 4 * weight), (rate, weight / 4)] if weight else []
            better = min((best, *near), key=loss)
            if better == best:
                break
            best = better
        self.found["chosen"][f"{variant}, {epsilon}"] = best
        return best

    def only(self, rate: float, seed: int, passes: int = _PASSES) -> Path:
        """Train on public records alone, without privacy; returns the model."""
        output = self.place.folder / f"public-{passes}-{rate:g}-seed-{seed:04}"
        if self._known(_only(passes), None, rate, 0.0, seed) is None or not output.is_dir():
            remove(output)
            request = self._request("plain", self.place.model, rate, seed, output, epochs=passes)
            self._run(request, _only(passes), None, 0.0)
        return output

    def private(
        self, name: str, epsilon: float, rate: float, weight: float, seed: int, starts: Mapping[int, Path]
    ) -> Row:
        """Train by one of ``WAYS``, from the model of ``starts`` that its passes over public records left."""
        if (known := self._known(name, epsilon, rate, weight, seed)) is not None:
            return known
        variant, output = WAYS[name], self.place.folder / f"trained-{epsilon:g}"
        start = starts[variant.passes] if variant.passes else self.place.model
        remove(output)
        public = (weight, variant.batch) if variant.batch else None
        request = self._request("dp-sgd", start, rate, seed, output, epsilon, public, epochs=EPOCHS)
        run = self._run(request, name, epsilon, weight)
        remove(output)
        return run

    def _known(self, variant: str, epsilon: float | None, rate: float, weight: float, seed: int) -> Row | None:
        key = {"way": variant, "epsilon": epsilon, "learning_rate": rate, "weight": weight, "seed": seed}
        return next((run for run in self.found["runs"] if all(run[n] == v for n, v in key.items())), None)

    def _run(self, request: RetrainRequest, variant: str, epsilon: float | None, weight: float) -> Row:
        from privctl.train.preparation.prepare import prepare
        from privctl.train.run import run_training
        from privctl.train.settings.session import Session

        began = time.process_time()
        with coins(request.seed):
            report = run_training(prepare(request), Session())
        assert report is not None
        noise = report.parameters["noise_multiplier"]
        run = {
            "way": variant, "epsilon": epsilon, "learning_rate": request.learning_rate, "weight": weight,
            "seed": request.seed, **losses_of(report), "noise_multiplier": noise,
            "seconds": time.process_time() - began,
        }  # fmt: skip
        if (known := self._known(variant, epsilon, request.learning_rate, weight, request.seed)) is not None:
            return known
        self.found["runs"].append(run)
        save("public-mixing", self.found, self.output)
        print({name: value for name, value in run.items() if name != "epochs"}, file=sys.stderr, flush=True)
        return run

    def _request(
        self, method: str, start: Path, rate: float, seed: int, output: Path, epsilon: float | None = None,
        public: tuple[float, int] | None = None, *, epochs: int,
    ) -> RetrainRequest:  # fmt: skip
        from privctl.models.choices import LongTextPolicy
        from privctl.train.methods import method_named
        from privctl.train.settings.request import (
            BudgetRequest,
            DataRequest,
            ModelRequest,
            PublicRequest,
            RetrainRequest,
        )

        private, file = epsilon is not None, self.place.file
        return RetrainRequest(
            method=method_named(method),
            model=ModelRequest(path=start),
            data=DataRequest(
                train=file("private" if private else "public"), held_out=file("held-out"),
                long=LongTextPolicy.TRUNCATE, max_length=MAX_LENGTH,
            ),
            budget=BudgetRequest(epsilon=epsilon, delta=DELTA if private else None),
            public=PublicRequest(data=file("public"), weight=public[0], batch_size=public[1]) if public else None,
            output=output, epochs=epochs, batch_size=BATCH if private else 64,
            learning_rate=rate, micro_examples=128, micro_tokens=4096, seed=seed, device="cpu", force=True,
        )  # fmt: skip


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    """A line for each epsilon and way: means +- standard errors, and paired differences from two of them."""
    lines = [_row(found, None, _only(passes)) for passes in (_PASSES, _PASSES - 1)]
    return lines + [_row(found, epsilon, variant) for epsilon in EPSILONS for variant in WAYS]


def _row(found: Mapping[str, Any], epsilon: float | None, variant: str) -> list[str]:
    runs = _of(found, epsilon, variant)
    weight = found["chosen"].get(f"{variant}, {epsilon}", (0, 0))[1]
    return [
        "-" if epsilon is None else f"{epsilon:g}", variant, str(len(runs)), f"{weight:g}" if weight else "-",
        spread(list(runs.values())), _against(found, epsilon, variant, ALONE), _against(found, epsilon, variant, FIRST),
    ]  # fmt: skip


def _against(found: Mapping[str, Any], epsilon: float | None, variant: str, other: str) -> str:
    if variant == other:
        return "-"
    base = _of(found, epsilon, other)
    return paired([loss - base[seed] for seed, loss in _of(found, epsilon, variant).items() if seed in base]) or "-"


def _of(found: Mapping[str, Any], epsilon: float | None, variant: str) -> Mapping[int, float]:
    """Losses by seed, with the settings that were chosen."""
    named = _only(_PASSES) if epsilon is None else variant
    chosen: Sequence[float] = found["chosen"].get(f"{named}, {epsilon}", (0, 0))
    return {
        run["seed"]: run["loss"]
        for run in found["runs"]
        if (run["way"], run["epsilon"]) == (variant, epsilon)
        and (run["learning_rate"], run["weight"]) == tuple(chosen)
        and run["seed"] != _TUNING_SEED
    }
