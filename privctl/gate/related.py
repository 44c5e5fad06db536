"""How reports relate: which report wrote what another one read.

Everything is looked up by digest, so that the work grows with the number of reports and not with its square.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from privctl.gate.files import LoadedReport

#: Steps that read no data, and the roles of the inputs from which they make a model.
_NO_DATA = {"noise": ("model",), "replay": ("updates",)}


class RelatedReports:
    """All reports of one judgement, indexed by what they read and wrote."""

    def __init__(self, everything: Iterable[LoadedReport]) -> None:
        self._by_digest: dict[str, LoadedReport] = {}
        self._order: dict[str, int] = {}
        self._makers: dict[frozenset[str], list[LoadedReport]] = defaultdict(list)
        self._lookers: dict[frozenset[str], list[LoadedReport]] = defaultdict(list)
        self._children: dict[str, list[LoadedReport]] = defaultdict(list)
        self._givers: dict[str, list[LoadedReport]] = defaultdict(list)
        self._writers: dict[str, list[LoadedReport]] = defaultdict(list)
        for report in everything:
            self._by_digest[report.digest] = report
            self._order[report.digest] = len(self._order)
            self._makers[report.makes].append(report)
            self._lookers[report.looks_at].append(report)
            if not report.makes and not report.looks_at:
                for digest in dict.fromkeys(parent.digest for parent in report.report.parents):
                    self._children[digest].append(report)
            for digest in report.gives:
                self._givers[digest].append(report)
            for digest in dict.fromkeys(a.digest for a in report.report.outputs):
                self._writers[digest].append(report)

    def makers(self, digests: frozenset[str]) -> tuple[LoadedReport, ...]:
        """The reports of steps that wrote exactly these weights."""
        return tuple(self._makers.get(digests, ()))

    def released_by(self, start: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """The reports from whose outputs alone ``start``, and so on upwards, made their models."""
        return _closure(start, self._released_by)

    def before(self, start: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """The reports that ``start`` builds on, or whose weights or updates it read, and so on upwards."""
        return _closure(start, self._before)

    def looks(self, digests: frozenset[str], history: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """The reports that read exactly these weights, or that build only on reports of their past."""
        past = {each.digest: None for each in (*history, *self._lookers.get(digests, ()))}
        looked = [each for each in self._lookers.get(digests, ()) if not each.makes]
        above = {each.digest: each for digest in past for each in self._children.get(digest, ())}
        looked += [each for digest, each in above.items() if digest not in past]
        return tuple(sorted(looked, key=lambda each: self._order[each.digest]))

    def _released_by(self, report: LoadedReport) -> Iterator[LoadedReport]:
        """The reports that wrote everything from which ``report`` made its model."""
        roles = _NO_DATA.get(report.report.step, ())
        read = {a.digest for a in report.report.inputs if a.role in roles}
        for other in self._writers.get(min(read), ()) if read else ():
            if read <= {a.digest for a in other.report.outputs}:
                yield other

    def _before(self, report: LoadedReport) -> Iterator[LoadedReport]:
        for parent in report.report.parents:
            if parent.digest in self._by_digest:
                yield self._by_digest[parent.digest]
        for digest in report.reads:
            yield from (other for other in self._givers.get(digest, ()) if other is not report)


def _closure(
    start: tuple[LoadedReport, ...], above: Callable[[LoadedReport], Iterator[LoadedReport]]
) -> tuple[LoadedReport, ...]:
    """Everything above ``start``, without ``start`` itself."""
    reached = {each.digest: each for each in start}
    starts = set(reached)
    waiting = list(start)
    while waiting:
        for other in above(waiting.pop()):
            if other.digest not in reached:
                reached[other.digest] = other
                waiting.append(other)
    return tuple(each for digest, each in reached.items() if digest not in starts)
