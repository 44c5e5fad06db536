"""The demonstration's table: a line a model at 80 columns, whatever the numbers."""

from __future__ import annotations

import math

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Adjacency, Guarantee, Status
from privctl.show.text.demo import DemoRow, demo_table


def row(
    name: str, claimed: float | None, convex: float, loss: float, noise: float | None, perplexity: float
) -> DemoRow:
    first, second = (
        Guarantee(
            name=regime, epsilon=epsilon, delta=6.55e-6, adjacency=Adjacency.REPLACE_ONE, accountant="analytic",
            status=Status.CONDITIONAL,
        )
        for regime, epsilon in (("convex", convex), ("nonconvex", loss))
    )  # fmt: skip
    auc = Evidence(method="loss", quantity="AUC", estimate=0.8451, lower=0.7983, upper=0.8819)
    return DemoRow(
        name=name, claimed=claimed, convex=first, any_loss=second, noise_stddev=noise, perplexity=perplexity, auc=auc
    )


def test_each_model_has_one_line() -> None:
    rows = [
        row("model", None, 21460.0, 4.535e8, 0.0, 5.2084),
        row("model.private-eps100", 100.0, 21460.0, 4.535e8, 0.0069031, 5.2341),
        row("model.private-eps0.3", 0.3, 12680.0, 9.718e-7, 0.0401511, 15641.7),
        row("model.any-loss", None, 0.01057, 8.0, 341.31, math.inf),
        row("dp-sgd", None, 0.01057, 2.0, None, 7.5),
    ]
    lines = demo_table(rows, 6.55e-6).splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[lines.index("") - 5 : lines.index("")]]
    assert names == ["model", "private-eps100", "private-eps0.3", "any-loss", "dp-sgd"]
    assert sum("0.845 (0.798 to 0.882)" in line for line in lines) == 5
    assert "2.15e+04" in lines[lines.index("") - 5], "rounded up"
    assert "deviation 0, 0.0069, 0.0402, 341, in this order" in " ".join(" ".join(lines).split())
