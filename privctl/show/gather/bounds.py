"""The best ROC curves that an attacker can achieve under a report's guarantees, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from privctl.accounting import risk
from privctl.accounting.events import row_of
from privctl.domain.events import Ledger
from privctl.domain.guarantee import STANDING, Adjacency, Guarantee, Notion, PrivacyUnit, Scope
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.strength import severity
from privctl.show.page_data import PLANS, BoundCurve

_RATES = np.geomspace(1e-4, 1, 121)
_MOST = 4
#: Larger ledgers take too long to compose for a page; the curve of their epsilon and delta is drawn instead.
_EVENTS, _STEPS = 8, 200_000


def bounds_of(report: PrivacyReport) -> Iterator[BoundCurve]:
    """A curve for each proved or conditional guarantee for one example, one per name, for replace-one if stated."""
    if report.step in PLANS:
        return
    best: dict[str, Guarantee] = {}
    for guarantee in report.guarantees:
        if _is_drawn(guarantee):
            known = best.get(guarantee.name)
            if known is None or (
                guarantee.adjacency is Adjacency.REPLACE_ONE and known.adjacency is not guarantee.adjacency
            ):
                best[guarantee.name] = guarantee
    for guarantee in list(best.values())[:_MOST]:
        curve, source = _curve(report, guarantee)
        points = tuple((rate, min(1.0, curve.true_positive_rate(rate))) for rate in _RATES.tolist())
        label = f"{guarantee.name} ({guarantee.status})"
        yield BoundCurve(
            label=label,
            status=guarantee.status,
            severity=severity(guarantee, report.mechanism),
            points=points,
            source=source,
        )


def _is_drawn(guarantee: Guarantee) -> bool:
    return (
        guarantee.epsilon is not None
        and guarantee.notion is Notion.APPROXIMATE_DP
        and guarantee.unit is PrivacyUnit.EXAMPLE
        and guarantee.scope is Scope.THIS_MODEL
        and guarantee.status in STANDING
    )


def _curve(report: PrivacyReport, guarantee: Guarantee) -> tuple[risk.TradeOff, str]:
    assert guarantee.epsilon is not None
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise) and guarantee.noise_multiplier:
        return risk.GaussianTradeOff(1 / guarantee.noise_multiplier), "Gaussian mechanism, exactly"
    line = risk.line(guarantee.epsilon, guarantee.delta)
    stated = f"ε and δ alone (ε = {guarantee.epsilon:.4g}, δ = {guarantee.delta:.3g})"
    if isinstance(mechanism, Ledger) and _is_light(mechanism):
        try:
            whole = risk.trade_off(mechanism)
        except (ValueError, ArithmeticError):
            return line, stated
        return risk.Tightest((whole, line)), "the report's ledger, composed again"
    return line, stated


def _is_light(ledger: Ledger) -> bool:
    return (
        len(ledger.events) <= _EVENTS
        and sum(event.steps for event in ledger.events) <= _STEPS
        and all(row_of(event).quick(event) for event in ledger.events)
    )
