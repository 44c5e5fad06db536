"""Scoring texts and finding extracted ones: time against other ways, agreement with them, and memory.

The ways take turns in one process, on one thread; ratios are between processor times of the same round. Peak memory is
measured in a fresh process for each way, forked from one that has loaded the libraries.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import count_what_is_held, forget_peak, forked, publish, status_mib

if TYPE_CHECKING:
    from privctl.models.language import LanguageModel

Result = dict[str, Any]

#: Share of the texts that greedy decoding gives.
MATCHING = {"few matching": 1 / 16, "many matching": 1.0}
#: (vocabulary, tokens a text) whose product grows sixteenfold.
SIZES = ((16_384, 128), (16_384, 512), (65_536, 128), (65_536, 512))


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=160, help="texts of 16 to 64 tokens to score")
    parser.add_argument("--windows", type=int, default=128, help="texts of 50 + 50 tokens to extract")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from tests.bench import audit_ways as ways

    torch.set_num_threads(1)
    shape = {"layers": 4, "width": 256, "vocabulary": 16_384}
    model = ways.random_model(**shape, context=128)
    rows = ways.random_rows(model, options.texts, 16, 64)
    tokens = sum(len(row) - 1 for row in rows)
    print("scoring", file=sys.stderr, flush=True)
    scoring = _timed(
        {name: lambda way=variant: way(model, rows) for name, variant in ways.SCORING.items()}, options.rounds
    )
    _relate(scoring, "privctl", tokens)
    extraction = {name: _extraction(model, share, options) for name, share in MATCHING.items()}
    print("memory", file=sys.stderr, flush=True)
    memory = [_memory(vocabulary, length) for vocabulary, length in SIZES]
    data = {
        "rounds": options.rounds, "threads": 1, "precision": "float32", "model": shape,
        "scoring": {"texts": options.texts, "tokens": tokens, "ways": scoring},
        "extraction": {"windows": options.windows, "prefix": 50, "suffix": 50, **extraction},
        "memory": memory,
    }  # fmt: skip
    headings = ["what", "way", "median s", "tokens/s", "ratio", "spread", "agreement"]
    publish("audit", headings, _rows(data), data, options.output)


def _extraction(model: LanguageModel, share: float, options: argparse.Namespace) -> Result:
    from tests.bench import audit_ways as ways

    print(f"extraction, {share:g} matching", file=sys.stderr, flush=True)
    rows = ways.windows(model, options.windows, 50, 50, share)
    found = _timed(
        {name: lambda way=variant: way(model, rows, 50) for name, variant in ways.EXTRACTION.items()}, options.rounds
    )
    expected = found["generate and compare"].pop("value")
    for name, each in found.items():
        each["to_generate"] = _ratios(each, found["generate and compare"])
        if name != "generate and compare":
            each["other_verdicts"] = int((each.pop("value") != expected).sum())
    return {"matching": int(expected.sum()), "ways": found}


def _timed(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Result]:
    """Every way once a round, each round beginning with the next one, after a round that warms them."""
    names = list(variants)
    found: dict[str, Result] = {name: {"seconds": [], "processor_seconds": []} for name in names}
    for i in range(-1, rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            started, used = time.perf_counter(), time.process_time()
            value = variants[name]()
            if i < 0:
                found[name]["value"] = value
            else:
                found[name]["seconds"].append(time.perf_counter() - started)
                found[name]["processor_seconds"].append(time.process_time() - used)
    return found


def _ratios(each: Result, base: Result) -> Result:
    """Of processor time in the same round: what other processes took is not in it."""
    pairs = zip(each["processor_seconds"], base["processor_seconds"], strict=True)
    ratios = [a / b for a, b in pairs]
    return {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


def _relate(found: dict[str, Result], ours: str, tokens: int) -> None:
    """How many times faster ``ours`` is, and how far its scores are from the others'."""
    expected = found[ours].pop("value")
    for name, each in found.items():
        each["tokens_per_s"] = tokens / median(each["processor_seconds"])
        if name != ours:
            each["times_ours"] = _ratios(each, found[ours])
            each["furthest"] = [float(x) for x in abs(each.pop("value") - expected).max(axis=1)]


def _memory(vocabulary: int, length: int) -> Result:
    """The most memory that scoring 32 texts takes above the model's own, in MiB, by way."""
    from tests.bench import audit_ways as ways

    found: Result = {"vocabulary": vocabulary, "tokens": length, "logits_mib": vocabulary * length * 4 / 2**20}
    for name in ("one text at a time, shared", "privctl"):

        def measured(name: str = name) -> Result:
            count_what_is_held()
            model = ways.random_model(layers=1, width=64, vocabulary=vocabulary, context=length)
            rows = ways.random_rows(model, 32, length, length)
            ways.SCORING[name](model, rows[:1])
            gc.collect()
            before = status_mib("VmRSS")
            forget_peak()
            ways.SCORING[name](model, rows)
            return {"peak_mib": status_mib("VmHWM") - before}

        found[name] = forked(measured)
    return found


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, each in data["scoring"]["ways"].items():
        times = each.get("times_ours")
        rows.append([
            "scoring", name, f"{median(each['seconds']):.2f}", f"{each['tokens_per_s']:.0f}",
            f"{times['median']:.2f} x ours" if times else "", _spread(times),
            f"within {max(each['furthest']):.1e}" if times else "",
        ])  # fmt: skip
    for title in MATCHING:
        for name, each in data["extraction"][title]["ways"].items():
            wrong = each.get("other_verdicts")
            rows.append([
                title, name, f"{median(each['seconds']):.2f}", "", f"{each['to_generate']['median']:.2f} of generate",
                _spread(each["to_generate"]), "" if wrong is None else f"{wrong} other verdicts",
            ])  # fmt: skip
    for each in data["memory"]:
        what = f"V {each['vocabulary']}, T {each['tokens']}"
        for name in ("one text at a time, shared", "privctl"):
            found = each[name]
            memory = f"{found['peak_mib']:.0f} MiB above the model" if "peak_mib" in found else found["fails"]
            rows.append([what, name, "", "", memory, f"one text's logits {each['logits_mib']:.0f} MiB", ""])
    return rows


def _spread(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['min']:.2f} to {ratio['max']:.2f}" if ratio else ""
