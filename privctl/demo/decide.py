"""The end of the demonstration: a policy, a gate for two models, and one page of all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from audits.places import output_paths
from privctl.demo.run import DemoModel
from privctl.domain.gate import GateJudgement
from privctl.domain.progress import Progress
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.model_at_hand import model_at
from privctl.gate.policy import read_policy
from privctl.reports.files import report_beside
from privctl.show.comparison import compare
from privctl.show.gather.load import load
from privctl.show.html.page import page
from privctl.show.plots.compare import draw
from privctl.storage.atomic import write_bytes

POLICY = """\
# What a model of this demonstration must meet before its release. Check one by hand:
#   privctl gate MODEL --policy privctl-policy.toml
# A policy for real models, with every key explained, is what `privctl gate --init` prints.

# At least one guarantee must follow and be this good.
max_epsilon = 8
at_delta = 1e-5
require = ["proved", "conditional"]
recompute = true

# The model must be at hand, and must have been attacked. 400 records a side make intervals that reach 0.09 beyond what
# was found, and chance alone adds up to 0.1 to what is found, so the limit is generous.
require_model = true
required_steps = ["audit"]
max_auc = 0.7

# An audit that tells members from non-members fails a model, unless both limits above are met and no attack does better
# than the guarantee allows: every finite epsilon allows a little.
"""
#: The claim of the model that the gate refuses: below the policy's limit, by a formula that does not hold.
CLAIMED = 1.0
POLICY_NAME, PAGE_NAME, CHART_NAME = "privctl-policy.toml", "page.html", "chart.svg"


def two_to_judge(models: Sequence[DemoModel]) -> tuple[Path, Path]:
    """The privately trained model, and one that claims no larger an epsilon than the policy allows."""
    private = next(model for model in models if model.noise_stddev is None)
    claiming = next(m for m in models if m.target and m.target.epsilon == CLAIMED)
    return private.model, claiming.model


def pass_gate(folder: Path, models: Sequence[Path], progress: Progress) -> tuple[GateJudgement, ...]:
    """Write the policy into ``folder`` and judge each of ``models`` by it, as ``privctl gate MODEL`` does."""
    place = folder / POLICY_NAME
    write_bytes(place, POLICY.encode(), replace=False, public=True)
    policy = read_policy(place, {}, {}, RULES)
    judgements = []
    with progress("gate", len(models), "models") as advance:
        for model in models:
            judgements.append(judge(_reports(model), policy, model_at(model), datetime.now(UTC)))
            advance(1)
    return tuple(judgements)


def write_page(folder: Path, models: Sequence[DemoModel], progress: Progress) -> Path:
    """The page of every model's reports, as ``privctl report`` writes it, and its chart; returns the page's path."""
    place = folder / PAGE_NAME
    with progress("page", 1, "pages") as advance:
        data = load([report for model in models for report in _reports(model.model)], "privctl demo")
        write_bytes(place, page(data).encode(), replace=False)
        comparison = compare(data)
        if comparison is not None:
            write_bytes(folder / CHART_NAME, draw(comparison, "svg"), replace=False)
        advance(1)
    return place


def _reports(model: Path) -> tuple[Path, Path]:
    """The report written with the model, and that of the attack on it."""
    return report_beside(model), output_paths(model, None)[0]
