"""Which reports speak of which model: each model that was made is judged by the reports that are about it.

Models are told apart by the digests of their weights. A step that only adds noise, or replays published updates, works
on what was released already: what is guaranteed of its input holds of its output too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from privctl.domain.gate import Finding, GateOutcome, Place
from privctl.domain.guarantee import Guarantee
from privctl.gate.chain import Docket
from privctl.gate.files import Loaded
from privctl.gate.model import ModelAtHand

MODEL = "model"
#: Steps that read no data, and the roles of what they make a model of.
_NO_DATA = {"noise": ("model",), "replay": ("updates",)}
_START = "start-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model: the reports of how it was made, those whose guarantees carry over to it, and those that looked at it.

    ``history`` are all reports in its past, its own included. ``anchor`` is where a finding about something missing is
    put, unless the policy says where it was asked for.
    """

    name: str
    digests: frozenset[str]
    makers: tuple[Loaded, ...]
    inherited: tuple[Loaded, ...]
    looks: tuple[Loaded, ...]
    history: tuple[Loaded, ...]
    now: datetime
    anchor: Place

    @property
    def guarantees(self) -> Iterator[tuple[Loaded, int, Guarantee]]:
        """Every guarantee that holds of this model, with its report and its position there."""
        for report in (*self.makers, *self.inherited):
            for i, guarantee in enumerate(report.report.guarantees):
                yield report, i, guarantee

    @property
    def audits(self) -> tuple[Loaded, ...]:
        """The audits of this model."""
        return tuple(each for each in self.looks if each.report.step == "audit")

    def verifies(self, report: Loaded) -> bool:
        """Whether ``report`` looked at how this very model was made, and not at an audit or an earlier model alone."""
        made = {each.digest for each in self.makers}
        return report.looks_at == self.digests or any(parent.digest in made for parent in report.report.parents)


def cases_of(docket: Docket, model: ModelAtHand | None, now: datetime) -> tuple[Case, ...]:
    """The model at hand where there is one; else every model that was made last, or audited without its own report."""
    everything = docket.all
    if model is not None:
        name, digests = str(model.path), model.digests
        anchor = docket.given[0].place() if docket.given else Place(path=str(model.path))
        return (_case(name, digests, everything, now, anchor),)
    wanted: dict[frozenset[str], Loaded] = {}
    for report in docket.given:
        if report.makes and not any(_consumes(other, report) for other in docket.given if other.makes):
            wanted.setdefault(report.makes, report)
    known = {digest for report in everything for digest in report.makes}
    made = bool(wanted)
    for report in docket.given:
        about = report.looks_at
        if not report.makes and about and not (made and about <= known):
            wanted.setdefault(about, report)
    return tuple(_case(_name(report), digests, everything, now, report.place()) for digests, report in wanted.items())


def strangers(docket: Docket, cases: Iterable[Case], model: ModelAtHand | None) -> Iterator[tuple[Loaded, str]]:
    """The reports given that are about none of the ``cases``, and what they are about instead."""
    concerned = {each.digest for case in cases for each in (*case.history, *case.looks)}
    seen = {digest for case in cases for each in case.history for digest in each.makes | each.looks_at}
    for report in docket.given:
        if report.digest in concerned:
            continue
        about = report.makes or report.looks_at
        if not about:
            yield report, "no model"
        elif about & seen:
            yield report, "an earlier model of the chain"
        else:
            yield report, "another model"


def not_at_hand(case: Case, model: ModelAtHand) -> Iterator[Finding]:
    """Whether ``model`` is the one that ``case``'s reports describe, its companion files included."""
    if not case.makers:
        looked = " (they only looked at it)" if case.looks else ""
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE if case.looks else GateOutcome.FAIL,
            subject=case.name,
            message=f"no report says that it made these weights{looked}; their digest is {min(case.digests)}",
            fix="give the report that was written with this model, or the model that the reports are about",
            place=case.anchor,
        )
        return
    changed = False
    for report in case.makers:
        for i, artifact in enumerate(report.report.outputs):
            if artifact.role != "companion":
                continue
            name = PurePosixPath(artifact.path).name
            found = model.companion(name)
            if found == artifact.digest:
                continue
            changed = True
            yield Finding(
                rule=MODEL,
                outcome=GateOutcome.INCONCLUSIVE if found is None else GateOutcome.FAIL,
                subject=name,
                message=f"{name} beside the weights is {'missing' if found is None else 'not the one recorded'}",
                fix="restore it as it was written with the model",
                place=report.place("outputs", i, "digest"),
            )
    if not changed:
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message="the model at hand is the one that the reports describe",
            place=case.makers[0].place("outputs"),
        )


def started_from(report: Loaded, everything: Iterable[Loaded]) -> Iterator[Loaded]:
    """The reports among ``everything`` that made the weights which ``report``'s training began with."""
    start = {a.digest for a in report.report.inputs if a.role.startswith(_START)}
    return (each for each in everything if each.makes & start)


def _case(name: str, digests: frozenset[str], everything: tuple[Loaded, ...], now: datetime, anchor: Place) -> Case:
    makers = tuple(each for each in everything if each.makes == digests)
    inherited = _closure(makers, everything, _released_by)
    history = (*makers, *_closure(makers, everything, _before))
    past = {each.digest for each in (*history, *everything) if each in history or each.looks_at == digests}
    looks = tuple(
        each
        for each in everything
        if not each.makes
        and (
            each.looks_at == digests
            or (
                not each.looks_at
                and any(parent.digest in past for parent in each.report.parents)
                and each not in history
            )
        )
    )
    return Case(
        name=name,
        digests=digests,
        makers=makers,
        inherited=inherited,
        looks=looks,
        history=history,
        now=now,
        anchor=makers[0].place("outputs") if makers else anchor,
    )  # fmt: skip


def _closure(
    start: tuple[Loaded, ...], everything: tuple[Loaded, ...], above: Callable[[Loaded, Loaded], bool]
) -> tuple[Loaded, ...]:
    """What lies above ``start``, itself left out."""
    begun = {each.digest for each in start}
    found: dict[str, Loaded] = {each.digest: each for each in start}
    waiting = list(start)
    while waiting:
        report = waiting.pop()
        for other in everything:
            if other.digest not in found and above(report, other):
                found[other.digest] = other
                waiting.append(other)
    return tuple(each for digest, each in found.items() if digest not in begun)


def _released_by(report: Loaded, other: Loaded) -> bool:
    """Whether ``report`` made its model of nothing but what ``other`` wrote."""
    roles = _NO_DATA.get(report.report.step, ())
    read = {a.digest for a in report.report.inputs if a.role in roles}
    return bool(read) and read <= {a.digest for a in other.report.outputs}


def _before(report: Loaded, other: Loaded) -> bool:
    """Whether ``other`` is a parent of ``report``, or wrote what it read."""
    return any(parent.digest == other.digest for parent in report.report.parents) or _consumes(report, other)


def _consumes(report: Loaded, other: Loaded) -> bool:
    if report is other:
        return False
    read = {a.digest for a in report.report.inputs}
    return bool(read & (other.makes | {a.digest for a in other.report.outputs if a.role == "updates"}))


def _name(report: Loaded) -> str:
    artifacts = [a for a in (*report.report.outputs, *report.report.inputs) if a.role == "model"]
    folders = {str(PurePosixPath(a.path).parent) for a in artifacts if a.digest in (report.makes or report.looks_at)}
    return folders.pop() if len(folders) == 1 and folders != {"."} else artifacts[0].path
