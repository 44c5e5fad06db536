"""The end of the demonstration: a policy, the gate for two models, and one page for all models."""

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
# What a model of this demonstration must meet before its release. To check one yourself:
#   privctl gate MODEL --policy privctl-policy.toml
# `privctl gate --init` prints a policy for real models, with every key explained.

# At least one guarantee must be proved or conditional and have at most this epsilon.
max_epsilon = 8
at_delta = 1e-5
require = ["proved", "conditional"]
recompute = true

# The model must be given and must have been attacked. With 400 records a side, the upper bound of an AUC is up to 0.09
# above the estimate, and the estimate itself may be 0.1 too high by chance, so the limit is generous.
require_model = true
required_steps = ["audit"]
max_auc = 0.7

# An audit that tells members from non-members fails a model, unless both limits above are met and no attack does better
# than the guarantee allows: any epsilon above 0 allows some leakage.
"""
#: The claimed epsilon of the model that the gate rejects: below the policy's limit, but it does not follow.
CLAIMED = 1.0
POLICY_NAME, PAGE_NAME, CHART_NAME = "privctl-policy.toml", "page.html", "chart.svg"


def models_to_judge(models: Sequence[DemoModel]) -> tuple[Path, Path]:
    """The paths of the privately trained model and of one whose claimed epsilon is within the policy's limit."""
    private = next(model for model in models if model.noise_stddev is None)
    claiming = next(m for m in models if m.target and m.target.epsilon == CLAIMED)
    return private.model, claiming.model


def judge_models(folder: Path, models: Sequence[Path], progress: Progress) -> tuple[GateJudgement, ...]:
    """Write the policy to ``folder`` and judge each of ``models`` by it, as ``privctl gate MODEL`` does."""
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
    """Write the page of all models, as ``privctl report`` does, and its chart. Returns the path of the page."""
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
