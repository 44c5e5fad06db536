"""Measure the paper's formula, its claims, and noised models by privctl's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from examples.dp_weights.settings import PUBLISHED, UNNOISED, Formula, Models
from examples.harness import commands
from examples.harness.commands import remove_model
from examples.harness.results import Row
from privctl.demo.model import prepare
from privctl.domain.guarantee import Adjacency, Scope
from privctl.domain.progress import unseen
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report


def command(*arguments: str) -> Any:
    """Run a privctl command and return the JSON that it prints."""
    return commands.command(*arguments).answer


def formula(settings: Formula, folder: Path, epochs: int, batch_size: int) -> Row:
    """The formula's noise for each claimed epsilon of one training, and the epsilon that follows from it.

    Neighbours differ in one replaced record. The weights themselves do not matter, and their number only for rounding.
    """
    weights = folder / "weights.safetensors"
    if not weights.exists():
        save_file({"w": np.ones((32, 32), np.float32)}, weights)
    claims = [word for claim in settings.claims for word in ("--epsilon", repr(claim))]
    plan = command(
        *("noise", str(weights), "--dry-run", "--calibration", "published", *claims, "--epochs", str(epochs)),
        *("--learning-rate", repr(settings.learning_rate), "--clip-norm", repr(settings.clip_norm)),
        *("--dataset-size", str(settings.examples), "--batch-size", str(batch_size)),
    )
    answers = []
    for each in plan["candidates"]:
        follows = {
            found["name"]: found["epsilon"]
            for found in each["guarantees"]
            if found["scope"] == Scope.THIS_MODEL and found["adjacency"] == Adjacency.REPLACE_ONE
        }
        answers.append({"claim": each["epsilon"], "noise_stddev": each["noise_stddev"], **follows})
    return {"epochs": epochs, "batch_size": batch_size, "answers": sorted(answers, key=lambda row: row["claim"])}


def claims() -> list[Row]:
    """The paper's claims, with privctl's verdict on each."""
    found = command("claims", "papers", "--paper", "dp-weights")["verdicts"]
    return [
        {"key": key, "claim": claim, "outcome": each["outcome"], "reason": each["reason"]}
        for each in found
        for key, _, claim in [each["subject"].partition(": ")]
    ]


def train(settings: Models, folder: Path, seed: int) -> Path:
    """The folder with the model to add noise to, and its report; trained once for each seed."""
    place = folder / f"seed-{seed}"
    if not (place / "model.report.json").exists():
        place.mkdir(exist_ok=True)
        prepare(place, unseen, seed=seed, notes=settings.notes)
    return place


def noised(settings: Models, folder: Path, kind: str, epsilon: float, seed: int) -> Row:
    """The row of one noised model: its noise, the epsilon that follows, its perplexity, and the loss attack's AUC."""
    place = train(settings, folder, seed)
    output = place / f"{kind}-{epsilon:g}"
    if kind == UNNOISED:
        model, report = place / "model", read_report(place / "model.report.json")
    else:
        remove_model(output)
        how = ("published",) if kind == PUBLISHED else ("gaussian", "--regime", kind)
        command(
            *("noise", str(place / "model"), "--epsilon", repr(epsilon), "--delta", repr(settings.delta)),
            *("--calibration", *how, "--evaluate", str(place / "nonmembers.jsonl"), "--force", "-o", str(output)),
        )
        model, report = output, read_report(output.with_name(output.name + ".report.json"))
    audit_place = place / f"{model.name}.audit.report.json"
    command(
        *("audit", str(model), "--members", str(place / "members.jsonl")),
        *("--nonmembers", str(place / "nonmembers.jsonl"), "--device", "cpu", "--force", "-o", str(audit_place)),
    )
    audit = read_report(audit_place)
    if kind != UNNOISED:
        remove_model(output)
    return {"kind": kind, "epsilon": epsilon, "seed": seed, **_noise(report), "auc": _auc(audit)}


def _noise(report: PrivacyReport) -> Row:
    follows = {
        each.name: each.epsilon
        for each in report.guarantees
        if each.scope is Scope.THIS_MODEL and each.adjacency is Adjacency.REPLACE_ONE
    }
    measured = next((e for e in report.evidence if e.quantity in ("perplexity", "held-out perplexity")), None)
    return {
        "noise_stddev": getattr(report.mechanism, "noise_stddev", 0.0),
        "convex": follows.get("convex"),
        "nonconvex": follows.get("nonconvex"),
        "perplexity": None if measured is None else measured.estimate,
    }


def _auc(report: PrivacyReport) -> list[float | None]:
    found = next(e for e in report.evidence if (e.method, e.quantity) == ("loss", "AUC"))
    return [found.estimate, found.lower, found.upper]
