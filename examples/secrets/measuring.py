"""Plan, train and attack by privctl's commands, and read the results from their reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.harness import commands
from examples.harness.commands import remove_model
from examples.harness.results import Row, write_jsonl, write_lines
from examples.secrets.settings import PLAIN, UNIFORM, Extraction, Weights
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Guarantee, Notion
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report

#: The posterior for which the second experiment reports the least noise.
POSTERIOR = 0.1


def command(*arguments: str) -> dict[str, Any]:
    """Run a privctl command and return the JSON that it prints."""
    return commands.command(*arguments).answer


# The first experiment


def prepare_weights(settings: Weights, folder: Path, private: Sequence[str], test: Sequence[str]) -> Row:
    """Write the records and the architecture, find the secrets, and sweep the caps. Returns counts and the caps."""
    write_jsonl(folder / "private.jsonl", ({"text": text} for text in private))
    write_jsonl(folder / "test.jsonl", ({"text": text} for text in test))
    (folder / "model").mkdir(exist_ok=True)
    write_lines(folder / "model" / "config.json", [json.dumps(_bert(settings))])
    command(
        *("secrets", "scan", str(folder / "private.jsonl"), "-o", str(folder / "rare.jsonl"), "--force"),
        *("--kinds", "none", "--rare-words", str(settings.most), "--rare-least", str(settings.least)),
    )
    sweep = command(*_plan(settings, folder), "--cap", "sweep")["parameters"]
    return {
        "secrets": sweep["secrets"],
        "memberships": sweep["memberships"],
        "records_with_a_secret": sweep["records_with_a_secret"],
        "largest_secret": sweep["largest_secret"],
        "caps": sweep["caps"],
    }


def _bert(settings: Weights) -> dict[str, Any]:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_size": settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": 4,
        "intermediate_size": 4 * settings.hidden,
        "max_position_embeddings": 128,
        "vocab_size": settings.vocabulary,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _plan(settings: Weights, folder: Path) -> list[str]:
    return [
        *("secrets", "plan", str(folder / "private.jsonl"), "--secrets", str(folder / "rare.jsonl")),
        *("--steps", str(settings.steps), "--batch-size", str(settings.batch_size)),
        *("--prior", str(settings.prior), "--posterior", str(settings.posterior)),
        *("--calibration", "fano"),  # as in the committed results
    ]


def weighed(settings: Weights, folder: Path, caps: Sequence[Row], key: str, seed: int) -> Row:
    """Make one training of the first experiment, and return its row, with the loss on held-out texts."""
    private = [
        *("--data", str(folder / "private.jsonl"), "--held-out", str(folder / "test.jsonl"), "--task", "masked-lm"),
        *("--from-scratch", "--vocabulary", str(folder / "words.txt"), "--seed", str(seed)),
        *("--long", "truncate", "--max-length", str(settings.max_length), "--device", "cpu", "--force"),
    ]
    output, name = folder / f"{key}-{seed}", str(folder / "model")
    remove_model(output)
    size = ("--steps", str(settings.steps), "--batch-size", str(settings.batch_size))
    plain, noisy = (f"{rate:g}" for rate in settings.rates)
    if key == PLAIN:
        call = ["plain", name, *size, "--learning-rate", plain]
    elif key == UNIFORM:
        noise = next(row["noise_multiplier"] for row in caps if row["cap"] is None)
        call = ["dp-sgd", name, *size, "--learning-rate", noisy, "--noise-multiplier", repr(noise)]
    else:
        plan = folder / f"cap-{key}.safetensors"
        cap = () if key == "none" else ("--cap", key)
        command(*_plan(settings, folder), *cap, "--output", str(plan), "--force")
        call = ["dp-sgd", name, "--learning-rate", noisy, "--secrets", str(plan)]
    command("retrain", *call, *private, "--output", str(output))
    report = read_report(output.with_name(output.name + ".report.json"))
    remove_model(output)
    return {"key": key, "seed": seed, **_trained(report)}


def _trained(report: PrivacyReport) -> Row:
    plan = report.parameters.get("plan") or {}
    record = next((g for g in report.guarantees if g.notion is not Notion.SECRET_PROTECTION), None)
    secret = next((g for g in report.guarantees if g.notion is Notion.SECRET_PROTECTION), None)
    return {
        "noise_multiplier": report.parameters.get("noise_multiplier"),
        "kept": plan.get("kept_fraction", 1.0),
        "largest_probability": plan.get("largest_probability"),
        "never_drawn": plan.get("records_never_drawn", 0),
        "test_loss": _evidence(report, "held-out loss, nats").estimate,
        "test_accuracy": _evidence(report, "held-out accuracy").estimate,
        "epsilon": None if record is None else record.epsilon,
        "delta": None if record is None else record.delta,
        "posterior": None if secret is None else _posterior(secret),
    }


# The second experiment


def prepare_extraction(settings: Extraction, folder: Path, texts: Sequence[str]) -> Row:
    """Plant random numbers, once, and scan for them as secrets."""
    plain, planted = folder / "beginnings.jsonl", folder / "planted.jsonl"
    write_jsonl(plain, ({"text": text} for text in texts))
    done = command(
        *("canary", "plant", str(plain), "-o", str(planted), "--count", str(settings.canaries), "--force"),
        *("--copies", str(settings.copies), "--template", f"{{digits:{settings.digits}}}"),
        *("--prefix-from", str(plain)),
    )
    command(
        *("secrets", "scan", str(planted), "-o", str(folder / "book.jsonl"), "--kinds", "none", "--force"),
        *("--pattern", rf"code=\b(?P<secret>[0-9]{{{settings.digits}}})$"),
    )
    records = sum(1 for _ in planted.open(encoding="utf-8"))
    return {"records": records, "commitment": done["commitment"], "needed": needed(settings, records, POSTERIOR)}


def extracted(settings: Extraction, folder: Path, base: Path, prepared: Row, noise: float, seed: int) -> Row:
    """Make one training of the second experiment, and return its row, with the share of numbers extracted."""
    key = f"noise-{noise:g}-{seed}"
    output = folder / key
    remove_model(output)
    rate = f"{settings.rates[noise > 0]:g}"
    method = ["dp-sgd", str(base), "--noise-multiplier", f"{noise:g}"] if noise else ["plain", str(base)]
    command(
        *("retrain", *method, "--data", str(folder / "planted.jsonl"), "--seed", str(seed), "--learning-rate", rate),
        *("--steps", str(settings.steps), "--batch-size", str(settings.batch_size), "--long", "truncate"),
        *("--max-length", str(settings.max_length), "--device", "cpu", "--force", "--output", str(output)),
    )
    place = folder / f"{key}.audit.report.json"
    command(
        *("audit", str(output), "--secrets", str(folder / "book.jsonl"), "--data", str(folder / "planted.jsonl")),
        *("--canaries", str(folder / "planted.canaries.json"), "--commitment", prepared["commitment"], "--no-exact"),
        *("--references", "20", "--candidates", str(settings.candidates), "--device", "cpu", "--force"),
        *("--base", str(base), "--output", str(place)),
    )
    report = read_report(place)
    remove_model(output)
    return {
        "noise_multiplier": noise,
        "seed": seed,
        "told": _rate(report, "told first, trained"),
        "told_before": _rate(report, "told first, trained, before training"),
        "greedy": _rate(report, "written greedily, trained"),
        "secrets": _evidence(report, "told first, trained").samples["secrets"],
        "epsilon": _record_epsilon(folder / f"{key}.report.json"),
        **bounds(settings, prepared["records"], noise),
    }


def bounds(settings: Extraction, records: int, noise: float) -> Row:
    """Bounds on the probability that any attack picks a number in ``copies`` records among the audit's candidates.

    ``fano`` is by mutual information, ``curve`` by the trade-off curve; for plain training both are 1.
    """
    if not noise:
        return {"fano": 1.0, "curve": 1.0}
    report = command(
        *("account", "--mechanism", "secret", "--record", f"{settings.batch_size / records!r}x{settings.copies}"),
        *("--prior", repr(1 / settings.candidates), "--steps", str(settings.steps), "--delta", "1e-5"),
        *("--noise-multiplier", repr(noise)),
    )
    fano, curve = (each["risks"][0]["bound"] for each in report["guarantees"][:2])
    return {"fano": fano, "curve": curve}


def needed(settings: Extraction, records: int, posterior: float) -> float:
    """The least noise multiplier with which no attack picks a number with probability above ``posterior``."""
    report = command(
        *("account", "--mechanism", "secret", "--record", f"{settings.batch_size / records!r}x{settings.copies}"),
        *("--prior", repr(1 / settings.candidates), "--steps", str(settings.steps), "--delta", "1e-5"),
        *("--posterior", repr(posterior)),
    )
    return float(report["guarantees"][0]["noise_multiplier"])


def _rate(report: PrivacyReport, quantity: str) -> list[float | None]:
    found = _evidence(report, quantity)
    return [found.estimate, found.lower, found.upper]


def _record_epsilon(place: Path) -> float | None:
    return next((g.epsilon for g in read_report(place).guarantees), None)


def _evidence(report: PrivacyReport, quantity: str) -> Evidence:
    return next(item for item in report.evidence if item.quantity == quantity)


def _posterior(guarantee: Guarantee) -> float:
    return guarantee.risks[0].bound
