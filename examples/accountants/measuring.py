"""Account, train and attack by privctl's commands, and read the results from their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.accountants.settings import PLAIN, Setting, Training
from examples.harness import commands
from examples.harness.commands import remove_model
from examples.harness.results import Row, write_jsonl
from privctl.demo.model import architecture, build_tokenizer
from privctl.demo.records import draw_notes
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.plan.peers import dp_accounting_pld_epsilon, dp_accounting_pld_noise_multiplier, is_installed
from privctl.reports.files import read_report

DP_ACCOUNTING = "dp-accounting PLD"
#: The tolerance of dp-accounting's own search for the noise multiplier.
_TOLERANCE = 1e-4


def command(*arguments: str) -> dict[str, Any]:
    """Run a privctl command and return the JSON that it prints."""
    return commands.command(*arguments).answer


def accounted(setting: Setting) -> Row:
    """Every accountant's answer for one setting: epsilon for a given noise, or the noise and the epsilon it gives."""
    known, value = ("--epsilon", setting.epsilon) if setting.noise is None else ("--noise-multiplier", setting.noise)
    report = command(
        *("account", known, repr(value), "--delta", repr(setting.delta)),
        *("--sample-rate", repr(setting.rate), "--steps", str(setting.steps)),
    )
    answers = {
        each["name"]: {
            "answer": each["epsilon"] if setting.noise is not None else each["noise_multiplier"],
            "status": each["status"],
            "follows": each["follows"],
        }
        for each in report["guarantees"]
    }
    if is_installed("dp-accounting"):
        answers[DP_ACCOUNTING] = {"answer": _dp_accounting(setting), "status": "claimed", "follows": None}
    return {"key": setting.key, "answers": answers}


def _dp_accounting(setting: Setting) -> float:
    if setting.noise is not None:
        return dp_accounting_pld_epsilon(setting.noise, setting.rate, setting.steps, setting.delta)
    assert setting.epsilon is not None
    return dp_accounting_pld_noise_multiplier(
        setting.epsilon, setting.delta, setting.rate, setting.steps, tolerance=_TOLERANCE
    )


def prepare(settings: Training, folder: Path) -> Row:
    """Draw the notes, plant canaries by secret coins, and compute the noise by every accountant."""
    notes = draw_notes(settings.notes, 0)
    write_jsonl(folder / "members.jsonl", ({"text": text} for text in notes.members))
    write_jsonl(folder / "held-out.jsonl", ({"text": text} for text in notes.nonmembers))
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "start")
    architecture(tokenizer).save_pretrained(folder / "start")
    planted = command(
        *("canary", "plant", str(folder / "members.jsonl"), "-o", str(folder / "planted.jsonl"), "--force"),
        *("--count", str(settings.canaries)),
    )
    records = sum(1 for _ in (folder / "planted.jsonl").open(encoding="utf-8"))
    report = command(
        *("account", "--epsilon", repr(settings.epsilon), "--delta", repr(settings.delta), "--no-peers"),
        *("--dataset-size", str(records), "--batch-size", str(settings.batch_size), "--epochs", str(settings.epochs)),
    )
    noises = {each["name"]: each["noise_multiplier"] for each in report["guarantees"]}
    return {"records": records, "commitment": planted["commitment"], "noises": noises}


def trained(settings: Training, folder: Path, prepared: Row, way: str, seed: int) -> Row:
    """Train with the noise of one accountant, audit the canaries, and return the row of the results."""
    noise = None if way == PLAIN else prepared["noises"][way]
    output = folder / f"{'plain' if noise is None else f'noise-{noise:.6g}'}-{seed}"
    remove_model(output)
    method = ("plain",) if noise is None else ("dp-sgd",)
    noisy = () if noise is None else ("--noise-multiplier", repr(noise), "--delta", repr(settings.delta))
    command(
        *("retrain", *method, str(folder / "start"), "--from-scratch", "--data", str(folder / "planted.jsonl"), *noisy),
        *("--held-out", str(folder / "held-out.jsonl"), "--epochs", str(settings.epochs), "--seed", str(seed)),
        *("--batch-size", str(settings.batch_size), "--learning-rate", repr(settings.learning_rate)),
        *("--device", "cpu", "--force", "--output", str(output)),
    )
    report = read_report(output.with_name(output.name + ".report.json"))
    place = folder / f"{output.name}.audit.report.json"
    command(
        *("audit", str(output), "--canaries", str(folder / "planted.canaries.json")),
        *("--canary-data", str(folder / "planted.jsonl"), "--commitment", prepared["commitment"], "--no-exact"),
        *("--references", str(settings.references), "--device", "cpu", "--force", "--output", str(place)),
    )
    audit = read_report(place)
    remove_model(output)
    return {
        "way": way,
        "seed": seed,
        "noise_multiplier": noise or 0.0,
        "epsilon": None if noise is None else report.guarantees[0].epsilon,
        "perplexity": _evidence(report, "held-out perplexity").estimate,
        "exposure": _evidence(audit, "mean bits, included").estimate,
        "certified": _certified(audit),
    }


def _certified(report: PrivacyReport) -> float:
    """The largest lower bound on epsilon that the audit certifies; 0 where it certifies none."""
    lower = [e.estimate for e in report.evidence if e.bound is Bound.LOWER and e.quantity.startswith("epsilon")]
    return max((value for value in lower if value is not None), default=0.0)


def _evidence(report: PrivacyReport, quantity: str) -> Evidence:
    return next(each for each in report.evidence if each.quantity == quantity)
