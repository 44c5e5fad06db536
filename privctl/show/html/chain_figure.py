"""The chain of steps: every report, with a drawn line that connects it to its parents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.html.values import Pill, state_word
from privctl.show.page_data import ReportSource
from privctl.show.summary import decisive, word_of, worst_of
from privctl.show.svg.shapes import Node, el

#: The width of one lane, and the most lanes that are drawn.
_LANE, _LANES = 18, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """The drawing next to one step: ``lines`` as high as the row, and the ``knot``: its dot with lines to parents."""

    lanes: int
    lines: Node
    knot: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """One report of the chain: the ``states`` of its guarantees and verdicts, and its ``broken`` files."""

    source: ReportSource
    rail: Rail
    states: tuple[Pill, ...]
    broken: tuple[Verdict, ...]


def chain(sources: Sequence[ReportSource]) -> list[ChainStep]:
    """The steps of all reports, in the order of ``sources`` (parents first)."""
    return [
        ChainStep(
            source=source,
            rail=rail,
            states=(
                *(Pill(state=s, word=state_word(s)) for s in dict.fromkeys(g.status for g in source.report.guarantees)),
                *_outcomes(source.report),
            ),
            broken=tuple(verdict for verdict in source.digests if verdict.outcome is Outcome.REFUTED),
        )
        for source, rail in zip(sources, _rails(sources), strict=True)
    ]


def _outcomes(report: PrivacyReport) -> list[Pill]:
    """The outcomes of the verdicts of ``report``, each once."""
    distinct = {(verdict.outcome, word_of(verdict, report.step)) for verdict in decisive(report.verdicts)}
    return [Pill(state=outcome, word=word) for outcome, word in sorted(distinct)]


def _rails(sources: Sequence[ReportSource]) -> Iterator[Rail]:
    """The drawing of each row: lines of reports whose children follow below, and a dot in this report's lane."""
    waiting = _last_children(sources)
    lanes: list[str | None] = []
    for source in sources:
        before = list(lanes)
        ending = [i for i, key in enumerate(lanes) if key in source.parents and waiting[key or ""] == source.key]
        for i in ending:
            lanes[i] = None
        near = [*ending, *(i for i, key in enumerate(lanes) if key is None)]
        free = near[0] if near else len(lanes)
        if free == len(lanes):
            lanes.append(None)
        lanes[free] = source.key if source.key in waiting else None
        joined = [i for i, key in enumerate(before) if key in source.parents]
        yield _rail(before, lanes, free, joined, bad=worst_of(decisive(source.report.verdicts)) is Outcome.REFUTED)


def _last_children(sources: Sequence[ReportSource]) -> dict[str, str]:
    """Key of a report that has children -> the key of its last child."""
    return {parent: source.key for source in sources for parent in source.parents}


def _rail(
    before: Sequence[str | None], after: Sequence[str | None], lane: int, joined: Sequence[int], *, bad: bool
) -> Rail:
    count = min(_LANES, max(len(before), len(after), 1))
    width = _LANE * count
    position = _lane_x(lane)
    upper, lower = [], []
    for i in range(count):
        was, will = (lanes[i] if i < len(lanes) else None for lanes in (before, after))
        if i in joined:
            upper.append(el("path", d=f"M{_lane_x(i)} 0L{position} 22"))
        if was is not None and was == will and i != lane:
            upper.append(el("path", d=f"M{_lane_x(i)} 0V22"))
        if will is not None:
            lower.append(el("path", d=f"M{_lane_x(i)} 0V100"))
    upper.append(el("circle", cx=position, cy=22, r=5.5, class_="bad" if bad else None))
    lines = el("svg", lower, class_="lines", viewBox=f"0 0 {width} 100", preserveAspectRatio="none", aria_hidden="true")
    knot = el("svg", upper, class_="knot", viewBox=f"0 0 {width} 44", aria_hidden="true")
    return Rail(lanes=count, lines=lines, knot=knot)


def _lane_x(lane: int) -> float:
    """The horizontal middle of a lane; lanes beyond the last one drawn share its place."""
    return _LANE * (min(lane, _LANES - 1) + 0.5)
