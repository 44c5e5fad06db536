"""Train and attack one model by privctl's commands, and read the results from their reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from examples.ferret.settings import METHODS, Cell
from examples.harness import commands
from examples.harness.commands import Stopwatch, remove_model
from examples.harness.results import Row
from privctl.accounting.sign_bits import worst_case_delta
from privctl.domain.events import Batches, SignBits
from privctl.domain.guarantee import Guarantee, Notion, RiskMeasure
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report

#: Methods of an audit that never see the model.
_BASELINES = {"blind baseline", "length baseline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The inputs of all runs: the model, the files by ``records.Split.write``, the folder of outputs, and sizes.

    ``batch_size`` is in records, ``max_length`` in tokens.
    """

    model: Path
    files: dict[str, Path]
    folder: Path
    batch_size: int
    max_length: int


def command(*arguments: str) -> Stopwatch:
    """Run a privctl command on the CPU, and return its times."""
    return commands.command(*arguments, "--device", "cpu", "--force").watch


def train(work: Work, cell: Cell, rate: float, *more: str) -> tuple[PrivacyReport, Stopwatch]:
    """Train one cell, and return its report and the times of its steps. ``more`` are further options."""
    budget = () if cell.epsilon is None else ("--epsilon", f"{cell.epsilon:g}")
    options = _options(work, cell, rate)
    watch = command("retrain", *options, "--epochs", str(cell.epochs), *budget, *more)
    return read_report(work.folder / f"{cell.key}.report.json"), watch


def _options(work: Work, cell: Cell, rate: float) -> list[str]:
    """The options of ``privctl retrain``, except the number of epochs and the budget."""
    method, output = METHODS[cell.method], work.folder / cell.key
    remove_model(output)  # left by a stopped run
    options = [
        *(method.options[0], str(work.model), *method.options[1:]),
        *("--data", str(work.files["members"]), "--learning-rate", f"{rate:g}", "--optimizer", "adamw"),
        *("--batch-size", str(work.batch_size * method.batch_factor), "--seed", str(cell.seed)),
        *("--long", "truncate", "--max-length", str(work.max_length), "--output", str(output)),
    ]
    if method.options[0] == "ferret":  # for reproducible masks and directions
        options += ["--public-seed", f"{cell.seed:032x}"]
    return options


def warm_up(work: Work, methods: Sequence[str]) -> None:
    """Make a few steps by every method, so that one-time loading and compiling is not measured."""
    few = work.folder / "warm-up.jsonl"
    lines = work.files["members"].read_text(encoding="utf-8").splitlines(keepends=True)
    few.write_text("".join(lines[: 20 * work.batch_size]), encoding="utf-8")
    shorter = replace(work, files={**work.files, "members": few})
    for name in methods:
        method, cell = METHODS[name], Cell(method=name, epochs=1, epsilon=None, seed=0)
        noise = () if method.nats or not method.private else ("--noise-multiplier", "1")
        fire = ("--fire-probability", "1") if method.options[0] == "ferret" else ()
        command("retrain", *_options(shorter, cell, 1e-4), "--epochs", "1", *noise, *fire)
        remove_model(work.folder / cell.key)


def tuned(work: Work, cell: Cell, rate: float) -> float:
    """Train one cell at learning rate ``rate``, and return its perplexity on the records for tuning."""
    report, _ = train(work, cell, rate, "--held-out", str(work.files["tuning"]))
    remove_model(work.folder / cell.key)
    found = next(e.estimate for e in report.evidence if e.quantity == "held-out perplexity")
    return math.inf if found is None else found


def judge(work: Work, model: Path, name: str) -> Row:
    """Attack ``model``. Returns AUCs with intervals, and the non-members' perplexity, without end-of-text tokens."""
    path = work.folder / f"{name}.audit.report.json"
    command(
        *("audit", str(model), "--members", str(work.files["members"])),
        *("--nonmembers", str(work.files["nonmembers"])),
        *("--max-length", str(work.max_length), "--output", str(path)),
    )
    report = read_report(path)
    loss = float(report.parameters["nonmember_loss"])
    return {**audited(report), "perplexity": math.exp(loss) if loss < 700 else math.inf}


def audited(report: PrivacyReport) -> Row:
    """AUCs of the loss attack, the best attack and the blind baseline, as ``[estimate, lower, upper]``."""
    areas = {e.method: e for e in report.evidence if e.quantity == "AUC" and e.estimate is not None}
    attacks = [e for name, e in areas.items() if name not in _BASELINES]
    best = max(attacks, key=lambda e: e.estimate or 0.0)
    blind = areas.get("blind baseline")
    return {
        "auc_loss": [areas["loss"].estimate, areas["loss"].lower, areas["loss"].upper],
        "auc_best": [best.estimate, best.lower, best.upper],
        "best_attack": best.method,
        "auc_blind": None if blind is None else [blind.estimate, blind.lower, blind.upper],
        "confidence_each": best.confidence,
    }


def done(report: PrivacyReport) -> Row:
    """The steps, noise and guarantee of a training."""
    settings = report.parameters
    fired = settings.get("fired")
    return {
        "steps": settings["updates"],
        "fired_steps": settings["updates"] if fired is None else settings["fired_steps"],
        "published_numbers": fired,
        "groups": settings.get("number_of_groups"),
        "fire_probability": settings.get("fire_probability"),
        "noise_multiplier": settings.get("noise_multiplier"),
        "guarantee": _guarantee(report),
    }


def _guarantee(report: PrivacyReport) -> Row | None:
    """The first guarantee, which is the method's own; for published signs also the delta in the worst case."""
    if not report.guarantees:
        return None
    own: Guarantee = report.guarantees[0]
    found: Row = {
        "notion": str(own.notion),
        "epsilon": own.epsilon,
        "delta": own.delta,
        "status": str(own.status),
        "advantage_cap": next((r.bound for r in own.risks if r.measure is RiskMeasure.ADVANTAGE), None),
    }
    cap = next((r.bound for r in own.risks if r.measure is RiskMeasure.AUC), None)
    if cap is None and found["advantage_cap"] is not None:
        # The ROC curve lies below min(1, false positive rate + advantage).
        cap = 1 - (1 - found["advantage_cap"]) ** 2 / 2
    found["auc_cap"] = cap
    if own.notion is Notion.MUTUAL_INFORMATION and isinstance(report.mechanism, SignBits):
        found["worst_case_delta"] = worst_case_delta(report.mechanism, Batches.SHUFFLED)
    return found


def measured(work: Work, cell: Cell, rate: float) -> Row:
    """Train and attack one cell, and return its row of the results."""
    report, watch = train(work, cell, rate)
    row: Row = {
        "key": cell.key,
        "method": cell.method,
        "epochs": cell.epochs,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "learning_rate": rate,
        "batch_size": work.batch_size * METHODS[cell.method].batch_factor,
        "seconds": watch.seconds,
        "wall_seconds": watch.wall_seconds,
        **done(report),
        **judge(work, work.folder / cell.key, cell.key),
    }
    remove_model(work.folder / cell.key)
    return row
