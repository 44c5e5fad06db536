"""The top of the page: a verdict on every model, and the chain of steps that led to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.guarantee import Guarantee
from privctl.domain.report import Artifact
from privctl.domain.verdict import Outcome
from privctl.show.dossier import PLANS, PageData, ReportSource
from privctl.show.html.figure import colour, pill
from privctl.show.html.markup import Node, el
from privctl.show.summary import MEANING, Summary, amount, protects, relied_on, worst_of
from privctl.show.text.style import short, size

#: Width of one lane of the chain's rail, and the lanes that are drawn.
_LANE, _LANES = 18, 8
_CHIPS = 8


def verdict_card(standing: Summary) -> Node:
    """One model: the number that leads, what it rests on, what attacked it, what nobody checked."""
    source, lead = standing.subject.source, standing.lead
    state = colour(lead.status) if lead is not None else "none"
    facts = [("Guarantee", standing.guarantee, state)]
    facts += (
        []
        if source.report.step in PLANS
        else [
            (
                "Attacks",
                standing.attacked,
                colour(standing.attack) if standing.attack else "none",
            ),
            *([("Leak", standing.leaked, colour(Outcome.REFUTED))] if standing.leaked else []),
            ("Verification", standing.verified, colour(standing.check) if standing.check else "none"),
        ]
    )
    return el(
        "article",
        el("p", source.report.step, class_="eyebrow"),
        el("h3", source.name),
        _number(lead),
        el("dl", [el("div", el("dt", name), el("dd", text), class_=f"fact {kind}") for name, text, kind in facts]),
        _missing(standing.unchecked),
        class_=f"card verdict {_overall(standing, state)}",
    )


def _overall(standing: Summary, state: str) -> str:
    """The card's own colour: a violation outweighs whatever is guaranteed."""
    return "bad" if standing.worst is Outcome.REFUTED else state


def _number(lead: Guarantee | None) -> Node:
    if lead is None:
        return el("p", el("span", "No guarantee", class_="figure"), class_="headline")
    return el(
        "p",
        el("span", amount(lead), class_="figure"),
        " ",
        pill(lead.status),
        el("span", f"{lead.name}; {protects(lead)}", class_="under"),
        class_="headline",
    )


def _missing(unchecked: Sequence[str]) -> Node | None:
    if not unchecked:
        return None
    return el("div", el("h4", "Not checked"), el("ul", [el("li", line) for line in unchecked]), class_="unchecked")


def legend(standings: Sequence[Summary]) -> Node | None:
    """What the words in the coloured labels mean, of those on the page."""
    found = {g.status for standing in standings for g in standing.subject.source.report.guarantees}
    if not found:
        return None
    return el(
        "ul",
        [el("li", pill(status), " ", meaning) for status, meaning in MEANING.items() if status in found],
        class_="legend",
    )


def chain(dossier: PageData) -> Node:
    """Every report, oldest first, on a rail that joins each with its parents."""
    rows = list(_rails(dossier.sources))
    return el("ol", [_step(source, rail) for source, rail in zip(dossier.sources, rows, strict=True)], class_="chain")


def _step(source: ReportSource, rail: Node) -> Node:
    report = source.report
    marks = [pill(guarantee.status) for guarantee in _distinct(report.guarantees)]
    marks += [pill(outcome) for outcome in sorted({verdict.outcome for verdict in relied_on(report.verdicts)})]
    broken = [verdict for verdict in source.digests if verdict.outcome is Outcome.REFUTED]
    return el(
        "li",
        rail,
        el(
            "div",
            el("p", el("strong", report.step), " ", el("span", source.name, class_="muted"), " ", marks, class_="step"),
            el("p", f"{report.created}, {short(source.digest)}", class_="muted small"),
            _artifacts("read", report.inputs),
            _artifacts("wrote", report.outputs),
            [el("p", f"{verdict.subject}: {verdict.reason}", class_="alarm small") for verdict in broken[:_CHIPS]],
            [el("p", f"Its parent {name} is not at hand.", class_="muted small") for name in source.absent[:_CHIPS]],
            class_="body",
        ),
    )


def _distinct(guarantees: Sequence[Guarantee]) -> list[Guarantee]:
    return list({guarantee.status: guarantee for guarantee in guarantees}.values())


def _artifacts(verb: str, artifacts: Sequence[Artifact]) -> Node | None:
    """The files of a step, those that are neither configuration nor tokenizer first."""
    telling = [a for a in artifacts if a.role not in ("companion", "config", "tokenizer")] or list(artifacts)
    if not telling:
        return None
    chips = [
        el("span", el("b", a.role), f" {a.path} ", el("code", short(a.digest)), f" {size(a.bytes)}", class_="chip")
        for a in telling[:_CHIPS]
    ]
    more = len(artifacts) - len(chips)
    tail = el("span", f"and {more} more", class_="muted small") if more > 0 else None
    return el("p", el("span", verb, class_="muted small"), " ", chips, tail, class_="chips")


def _rails(sources: Sequence[ReportSource]) -> Iterator[Node]:
    """A picture a row: lines of reports still waiting for their children, a dot in this one's lane."""
    waiting = _waiting(sources)
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
        yield _rail(before, lanes, free, joined, bad=worst_of(relied_on(source.report.verdicts)) is Outcome.REFUTED)


def _waiting(sources: Sequence[ReportSource]) -> dict[str, str]:
    """For every report that has children, the last of them."""
    return {parent: source.key for source in sources for parent in source.parents}


def _rail(
    before: Sequence[str | None], after: Sequence[str | None], lane: int, joined: Sequence[int], *, bad: bool
) -> Node:
    count = min(_LANES, max(len(before), len(after), 1))
    width = _LANE * count
    here = _place(lane)
    upper, lower = [], []
    for i in range(count):
        was, will = (lanes[i] if i < len(lanes) else None for lanes in (before, after))
        if i in joined:
            upper.append(el("path", d=f"M{_place(i)} 0L{here} 22"))
        if was is not None and was == will and i != lane:
            upper.append(el("path", d=f"M{_place(i)} 0V22"))
        if will is not None:
            lower.append(el("path", d=f"M{_place(i)} 0V100"))
    upper.append(el("circle", cx=here, cy=22, r=5.5, class_="bad" if bad else None))
    lines = el("svg", lower, class_="lines", viewBox=f"0 0 {width} 100", preserveAspectRatio="none", aria_hidden="true")
    knot = el("svg", upper, class_="knot", viewBox=f"0 0 {width} 44", aria_hidden="true")
    return el("div", lines, knot, class_=f"rail lanes-{count}")


def _place(lane: int) -> float:
    """The middle of a lane; those beyond the last that is drawn share it."""
    return _LANE * (min(lane, _LANES - 1) + 0.5)
