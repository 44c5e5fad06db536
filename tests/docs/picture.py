"""The chart of the README, drawn by the program from the numbers of one demonstration.

``python -m tests.docs.picture FOLDER`` reads those numbers from the demonstration in ``FOLDER`` and keeps them;
``python -m tests.docs.generate`` draws them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Status
from privctl.domain.strength import Severity
from privctl.reports.files import report_beside
from privctl.show.comparison import ComparedModel, Comparison, compare
from privctl.show.gather.load import load
from privctl.show.plots.compare import draw

NUMBERS = Path(__file__).with_name("demo.json")
#: The demonstration's models that the README compares.
MODELS = ("model", "model.noised-eps1", "model.any-loss", "dp-sgd")
#: The picture's colours on white -> on the dark pages of GitHub.
DARK = {
    "#FFFFFF": "#0D1117", "#222222": "#E6EDF3", "#6B6B6B": "#9BA5B0", "#E3E3E3": "#30363D",
    "#146C43": "#3FB950", "#1C5FB0": "#58A6FF", "#8A5300": "#D8A03A", "#B3211B": "#FF7B72",
    "#6D3FA0": "#BC8CFF", "#5A5F68": "#9BA5B0",
}  # fmt: skip


def numbers() -> Comparison:
    """The comparison that is drawn."""
    held: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    models = tuple(_model(row) for row in held["models"])
    return Comparison(models=models, quantity=held["quantity"], deltas=tuple(held["deltas"]), mixed=held["mixed"])


def svg() -> str:
    """The chart, in the reader's choice of light or dark."""
    drawn = draw(numbers(), "svg").decode()
    rules = [f'[{part}="{light}"]{{{part}:{dark}}}' for light, dark in DARK.items() for part in ("fill", "stroke")]
    used = "".join(rule for rule in rules if rule.split("]")[0][1:] in drawn)
    style = f"<style>@media (prefers-color-scheme:dark){{{used}}}</style>"
    return drawn.replace("<title>", f"{style}<title>", 1)


def of_demonstration(folder: Path) -> Comparison:
    """The numbers of the demonstration in ``folder``."""
    places = [folder / name for name in MODELS]
    reports = [
        path for each in places for path in (report_beside(each), each.with_name(f"{each.name}.audit.report.json"))
    ]
    found = compare(load(reports))
    assert found is not None
    return replace(found, models=tuple(sorted(found.models, key=lambda model: MODELS.index(model.name))))


def _model(row: dict[str, Any]) -> ComparedModel:
    attack = Evidence(**row["attack"])
    kinds = {"status": row["status"] and Status(row["status"]), "found": Severity(row["found"]), "attack": attack}
    return ComparedModel(**{**row, "utility": float(row["utility"]), **kinds})


def _row(model: ComparedModel) -> dict[str, object]:
    row = {field.name: getattr(model, field.name) for field in fields(model)}
    attack = model.attack
    assert attack is not None
    kept = {name: getattr(attack, name) for name in ("method", "quantity", "estimate", "lower", "upper")}
    return {**row, "utility": str(model.utility), "attack": kept}


def main(folder: str) -> None:
    """Keep the numbers of the demonstration in ``folder``."""
    found = of_demonstration(Path(folder))
    held = {"quantity": found.quantity, "deltas": found.deltas, "mixed": found.mixed}
    text = json.dumps({**held, "models": [_row(model) for model in found.models]}, indent=1)
    NUMBERS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
