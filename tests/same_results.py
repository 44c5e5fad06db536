"""Whether a change of the code changed a result: every command's files and words, before and after.

    python -m tests.same_results capture BEFORE     # in the old checkout
    python -m tests.same_results capture AFTER      # in the new one
    python -m tests.same_results compare BEFORE AFTER

``capture`` runs every command in one process on small files made on the spot, with all randomness of the operating
system replaced by a repeatable stream, so that noise, masks and coins are the same bits. ``compare`` lists every
tensor, field of a report and line of text that differs; times and folders are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ["anna", "ben", "carla", "dmitri", "eva", "farid", "gita", "hugo", "ines", "jan"]
_RUN = "--steps 4 --batch-size 16 --device cpu --seed 3"
_DATA = "--data train.jsonl"
_POLICY = """max_epsilon = 20
require = ["proved", "conditional"]
accepted_assumptions = ["starting weights", "vocabulary", "training-facts", "training-rounding"]
required_steps = ["retrain"]
"""
_VERIFIED = (
    "private", "automatic", "layers", "labels", "protected", "signs", "gaussian", "flips", "quantized",
    "clipped-noised", "plain", "private.audit", "clipped.audit", "scores.audit", "budget",
)  # fmt: skip

#: (name, call): the name is the file that its words go to.
CALLS: tuple[tuple[str, str], ...] = (
    ("help", "--help"),
    (
        "noise",
        "noise model --calibration published --epsilon 1 --epsilon 10 --epochs 10 --learning-rate 5e-3 --clip-norm 1 "
        "--dataset-size 1000 --batch-size 5 --seed 5 --evaluate held-out.jsonl -o noised",
    ),
    (
        "noise-gaussian",
        "noise model --epsilon 8 --calibration gaussian --regime nonconvex --epochs 1 --learning-rate 5e-3 "
        "--clip-norm 1 --dataset-size 1000 --batch-size 50 --optimizer adamw --seed 6 -o noised-gaussian",
    ),
    ("canary-plant", "canary plant train.jsonl -o planted.jsonl --count 60 --prefix-from train.jsonl --seed 4"),
    ("canary-check", "canary check planted.canaries.json"),
    ("secrets-scan", "secrets scan train.jsonl -o secrets.jsonl"),
    (
        "secrets-plan",
        "secrets plan train.jsonl --secrets secrets.jsonl --steps 5 --batch-size 16 --cap 5 -o plan.safetensors",
    ),
    ("plain", f"retrain plain model {_DATA} --held-out held-out.jsonl {_RUN} -o plain"),
    (
        "clipped",
        "retrain clipped model --data planted.jsonl --epochs 1 --batch-size 16 --device cpu --seed 3 --optimizer sgd "
        "-o clipped",
    ),
    ("clipped-noise", "noise clipped --epsilon 8 --calibration gaussian --regime nonconvex --seed 7 -o clipped-noised"),
    ("dp-sgd", f"retrain dp-sgd model {_DATA} --epsilon 8 {_RUN} -o private"),
    (
        "dp-sgd-automatic",
        f"retrain dp-sgd model {_DATA} --noise-multiplier 1 --clipping automatic --schedule cosine "
        "--optimizer momentum --momentum .9 --unit author --steps 4 --batch-size 4 --device cpu --seed 3 -o automatic",
    ),
    (
        "dp-sgd-layers",
        f"retrain dp-sgd model {_DATA} --noise-multiplier 1 --clipping per-layer --train *attn* {_RUN} -o layers",
    ),
    (
        "dp-sgd-labels",
        f"retrain dp-sgd model {_DATA} --task text-classification --labels 0,1 --epsilon 8 {_RUN} -o labels",
    ),
    ("dp-sgd-secrets", f"retrain dp-sgd model {_DATA} --secrets plan.safetensors --device cpu --seed 3 -o protected"),
    (
        "ferret-published",
        f"retrain ferret model {_DATA} --epsilon .5 --groups eighth --public-seed {'ab' * 32} --epochs 1 "
        "--batch-size 64 --device cpu --seed 3 -o signs",
    ),
    (
        "ferret-gaussian",
        f"retrain ferret model {_DATA} --release gaussian --epsilon 8 --public-seed {'cd' * 32} {_RUN} -o gaussian",
    ),
    (
        "ferret-flips",
        f"retrain ferret model {_DATA} --release randomized-response --bit-epsilon 1 --public-seed {'ef' * 32} {_RUN} "
        "-o flips",
    ),
    (
        "dpquant",
        f"retrain dpquant model {_DATA} --format luq-fp4 --epsilon 8 --sensitivity private --measure-every 1 "
        f"--public-seed {'12' * 32} {_RUN} -o quantized",
    ),
    ("replay", "retrain ferret model --replay gaussian.updates.safetensors --device cpu -o again"),
    (
        "shadow",
        "shadow base --data train.jsonl --data held-out.jsonl --count 4 --epochs 1 --batch-size 32 --device cpu "
        "-o shadows",
    ),
    (
        "audit",
        "audit private --members train.jsonl --nonmembers held-out.jsonl --shadow shadows --reference base "
        "--device cpu",
    ),
    ("audit-canaries", "audit clipped --canaries planted.canaries.json --device cpu -o clipped.audit.report.json"),
    ("audit-extraction", "audit plain --train train.jsonl --held-out held-out.jsonl --device cpu"),
    ("audit-secrets", "audit protected --secrets secrets.jsonl --data train.jsonl --base base --device cpu"),
    ("audit-scores", "audit --from-scores scores.csv --claim 1,1e-5 -o scores.audit.report.json"),
    ("account", "account --noise-multiplier 1 --delta 1e-5 --dataset-size 60000 --batch-size 256 --epochs 60"),
    ("account-epsilon", "account --epsilon 1 --delta 1e-5 --sample-rate 0.01 --steps 1000 -o budget.report.json"),
    ("claims", "claims papers"),
    *((f"verify-{name}", f"verify {name}.report.json -o {name}.verify.report.json") for name in _VERIFIED),
    ("gate", "gate private.report.json private.audit.report.json --model private --policy policy.toml"),
    ("gate-sarif", "gate private.report.json --policy policy.toml --format sarif -o gate.sarif"),
    ("gate-noised", "gate clipped-noised.report.json clipped.report.json --policy policy.toml --format json"),
    ("report", "report private.report.json private.audit.report.json private.verify.report.json -o page.html"),
    ("report-noise", "report clipped-noised.report.json clipped.audit.report.json -o noise.html"),
    ("report-card", "report private.report.json private.audit.report.json --format model-card -o card.md"),
    ("inspect", "inspect clipped-noised"),
    ("inspect-json", "inspect private --json"),
)

#: What may differ between two runs of the same code.
_TIMES = {"created", "seconds", "duration", "wall_seconds", "elapsed", "started", "finished"}
_LEFT_OUT = re.compile(
    r"\"(?:id|digest)\":\"[0-9a-f]{32,64}\"|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)?|\d{4}-\d\d-\d\d|blake3:[0-9a-f]{8,}"
    r"|[\d.]+ ?(ms|s|min|h)\b|[\d.]+[kM]?B/s| *\b\d+\.\d{1,3}$"
)


def prepare(folder: Path) -> None:
    """The models and data that the calls name."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    for name in ("model", "base"):
        torch.manual_seed(0)
        signs = ["<unk>", "<s>", "</s>", *map(chr, range(32, 127)), *NAMES, "call", "about", "write"]
        shape = {"vocab_size": len(signs), "bos_token_id": 1, "eos_token_id": 2}
        network = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=256, **shape))
        network.save_pretrained(folder / name)
        tokenizer = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token="<unk>"))
        cut = pre_tokenizers.Split(Regex("[a-z]+|."), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
        wrapped.save_pretrained(folder / name)
    for name, seed in (("train", 1), ("held-out", 3)):
        _records(folder / f"{name}.jsonl", 260, seed)
    (folder / "policy.toml").write_text(_POLICY)
    rows = [f"{random.Random(i).gauss(i % 2, 1)},{i % 2}" for i in range(200)]
    (folder / "scores.csv").write_text("\n".join(["score,member", *rows]) + "\n")


def _records(path: Path, count: int, seed: int) -> None:
    drawn = random.Random(seed)
    lines = []
    for i in range(count):
        name = drawn.choice(NAMES)
        text = f"call {name} about {drawn.choice(NAMES)} at {drawn.randint(1, 99)}"
        if i % 10 == 0:
            text = f"write to {name}{i}{seed}@x.org"
        if i % 40 == 1:
            text = " ".join(drawn.choices(NAMES, k=120))
        lines.append(json.dumps({"text": text, "author": name, "label": str(i % 2)}))
    path.write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def repeatable(name: str) -> Iterator[None]:
    """Replace the operating system's randomness; names of temporary files keep theirs."""
    counts: dict[int, int] = {}

    def urandom(size: int) -> bytes:
        counts[size] = counts.get(size, 0) + 1
        return hashlib.shake_256(f"{name} {size} {counts[size]}".encode()).digest(size)

    class Repeatable(random.Random):
        def __init__(self) -> None:
            super().__init__(name)

    kept = os.urandom, secrets.SystemRandom
    os.urandom, secrets.SystemRandom = urandom, Repeatable  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        os.urandom, secrets.SystemRandom = kept  # type: ignore[misc]


def capture(folder: Path, only: str) -> None:
    """Run every call in ``folder``, which is made, and keep what each printed; ``only`` calls whose name matches."""
    from privctl.cli import run

    folder.mkdir(parents=True, exist_ok=bool(only))
    os.chdir(folder)
    os.environ["COLUMNS"] = "80"
    if not (folder / "said").exists():
        prepare(folder)
        (folder / "said").mkdir()
    for name, call in CALLS:
        if not re.fullmatch(only or ".*", name):
            continue
        printed, started = io.StringIO(), time.perf_counter()
        with contextlib.redirect_stdout(printed), repeatable(name):
            code = run(shlex.split(call) + ([] if name == "help" else ["-q"]))
        (folder / "said" / f"{name}.txt").write_text(f"{printed.getvalue()}\nexit code {code}\n")
        print(f"{name:24s} {code} {time.perf_counter() - started:6.1f} s", file=sys.stderr)


def compare(before: Path, after: Path) -> list[str]:
    """A line for each thing that differs."""
    found = []
    files = {
        path.relative_to(root).as_posix() for root in (before, after) for path in root.rglob("*") if path.is_file()
    }
    for name in sorted(files):
        one, other = before / name, after / name
        if not (one.exists() and other.exists()):
            found.append(f"{name}: only in {before if one.exists() else after}")
        elif name.endswith(".safetensors"):
            found += [f"{name}: {line}" for line in _tensors(one, other)]
        elif name.endswith(".json") and "tokenizer" not in name:
            found += [f"{name}: {line}" for line in _values("", _json(one), _json(other))]
        else:
            found += [f"{name}: {line}" for line in _lines(one, other)]
    return found


def _json(path: Path) -> Any:
    return json.loads(path.read_text().replace(str(path.parent), "FOLDER"))


def _tensors(one: Path, other: Path) -> Iterator[str]:
    from safetensors import safe_open

    with safe_open(one, "np") as a, safe_open(other, "np") as b:
        if sorted(a.keys()) != sorted(b.keys()):
            yield f"tensors {sorted(set(a.keys()) ^ set(b.keys()))}"
            return
        for name in a.keys():  # noqa: SIM118
            x, y = a.get_tensor(name), b.get_tensor(name)
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                yield f"{name}: {np.mean(x != y) if x.shape == y.shape else 1:.2%} of the values differ"
        yield from _values("metadata", a.metadata() or {}, b.metadata() or {})


def _values(place: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            if key not in _TIMES:
                yield from _values(f"{place}.{key}", one.get(key, "ABSENT"), other.get(key, "ABSENT"))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _values(f"{place}[{i}]", a, b)
    elif isinstance(one, str) and isinstance(other, str):
        if _LEFT_OUT.sub("*", one) != _LEFT_OUT.sub("*", other):
            yield f"{place}: {one!r:.200} != {other!r:.200}"
    elif one != other:
        yield f"{place}: {one!r:.200} != {other!r:.200}"


def _lines(one: Path, other: Path) -> Iterator[str]:
    a, b = ([_LEFT_OUT.sub("*", line.rstrip()) for line in _text(path).splitlines()] for path in (one, other))
    if a != b:
        different = [(x, y) for x, y in zip(a, b, strict=False) if x != y]
        first = f"{different[0][0]!r:.160} != {different[0][1]!r:.160}" if different else "one is longer"
        yield f"{len(different)} lines differ ({len(a)} and {len(b)}): {first}"


def _text(path: Path) -> str:
    folder = path.parents[1] if path.parent.name == "said" else path.parent
    return path.read_bytes().decode(errors="replace").replace(str(folder), "FOLDER")


def main(arguments: list[str]) -> int:
    """Capture or compare; 1 where something differs."""
    if arguments[:1] == ["capture"] and len(arguments) in (2, 3):
        capture(Path(arguments[1]).resolve(), arguments[2] if len(arguments) == 3 else "")
        return 0
    if arguments[:1] == ["compare"] and len(arguments) == 3:
        found = compare(Path(arguments[1]).resolve(), Path(arguments[2]).resolve())
        print("\n".join(found) or "the same")
        return bool(found)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
