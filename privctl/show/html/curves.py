"""ROC figures on log axes: what attacks reached, and the most that guarantees allow. Both have the same axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.evidence import Evidence
from privctl.domain.shown import counted, upward
from privctl.show.html.values import Figure, Table, evidence_table, figure, interval, table
from privctl.show.page_data import BoundCurve, JudgedSubject, ReportSource, RocCurve
from privctl.show.plain import clean
from privctl.show.svg.axes import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Scale, frame, polyline, step_path
from privctl.show.svg.shapes import Node, el
from privctl.show.text.style import number

HEIGHT = 330.0
_LEAST = 1e-4
#: Beginnings of the quantities of membership attacks.
_AUC, _TPR = "AUC", "TPR at "
#: The curve of an attack that sees the records but not the model.
BLIND = "blind"
#: False positive rates of the table.
_AT = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.5)


def membership_of(source: ReportSource) -> list[Evidence]:
    """The evidence of membership attacks in one report."""
    return [item for item in source.report.evidence if item.quantity.startswith((_AUC, _TPR, "accuracy", "F1"))]


def best_of(source: ReportSource) -> Evidence | None:
    """The AUC with the largest lower bound among attacks on the model; None if there is none."""
    candidates = [
        item
        for item in source.report.evidence
        if item.quantity == _AUC and item.lower is not None and not item.method.startswith(("blind", "baseline"))
    ]
    return max(candidates, key=lambda item: item.lower or 0.0, default=None)


def roc_figure(source: ReportSource) -> Figure | None:
    """The ROC curves of one audit's attacks, the best with its band; None if there is nothing to draw."""
    evidence = membership_of(source)
    points = _operating(evidence)
    if not source.roc and not points:
        return None
    best = best_of(source)
    lead = next((curve for curve in source.roc if best is not None and curve.name == best.method), None)
    x, y = _scales()
    words = _roc_words(source, best)
    return figure(
        f"{source.key}-roc",
        f"Telling members from others: {source.name}",
        words,
        HEIGHT,
        _roc_shapes(source.roc, lead, points, x, y),
        notes=_roc_notes(source, lead),
        tables=[
            evidence_table(f"Membership attacks, {source.name}", evidence),
            *([_operating_table(source, lead)] if lead else []),
        ],
    )


def _scales() -> tuple[Scale, Scale]:
    return (
        Scale(_LEAST, 1.0, LEFT, WIDTH - RIGHT, log=True),
        Scale(_LEAST, 1.0, HEIGHT - BOTTOM, TOP, log=True),
    )


def _roc_words(source: ReportSource, best: Evidence | None) -> str:
    others = len({item.method for item in membership_of(source) if item.quantity == _AUC})
    if best is None:
        return "True against false positive rate of each attack, both on log axes."
    return (
        f"True against false positive rate, both on log axes. Of {counted(others, 'method')}, {best.method} has the "
        f"largest AUC: {number(best.estimate, 3)} ({interval(best)}), where chance gives 0.5."
    )


def _roc_notes(source: ReportSource, lead: RocCurve | None) -> list[str]:
    if not source.roc:
        return ["The scores file was not found, so only the rates that the report states are drawn.", *source.left_out]
    kept, all_of = sum(len(c.points) for c in source.roc), sum(c.corners for c in source.roc)
    notes = [
        "Curves begin at their first false positive. "
        f"Drawn with {kept:,} of {all_of:,} corners: omitting the others makes no visible difference."
    ]
    if lead is not None and lead.band:
        notes.append(
            f"At each single threshold the band contains the true positive rate with {100 * lead.confidence:.4g} % "
            "confidence (Clopper-Pearson); dots with bars are the rates that the audit states."
        )
    return notes


def _roc_shapes(
    curves: Sequence[RocCurve], lead: RocCurve | None, points: Sequence[tuple[float, Evidence]], x: Scale, y: Scale
) -> Iterator[Node]:
    yield from frame(x, y, "false positive rate", "true positive rate")
    yield _chance(x, y)
    for curve in curves:
        if curve is not lead:
            kind = "blind" if curve.name == BLIND else "other"
            yield el("path", class_=f"curve {kind}", d=step_path(x, y, _visible(curve.points)), data_tip=curve.name)
    if lead is not None:
        if lead.band:
            yield el("path", class_="band", d=_band(x, y, lead))
        yield el("path", class_="curve lead", d=step_path(x, y, _visible(lead.points)), data_tip=lead.name)
    for rate, item in points:
        if lead is None or item.method == lead.name:
            yield from _bar(rate, item, x, y)
    yield from _names(curves, lead, y)


def _names(curves: Sequence[RocCurve], lead: RocCurve | None, y: Scale) -> Iterator[Node]:
    """The legend of colours, in the empty corner below the diagonal."""
    rows = [("lead", lead.name)] if lead is not None else []
    rows += [("other", "other attacks")] if any(c is not lead and c.name != BLIND for c in curves) else []
    rows += [("blind", "without the model")] if any(c.name == BLIND for c in curves) else []
    for index, (kind, name) in enumerate(rows):
        height = y.start - 12 - 16 * (len(rows) - 1 - index)
        yield el("line", class_=f"curve {kind}", x1=WIDTH - 166, x2=WIDTH - 142, y1=height - 4, y2=height - 4)
        yield el("text", name, class_="label", x=WIDTH - 136, y=height)


def _chance(x: Scale, y: Scale) -> Node:
    return el("path", class_="chance", d=polyline(x, y, [(_LEAST, _LEAST), (1.0, 1.0)]), data_tip="chance")


def _visible(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The curve from the left edge of the figure on; smaller false positive rates are not drawn."""
    return [p for p in points if p[0] >= _LEAST] or [(1.0, 1.0)]


def _band(x: Scale, y: Scale, curve: RocCurve) -> str:
    upper = [(rate, high) for rate, _, high in curve.band]
    lower = [(rate, low) for rate, low, _ in curve.band]
    return polyline(x, y, [*upper, *reversed(lower)]) + "Z"


def _bar(rate: float, item: Evidence, x: Scale, y: Scale) -> Iterator[Node]:
    position = x.at(rate)
    tip = f"{item.method}, {item.quantity}: {number(item.estimate, 3)} ({interval(item)})"
    if item.lower is not None and item.upper is not None:
        yield el(
            "line",
            class_="range lead",
            x1=position,
            x2=position,
            y1=y.at(item.lower),
            y2=y.at(item.upper),
            data_tip=tip,
        )
    if item.estimate is not None:
        yield el("circle", class_="dot lead", cx=position, cy=y.at(item.estimate), r=4, data_tip=tip)


def _operating(evidence: Sequence[Evidence]) -> list[tuple[float, Evidence]]:
    """(false positive rate, evidence) for each true positive rate in ``evidence``."""
    points = []
    for item in evidence:
        head, _, rest = item.quantity.partition(_TPR)
        try:
            rate = float(rest.split("%")[0]) / 100 if not head and "%" in rest else 0.0
        except ValueError:
            continue
        if 0 < rate < 1 and (item.estimate is not None or item.lower is not None):
            points.append((rate, item))
    return points


def _operating_table(source: ReportSource, curve: RocCurve) -> Table:
    rows = []
    for rate in _AT:
        reached = [p for p in curve.points if p[0] <= rate]
        band_points = [b for b in curve.band if b[0] <= rate]
        band = f"{band_points[-1][1]:.4g} to {band_points[-1][2]:.4g}" if band_points else "–"
        rows.append((f"{rate:g}", f"{reached[-1][0]:.4g}", f"{reached[-1][1]:.4g}", band))
    headings = ("at most", "false positive rate", "true positive rate", f"at {100 * curve.confidence:.4g} %")
    return table(f"ROC of {curve.name}, {source.name}", headings, rows)


def trade_off_figure(subject: JudgedSubject) -> Figure | None:
    """The most that one model's guarantees allow, with what attacks on it reached; None without a bound."""
    source = subject.source
    if not source.bounds:
        return None
    x, y = _scales()
    attacked = [(audit, best_of(audit)) for audit in subject.audits]
    words = (
        "The most that any attack can achieve, by guarantee: true against false positive rate on log axes. The shaded "
        "area is what the strictest guarantee rules out if its assumptions hold. The thin curve is the best attack. It "
        "may be above a line by chance, but its interval may not."
    )
    rows = [
        (curve.label, str(curve.status), curve.source, *(upward(_height(curve, rate), 4) for rate in (1e-3, 0.01, 0.1)))
        for curve in source.bounds
    ]
    heads = ("guarantee", "status", "from", "most at 0.1 %", "at 1 %", "at 10 %")
    return figure(
        f"{source.key}-tradeoff",
        f"What an attacker can achieve at most: {source.name}",
        words,
        HEIGHT,
        _bound_shapes(source.bounds, attacked, x, y),
        notes=[f"Dots: {best.method} in {audit.name}." for audit, best in attacked if best is not None],
        tables=[table(f"Most true positives, {source.name}", heads, rows)],
    )


def _bound_shapes(
    bounds: Sequence[BoundCurve], attacked: Sequence[tuple[ReportSource, Evidence | None]], x: Scale, y: Scale
) -> Iterator[Node]:
    yield from frame(x, y, "false positive rate", "true positive rate, at most")
    best = min(bounds, key=lambda bound: _height(bound, 0.01))
    yield el("path", class_=f"excluded {best.severity}", d=polyline(
        x, y, [(_LEAST, 1.0), *best.points, (1.0, 1.0)]
    ) + "Z")  # fmt: skip
    yield _chance(x, y)
    for bound in bounds:
        tip = f"{bound.label}, {bound.status}"
        yield el("path", class_=f"curve {bound.severity}", d=polyline(x, y, bound.points), data_tip=tip)
    for audit, curves in attacked:
        for curve in audit.roc:
            if curves is not None and curve.name == curves.method:
                yield el("path", class_="curve attack", d=step_path(x, y, _visible(curve.points)), data_tip=curve.name)
        for rate, item in _operating(membership_of(audit)):
            if curves is not None and item.method == curves.method:
                yield from _bar(rate, item, x, y)
    yield from _bound_names(bounds, y)


def _bound_names(bounds: Sequence[BoundCurve], y: Scale) -> Iterator[Node]:
    for index, bound in enumerate(bounds[:4]):
        height = y.start - 12 - 16 * (len(bounds[:4]) - 1 - index)
        yield el("line", class_=f"curve {bound.severity}", x1=WIDTH - 226, x2=WIDTH - 202, y1=height - 4, y2=height - 4)
        yield el("text", clean(bound.label, 30), class_="label", x=WIDTH - 196, y=height)


def _height(bound: BoundCurve, rate: float) -> float:
    return next((b for a, b in bound.points if a >= rate), 1.0)
