"""The page: one self-contained HTML file from the data of reports.

``templates/page.html`` lists the sections. ``templates/NAME.html`` lays out the section NAME from what ``_parts``
returns under that name. A section with nothing to show is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from privctl.domain.guarantee import Guarantee, Scope
from privctl.domain.mechanism import WeightNoise
from privctl.show.audited import measured_parts
from privctl.show.html.chain_figure import chain
from privctl.show.html.curves import roc_figure, trade_off_figure
from privctl.show.html.evidence_figures import (
    account_figure,
    comparison_figure,
    epsilon_figure,
    noise_figure,
    rate_figures,
    tests_table,
)
from privctl.show.html.exposure import exposure_figure
from privctl.show.html.render import render_template
from privctl.show.html.training import plan_figures, training_figures
from privctl.show.html.values import Figure, Table
from privctl.show.html.words import (
    digest_table,
    file_table,
    limits,
    setting_table,
    shared_assumptions,
    verdict_table,
)
from privctl.show.page_data import ACCOUNT_STEP, PLAN_STEP, PLANS, PageData, ReportSource
from privctl.show.summary import MEANING, summarize
from privctl.show.svg.axes import WIDTH

#: Most guarantees of one report that are shown.
_MOST = 60
_T = TypeVar("_T")

Part = dict[str, object]


def page(data: PageData) -> str:
    """The page as HTML text; sections without data are left out."""
    parts = {name: part for name, part in _parts(data).items() if any(part.values())}
    newest = max(source.report.created for source in data.sources)
    return render_template("page.html", {"data": data, "newest": newest, "parts": parts, "width": WIDTH})


def _parts(data: PageData) -> dict[str, Part]:
    sources = data.sources
    return {
        "verdict": _verdict(data),
        "chain": {"steps": chain(sources)},
        "guarantees": _guarantees(data),
        "attacks": _attacks(data),
        "noise": {
            "figures": _present(
                noise_figure(source, source.report.mechanism.noise_stddev)
                for source in sources
                if isinstance(source.report.mechanism, WeightNoise)
            )
        },
        "training": {"figures": [figure for source in sources for figure in training_figures(source)]},
        "plan": {"figures": [figure for source in data.with_step(PLAN_STEP) for figure in plan_figures(source)]},
        "accounting": _accounting(data),
        "verification": {"verdicts": verdict_table(data), "digests": digest_table(data)},
        "limits": {"lines": limits(data)},
        "appendix": {"reports": [(source, file_table(source), setting_table(source)) for source in sources]},
    }


def _present(values: Iterable[_T | None]) -> list[_T]:
    return [value for value in values if value is not None]


def _verdict(data: PageData) -> Part:
    summaries = [summarize(subject) for subject in data.subjects]
    statuses = {g.status for summary in summaries for g in summary.subject.source.report.guarantees}
    return {
        "cards": [
            (summary, summary.subject.source.report.step in PLANS, measured_parts(summary.subject))
            for summary in summaries
        ],
        "figures": _present([comparison_figure(data)]),
        "legend": [(status, meaning) for status, meaning in MEANING.items() if status in statuses],
    }


def _guarantees(data: PageData) -> Part:
    sources = [source for source in data.sources if source.report.step != ACCOUNT_STEP]
    drawn = (subject for subject in data.subjects if subject.source.report.step != ACCOUNT_STEP)
    return {
        "figures": _present(epsilon_figure(subject) for subject in drawn),
        "shared": [(source, shared) for source in sources if (shared := shared_assumptions(source.report))],
        "of_one": [pair for source in sources for pair in _scoped(source, Scope.THIS_MODEL)],
        "of_all": [pair for source in sources for pair in _scoped(source, Scope.ALL_CANDIDATES)],
    }


def _scoped(source: ReportSource, scope: Scope) -> list[tuple[Guarantee, ReportSource]]:
    guarantees = [guarantee for guarantee in source.report.guarantees if guarantee.scope is scope]
    return [(guarantee, source) for guarantee in guarantees[:_MOST]]


def _attacks(data: PageData) -> Part:
    sources = data.sources
    figures = [
        *(roc_figure(source) for source in sources),
        *(trade_off_figure(subject) for subject in data.subjects),
        *(exposure_figure(source) for source in sources),
        *(figure for source in sources for figure in rate_figures(source)),
    ]
    return {"figures": _present(figures), "tests": _present(tests_table(source) for source in sources)}


def _accounting(data: PageData) -> Part:
    figures = _present(account_figure(source) for source in data.with_step(ACCOUNT_STEP))
    return {
        "figures": [item for item in figures if isinstance(item, Figure)],
        "tables": [item for item in figures if isinstance(item, Table)],
    }
