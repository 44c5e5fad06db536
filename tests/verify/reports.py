"""Genuine reports of every kind, made by the real commands on tiny models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privctl.cli import run
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import SafetensorsFile
from tests.models.tasks.small import architecture, words

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
_PLANS = {
    "plan": ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "300", "--prior", "0.01"],
    "plan of passes": ["--noise-multiplier", "9", "--sample-rate", "0.01", "--steps", "1000", "--batches", "shuffled"],
    "plan of fixed batches": [
        "--noise-multiplier", "2", "--sample-rate", "0.01", "--steps", "200", "--batches", "fixed-size",
    ],
    "plan of laplace": ["--mechanism", "laplace", "--scale", "3", "--sample-rate", "0.1", "--steps", "50"],
    "plan of signs": ["--mechanism", "ferret", "--epsilon", "0.5", "--groups", "2", "--sample-rate", "0.005",
                      "--steps", "1000"],
    "plan of a secret": ["--mechanism", "secret", "--posterior", "0.1", "--prior", "0.001", "--record", "0.01x5",
                         "--steps", "500"],
}  # fmt: skip
_METHODS = {
    "dp-sgd": ["--epsilon", "3"],
    "dp-zo": ["--epsilon", "3", "--directions", "2", "--epochs", "1"],
    "dpquant": ["--epsilon", "3", "--format", "luq-fp4", "--sensitivity", "private"],
}
_RELEASES = {
    "published": ["--epsilon", "0.5", "--epochs", "10"],
    "gaussian": ["--release", "gaussian", "--groups", "4", "--epsilon", "3", "--epochs", "6"],
    "responses": ["--release", "randomized-response", "--groups", "eighth", "--epsilon", "3", "--epochs", "6"],
    "dithered": ["--dither", "6", "--groups", "2", "--epsilon", "2", "--epochs", "10"],
}

#: Of trainings on a drawn split, what its coins were tossed for; and the options.
_FURTHER: dict[str, tuple[str | None, list[str]]] = {
    "cut batches": (None, ["--batch-size", "12", "--epochs", "1", "--largest-batch", "16"]),
    "several records a draw": (
        "user",
        ["--batch-size", "5", "--epochs", "1", "--unit", "user", "--records-per-draw", "2"],
    ),
    "several users a record": (
        None,
        ["--batch-size", "6", "--epochs", "1", "--unit", "user", "--shared-records", "greedy",
         "--max-records-per-user", "3"],
    ),
    "search": (
        None,
        ["--batch-size", "30", "--epochs", "1", "--held-out", "HELD-OUT", "--search", "learning-rate=1e-3,1e-2",
         "--expected-runs", "1.5"],
    ),
}  # fmt: skip


def noise(folder: Path, write_model: Callable[..., Path], *more: str) -> Path:
    """A noised file of four tensors, one of them of integers; returns its report, the first of several.

    The noise is the published formula's unless ``more`` names a calibration.
    """
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((80, 30)).astype(np.float32) for name in ("first", "second", "third")}
    model = write_model(folder / "m.safetensors", {**weights, "ids": np.arange(5)})
    more = more if "--calibration" in more else ("--calibration", "published", *more)
    assert run(["noise", str(model), "-q", "--smoothness", "1", "--strong-convexity", "0.1", *FACTS, *more]) == 0
    return min(folder.glob("m.*.report.json"))


def plan(folder: Path, kind: str) -> Path:
    """A plan of ``privctl account``."""
    path = folder / f"{kind.replace(' ', '-')}.report.json"
    assert run(["account", "--delta", "1e-5", *_PLANS[kind], "--json", "-q", "-o", str(path)]) == 0
    return path


def trained(folder: Path, kind: str) -> Path:
    """A report of a tiny training."""
    start, data = _start(folder), texts(folder / "train.jsonl")
    method, *release = kind.split()
    more = _RELEASES[" ".join(release)] if method == "ferret" else _METHODS.get(kind, [])
    output = folder / kind.replace(" ", "-")
    return _retrained(method, start, data, output, "--batch-size", "12", "--epochs", "2", *more)


def protected(folder: Path) -> tuple[Path, Path, Path]:
    """Reports of a book of secrets, of a plan of their protection, and of a training that followed it."""
    data = texts(folder / "contacts.jsonl", secrets=True)
    book, plan = folder / "secrets.jsonl", folder / "protection.safetensors"
    _done("secrets", "scan", data, "-o", book, "-q")
    asked = ["--steps", "8", "--batch-size", "6", "--cap", "5", "--prior", "0.01", "--posterior", "0.2"]
    _done("secrets", "plan", data, "--secrets", book, *asked, "-o", plan, "-q")
    model = _retrained("dp-sgd", _start(folder), data, folder / "planned", "--secrets", plan)
    return report_of(book), report_of(plan), model


def audited(folder: Path) -> Path:
    """Membership and extraction, of the model that ``trained`` made by dp-sgd."""
    others, report = texts(folder / "others.jsonl", seed=1), folder / "model.audit.report.json"
    looked = ["--members", folder / "train.jsonl", "--nonmembers", others, "--attack", "loss", "--attack", "zlib"]
    parts = ["--train", folder / "train.jsonl", "--held-out", others, "--prefix-tokens", "2", "--suffix-tokens", "2"]
    _done("audit", folder / "dp-sgd", *looked, *parts, "--device", "cpu", "-q", "-o", report)
    return report


def of_canaries(folder: Path) -> Path:
    """An audit of canaries, of a model that was trained on them by dp-sgd."""
    planted, report = folder / "planted.jsonl", folder / "canaries.audit.report.json"
    known = ["--kind", "tokens", "--tokenizer", _start(folder), "--length", "4"]
    _done("canary", "plant", texts(folder / "train.jsonl"), "-o", planted, "--count", "30", *known, "-q")
    _retrained("dp-sgd", _start(folder), planted, folder / "with-canaries", "--epochs", "1", "--epsilon", "3")
    asked = ["--canaries", folder / "planted.canaries.json", "--references", "40"]
    _done("audit", folder / "with-canaries", *asked, "--device", "cpu", "-q", "-o", report)
    return report


def mixed(folder: Path) -> Path:
    """A report of a tiny training by dp-sgd that mixed public records in."""
    public = folder / "public.jsonl"
    public.write_text("".join(json.dumps({"text": f"a very old mat {i}"}) + "\n" for i in range(20)))
    asked = ["--batch-size", "12", "--epochs", "1", "--epsilon", "3", "--public", public, "--public-weight", "0.5"]
    return _retrained("dp-sgd", _start(folder), texts(folder / "train.jsonl"), folder / "mixed", *asked)


def further(folder: Path, kind: str) -> Path:
    """A report of a tiny training by dp-sgd with options that change what is promised; two are on a drawn split."""
    by, more = _FURTHER[kind]
    data = folder / "shared.jsonl"
    if kind == "several users a record":
        texts(data, users=lambda i: [f"u{i % 20}", f"u{i * 7 % 19}"] if i % 2 else f"u{i % 20}")
    else:
        data = drawn(folder, by).with_name("members.jsonl")
    others = texts(folder / "others.jsonl", seed=1)
    options = [str(others) if each == "HELD-OUT" else each for each in more]
    return _retrained("dp-sgd", _start(folder), data, folder / kind.replace(" ", "-"), "--epsilon", "3", *options)


def drawn(folder: Path, by: str | None) -> Path:
    """The manifest of a split of 120 texts, three to a user."""
    whole, output = folder / "whole.jsonl", folder / f"split-{by}"
    if not output.is_dir():
        grouped = () if by is None else ("--group-by", by)
        _done(
            "audit",
            "split",
            texts(whole, count=120, seed=2, users=lambda i: f"u{i // 3}"),
            "-o",
            output,
            "-q",
            *grouped,
        )
    return output / "manifest.json"


def of_split(folder: Path, kind: str) -> Path:
    """The audit of the drawn split that the model of ``further`` was trained on."""
    name = kind.replace(" ", "-")
    report = folder / f"{name}.audit.report.json"
    asked = ["--split", drawn(folder, _FURTHER[kind][0]), "--attack", "loss"]
    _done("audit", folder / name, *asked, "--device", "cpu", "-q", "-o", report)
    return report


def extracted(folder: Path, kind: str) -> Path:
    """The extraction audit of that split."""
    name = kind.replace(" ", "-")
    report = folder / f"{name}.extraction.report.json"
    asked = ["--split", drawn(folder, _FURTHER[kind][0]), "--prefix-tokens", "3", "--suffix-tokens", "3"]
    asked += ["--log", folder / f"{name}.extraction.log"]
    _done("audit", "extraction", folder / name, *asked, "--device", "cpu", "-q", "-o", report)
    return report


def noised(folder: Path) -> Path:
    """Noise on the model that ``trained`` clipped, whose report has the facts."""
    _done("noise", folder / "clipped", "--epsilon", "1", "--calibration", "published", "-o", folder / "noised", "-q")
    return folder / "noised.report.json"


def texts(
    path: Path,
    *,
    seed: int = 0,
    secrets: bool = False,
    count: int = 60,
    users: Callable[[int], str | list[str]] | None = None,
) -> Path:
    """Short texts, some of them with addresses, and the users of each by its number."""
    if not path.is_file():
        drawn = random.Random(seed)
        lines = [" ".join(drawn.choices(_WORDS, k=drawn.randint(2, 9))) for _ in range(count)]
        if count > 60:
            lines = [f"{line} {i}" for i, line in enumerate(lines)]  # in a drawn split no text may stand twice
        if secrets:
            lines = [f"{line} cat{i % 4}@mat.example" if i < 12 else line for i, line in enumerate(lines)]
        owned: list[dict[str, Any]] = [{} if users is None else {"user": users(i)} for i in range(count)]
        path.write_text("".join(json.dumps({"text": line, **owned[i]}) + "\n" for i, line in enumerate(lines)))
    return path


def report_of(output: Path) -> Path:
    """Where the report of a book, a plan or a model's folder lies."""
    return output.with_name(output.stem + ".report.json")


def _start(folder: Path) -> Path:
    start = folder / "start"
    if not start.is_dir():
        words().tokenizer.save_pretrained(architecture(start, "gpt2"))
    return start


def _retrained(method: str, start: Path, data: Path, output: Path, *more: object) -> Path:
    usual = ("--micro-tokens", "160", "--device", "cpu", "-q")
    _done("retrain", method, start, "--data", data, "-o", output, *usual, *more)
    return report_of(output)


def _done(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0, arguments


PLANS = tuple(_PLANS)
#: Verifying a search takes seconds.
FURTHER = tuple(kind for kind in _FURTHER if kind != "search")
TRAININGS = ("dp-sgd", "dp-zo", "clipped", "dpquant", *(f"ferret {release}" for release in _RELEASES))


def redigest(report: Path, place: Path) -> None:
    """State the digests and the size of the weights in ``place``, as they are now, in a ``report`` on that model."""
    data = json.loads(report.read_text())
    (artifact,) = [each for each in data["outputs"] if each["role"] == "model"]
    with SafetensorsFile(place) as file:
        hashed = hash_tensors(file)
    artifact |= {"digest": hashed.file_digest, "bytes": place.stat().st_size}
    digests = {tensor.name: tensor.digest for tensor in hashed.tensors}
    artifact["tensors"] = [{**each, "digest": digests[each["name"]]} for each in artifact["tensors"]]
    report.write_text(json.dumps(data))
