"""How reports relate: which report wrote what another one read.

Everything is looked up by digest, so the work is linear in the number of reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from privctl.gate.files import LoadedReport

#: Steps that read no training data -> the roles of the inputs from which they make a model.
_NO_DATA = {"noise": ("model",), "replay": ("updates",)}


class RelatedReports:
    """All reports of one judgement, indexed by the digests of what they read and wrote."""

    def __init__(self, everything: Iterable[LoadedReport]) -> None:
        self._by_digest: dict[str, LoadedReport] = {}
        self._order: dict[str, int] = {}
        self._by_weights_written: dict[frozenset[str], list[LoadedReport]] = defaultdict(list)
        self._by_weights_read: dict[frozenset[str], list[LoadedReport]] = defaultdict(list)
        self._children: dict[str, list[LoadedReport]] = defaultdict(list)
        self._by_released: dict[str, list[LoadedReport]] = defaultdict(list)
        self._by_output: dict[str, list[LoadedReport]] = defaultdict(list)
        for report in everything:
            self._by_digest[report.digest] = report
            self._order[report.digest] = len(self._order)
            self._by_weights_written[report.weights_written].append(report)
            self._by_weights_read[report.weights_read].append(report)
            if not report.weights_written and not report.weights_read:
                for digest in dict.fromkeys(parent.digest for parent in report.report.parents):
                    self._children[digest].append(report)
            for digest in report.released:
                self._by_released[digest].append(report)
            for digest in dict.fromkeys(a.digest for a in report.report.outputs):
                self._by_output[digest].append(report)

    def writers(self, digests: frozenset[str]) -> tuple[LoadedReport, ...]:
        """The reports of steps that wrote exactly these weights."""
        return tuple(self._by_weights_written.get(digests, ()))

    def post_processed(self, start: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """The ancestors of ``start`` of whose outputs its models are post-processing, without further data."""
        return _closure(start, self._post_processed)

    def ancestors(self, start: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """All reports that those in ``start`` build on, or whose weights or updates they read, directly or not."""
        return _closure(start, self._ancestors)

    def examinations(self, digests: frozenset[str], history: tuple[LoadedReport, ...]) -> tuple[LoadedReport, ...]:
        """The reports that read exactly these weights and wrote none, or that build on reports of ``history``."""
        past = {report.digest: None for report in (*history, *self._by_weights_read.get(digests, ()))}
        examined = [report for report in self._by_weights_read.get(digests, ()) if not report.weights_written]
        above = {report.digest: report for digest in past for report in self._children.get(digest, ())}
        examined += [report for digest, report in above.items() if digest not in past]
        return tuple(sorted(examined, key=lambda report: self._order[report.digest]))

    def _post_processed(self, report: LoadedReport) -> Iterator[LoadedReport]:
        """The reports that wrote all inputs from which ``report`` made its model without data."""
        roles = _NO_DATA.get(report.report.step, ())
        read = {a.digest for a in report.report.inputs if a.role in roles}
        for other in self._by_output.get(min(read), ()) if read else ():
            if read <= {a.digest for a in other.report.outputs}:
                yield other

    def _ancestors(self, report: LoadedReport) -> Iterator[LoadedReport]:
        for parent in report.report.parents:
            if parent.digest in self._by_digest:
                yield self._by_digest[parent.digest]
        for digest in report.inputs_read:
            yield from (other for other in self._by_released.get(digest, ()) if other is not report)


def _closure(
    start: tuple[LoadedReport, ...], above: Callable[[LoadedReport], Iterator[LoadedReport]]
) -> tuple[LoadedReport, ...]:
    """All reports reached from ``start`` by repeating ``above``, without ``start`` itself."""
    reached = {report.digest: report for report in start}
    starts = set(reached)
    waiting = list(start)
    while waiting:
        for other in above(waiting.pop()):
            if other.digest not in reached:
                reached[other.digest] = other
                waiting.append(other)
    return tuple(report for digest, report in reached.items() if digest not in starts)
