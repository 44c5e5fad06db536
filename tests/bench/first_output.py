"""How long a new user waits for each job: to the first line it prints and to its end, on small data that is made here.

The unit is the start of Python with torch and transformers, which most jobs need. Data come in the forms that people
have: gzipped JSON lines, CSV, parquet, a folder that ``datasets`` saved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.common import ROOT, publish

BASE = "python -c 'import torch, transformers'"
_TRAIN = "--epochs 1 --batch-size 32 --device cpu"
#: What it does -> the command; {out} is a new folder in each round. Later ones use what earlier ones wrote.
JOBS = {
    "audit a language model, gzipped JSON lines": "audit gpt2 --members text.jsonl.gz --nonmembers others.jsonl.gz "
    "-o {out}/text.report.json",
    "audit an image classifier, datasets folder": "audit vit --members images --nonmembers others "
    "-o {out}/images.report.json",
    "plan a private training": "retrain dp-sgd gpt2 --data text.jsonl.gz --epsilon 8 --dry-run " + _TRAIN,
    "retrain dp-sgd, gzipped JSON lines": "retrain dp-sgd gpt2 --data text.jsonl.gz --epsilon 8 -o {out}/private "
    + _TRAIN,
    "retrain dp-sgd, images in parquet": "retrain dp-sgd vit --data images.parquet --epsilon 8 -o {out}/vit " + _TRAIN,
    "retrain dpquant, sentences in CSV": "retrain dpquant bert --data rows.csv --text-column sentence --format luq-fp4 "
    "--epsilon 8 -o {out}/quantized " + _TRAIN,
    "retrain ferret, gzipped JSON lines": "retrain ferret gpt2 --data text.jsonl.gz --release gaussian --epsilon 8 "
    "-o {out}/ferret " + _TRAIN,
    "retrain clipped, sentences in parquet": "retrain clipped bert --data rows.parquet --text-column sentence "
    "--optimizer sgd -o {out}/clipped " + _TRAIN,
    "retrain plain, datasets folder": "retrain plain vit --data images -o {out}/plain " + _TRAIN,
    "noise": "noise {out}/clipped --epsilon 8 -o {out}/noised",
    "account": "account --epsilon 8 --delta 1e-5 --dataset-size 2000 --batch-size 64 --epochs 3 --no-peers",
    "secrets scan, CSV": "secrets scan rows.csv --text-column sentence -o {out}/secrets.jsonl",
    "secrets plan": "secrets plan rows.csv --text-column sentence --secrets {out}/secrets.jsonl --steps 20 "
    "--batch-size 32 --cap sweep",
    "canary plant": "canary plant text.jsonl.gz -o {out}/planted.jsonl --count 40",
    "shadow, four models": "shadow gpt2 --data text.jsonl.gz --data others.jsonl.gz --count 4 -o {out}/shadows "
    + _TRAIN,
    "verify": "verify {out}/private",
    "gate": "gate {out}/private --max-epsilon 8",
    "report": "report {out}/private -o {out}/page.html",
    "sign: make a key": "sign --new-key {out}/me",
    "sign": "sign {out}/private --key {out}/me.key",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Measure and publish; ``--prepare`` only makes the data, in a process of its own."""
    if options.prepare:
        _make(Path(options.prepare))
        return
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (BASE, *JOBS)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare = [sys.executable, "-m", "tests.bench", "first-output", "--prepare", folder]
        subprocess.run(prepare, check=True, cwd=ROOT, capture_output=True)
        _timed([sys.executable, "-c", "import torch, transformers"], place)  # warms the page cache
        for number in range(options.rounds):
            (place / f"{number}").mkdir()
            times[BASE].append(_timed([sys.executable, "-c", "import torch, transformers"], place))
            for name, words in JOBS.items():
                call = [sys.executable, "-m", "privctl", *words.format(out=number).split()]
                times[name].append(_timed(call, place))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    data = {name: _summary(runs, times[BASE], JOBS.get(name)) for name, runs in times.items()}
    rows = [[name, f"{d['to_first']:.2f}", f"{d['to_end']:.2f}", f"{d['end_s']:.1f}"] for name, d in data.items()]
    headings = ["job", "first line / base", "end / base", "end, s"]
    publish("first-output", headings, rows, {"rounds": options.rounds, "base": BASE, "jobs": data}, options.output)


def _timed(call: list[str], folder: Path) -> tuple[float, float]:
    """Seconds to the first line on either stream, and to the end; RuntimeError with its output where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    process = subprocess.Popen(
        call, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    elapsed = time.perf_counter() - started
    rest = process.stdout.read()
    code = process.wait()
    ended = time.perf_counter() - started
    process.stdout.close()
    if code:
        raise RuntimeError(f"{' '.join(call[2:6])} ... ended with {code}: {(first + rest).decode()[-2000:]}")
    return (elapsed if first else ended), ended


def _summary(runs: list[tuple[float, float]], base: list[tuple[float, float]], words: str | None) -> dict[str, Any]:
    return {
        "command": words,
        "to_first": median(first / unit[1] for (first, _), unit in zip(runs, base, strict=True)),
        "to_end": median(end / unit[1] for (_, end), unit in zip(runs, base, strict=True)),
        "first_s": median(first for first, _ in runs),
        "end_s": median(end for _, end in runs),
        "seconds": runs,
    }


def _make(folder: Path) -> None:
    """Models with weights, and 400 records of each kind: half of them to train on, half of them others."""
    import csv
    import gzip
    import io
    import random

    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from PIL import Image
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
    )

    from tests.models.tasks.small import architecture, words

    torch.manual_seed(0)
    kinds = {
        "gpt2": AutoModelForCausalLM,
        "bert": AutoModelForSequenceClassification,
        "vit": AutoModelForImageClassification,
    }
    for kind, auto in kinds.items():
        architecture(folder / kind, kind, **({"image_size": 32, "num_labels": 10} if kind == "vit" else {}))
        auto.from_config(AutoConfig.from_pretrained(folder / kind)).save_pretrained(folder / kind)
        if kind != "vit":
            words().tokenizer.save_pretrained(folder / kind)
    drawn = random.Random(0)
    known = ["the", "cat", "sat", "on", "a", "mat", "dog", "old", "very"]
    texts = [" ".join(drawn.choices(known, k=12)) + f" {i}" for i in range(400)]
    for name, half in (("text", texts[:200]), ("others", texts[200:])):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as stream:
            stream.writelines(json.dumps({"text": text}) + "\n" for text in half)
    rows = [(f"{text} a{i}@example.org", i % 2) for i, text in enumerate(texts[:200])]
    with (folder / "rows.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("sentence", "label"), *rows])
    pq.write_table(pa.table({"sentence": [t for t, _ in rows], "label": [n for _, n in rows]}), folder / "rows.parquet")
    for name in ("images", "others"):
        pictures = []
        for _ in range(200):
            file = io.BytesIO()
            Image.frombytes("RGB", (32, 32), drawn.randbytes(3072)).save(file, "PNG")
            pictures.append({"bytes": file.getvalue(), "path": None})
        labels = [i % 10 for i in range(200)]
        table = pa.table({"img": pa.array(pictures), "label": labels})
        pq.write_table(table, folder / f"{name}.parquet")
        (folder / name).mkdir()
        with pa.OSFile(str(folder / name / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}], "_split": "train"}
        (folder / name / "state.json").write_text(json.dumps(state))
