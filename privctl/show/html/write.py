"""The whole page, from a dossier to one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from privctl.domain.guarantee import Scope
from privctl.domain.mechanism import WeightNoise
from privctl.show.dossier import ACCOUNT_STEP, PLAN_STEP, PageData
from privctl.show.html.curves import roc_figure, trade_off_figure
from privctl.show.html.exposure import exposure_figure
from privctl.show.html.head import chain, legend, verdict_card
from privctl.show.html.markup import Node, el
from privctl.show.html.measured import account_figure, epsilon_figure, noise_figure, rate_figures, tests_table
from privctl.show.html.style import SCRIPT, STYLE, policy
from privctl.show.html.training import plan_figures, training_figures
from privctl.show.html.words import appendix, digest_table, guarantee_cards, limits, verdict_table
from privctl.show.summary import standing_of

#: A section: its id, its heading, a sentence on it, its parts.
Section = tuple[str, str, str, list[Node]]


def page(dossier: PageData) -> str:
    """The page as text; sections without data are left out."""
    sections = [section for section in _sections(dossier) if section[3]]
    body = el(
        "body",
        el("header", el("div", el("h1", dossier.title), el("p", _subtitle(dossier), class_="muted")), el(
            "button", "Dark", id="theme", type="button", hidden=True
        )),
        el("nav", el("ul", [
            el("li", el("a", title, href=f"#{name}")) for name, title, _, _ in sections
        ]), aria_label="Sections"),
        el("main", [_section(*section) for section in sections]),
        el("footer", el("p", _FOOT)),
        el("script", SCRIPT),
    )  # fmt: skip
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy()),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="generator", content=f"privctl {dossier.version}"),
        el("title", dossier.title),
        el("style", STYLE),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


_FOOT = (
    "This page shows what the reports say; it recomputes nothing but the curves of the room left to an attacker, and "
    "proves nothing. Much in it was measured on private data: share it with those who may read the reports."
)


def _subtitle(dossier: PageData) -> str:
    count = len(dossier.sources)
    newest = max(source.report.created for source in dossier.sources)
    return f"From {count} {'report' if count == 1 else 'reports'}, the newest of {newest}. privctl {dossier.version}."


def _section(name: str, title: str, lede: str, parts: list[Node]) -> Node:
    return el("section", el("h2", title), el("p", lede, class_="lede") if lede else None, parts, id=name)


def _grid(figures: Iterable[Node | None]) -> list[Node]:
    found = [figure for figure in figures if figure is not None]
    return [el("div", found, class_="figures")] if found else []


def _there(parts: Iterable[Node | None]) -> list[Node]:
    return [part for part in parts if part is not None]


def _sections(dossier: PageData) -> Iterator[Section]:
    standings = [standing_of(subject) for subject in dossier.subjects]
    cards = el("div", [verdict_card(standing) for standing in standings], class_="verdicts")
    yield "verdict", "Verdict", "", _there([cards, legend(standings)])
    yield "chain", "From model to model", "Every step whose report is at hand, oldest first.", [chain(dossier)]
    yield (
        "guarantees",
        "Guarantees",
        "A bound counts for as much as what it rests on; each says what that is.",
        [
            *_grid(
                epsilon_figure(subject) for subject in dossier.subjects if subject.source.report.step != ACCOUNT_STEP
            ),
            *_guarantees(dossier),
        ],
    )
    yield (
        "attacks",
        "Attacks",
        "What attackers tried, how well it worked, and what the guarantees leave room for. An attack that found "
        "nothing proves nothing.",
        [*_attacks(dossier)],
    )
    yield "noise", "Noise", "", _grid(
        noise_figure(source, source.report.mechanism.noise_stddev)
        for source in dossier.sources
        if isinstance(source.report.mechanism, WeightNoise)
    )  # fmt: skip
    trained = [figure for source in dossier.sources for figure in training_figures(source)]
    yield "training", "Training", "Measured on private examples: not covered by any guarantee.", _grid(trained)
    planned = [figure for source in dossier.with_step(PLAN_STEP) for figure in plan_figures(source)]
    yield "plan", "Plan for secrets", "What protecting every secret costs in data and noise.", _grid(planned)
    accounts = _grid(account_figure(source) for source in dossier.with_step(ACCOUNT_STEP))
    yield "accounting", "Accounting", "What each theorem says of the planned noise, and what is true.", accounts
    yield "verification", "Verdicts and digests", "", _verdicts(dossier)
    yield "limits", "What this does not show", "", list(limits(dossier))
    yield (
        "appendix",
        "Reports",
        "Settings, files and versions, as the reports have them.",
        [el("div", [appendix(source) for source in dossier.sources], class_="appendix")],
    )


def _guarantees(dossier: PageData) -> Iterator[Node]:
    sources = [source for source in dossier.sources if source.report.step != ACCOUNT_STEP]
    one, all_of = ([c for s in sources for c in guarantee_cards(s, scope)] for scope in Scope)
    if one:
        yield el("div", one, class_="cards")
    if all_of:
        summary = f"What holds for whoever sees all candidates of a run ({len(all_of)})"
        yield el("details", el("summary", summary), el("div", all_of, class_="cards"))


def _attacks(dossier: PageData) -> Iterator[Node]:
    figures: list[Node | None] = [roc_figure(source) for source in dossier.sources]
    figures += [trade_off_figure(subject) for subject in dossier.subjects]
    figures += [exposure_figure(source) for source in dossier.sources]
    figures += [figure for source in dossier.sources for figure in rate_figures(source)]
    yield from _grid(figures)
    tests = _there(tests_table(source) for source in dossier.sources)
    if tests:
        yield el("details", el("summary", "Tests and their p-values"), tests)


def _verdicts(dossier: PageData) -> list[Node]:
    digests = digest_table(dossier)
    counted = None if digests is None else el("details", el("summary", "Digests of files at hand"), digests)
    return _there([verdict_table(dossier), counted])
