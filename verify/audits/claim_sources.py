"""Whether verdicts on claims say truly who makes them: the caller, or a guarantee or mechanism of the model's report.

Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from privctl.domain.event import Event
from privctl.domain.events import (
    BandedGaussian,
    BestOfRuns,
    BufferedGaussian,
    GroupGaussian,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters

#: Parts of the subjects of verdicts on a claim and on a mechanism.
CLAIM, _MECHANISM = ")-DP", "): the mechanism stated in "
#: The end of the subject of a verdict on a claim.
_SOURCE = re.compile(
    r", (?:as claimed|(?P<guarantee>(?P<status>[a-z]+) in (?P<file>.+) \((?P<name>.+), (?P<adjacency>[a-z-]+)\)))"
)


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each verdict whose subject names another source, or another mechanism, than it has."""
    own = {PurePosixPath(parent.path).name for parent in report.parents}
    for verdict in report.verdicts:
        subject = verdict.subject
        if not subject.startswith("("):
            continue
        if CLAIM in subject:
            source = _source(subject)
            if source is None:
                yield f"its verdict on {subject!r} does not say whose claim that is"
            elif source["file"] is not None and source["file"] not in own:
                yield f"its verdict on {subject!r} is on a claim of a report that the audit does not build on"
        elif _MECHANISM in subject:
            words, _, file = subject.removeprefix("(").partition(_MECHANISM)
            if file not in own:
                yield f"its verdict on {subject!r} is on a mechanism of a report that the audit does not build on"
            tested = parameters.canary_mechanism
            if tested is not None and words != (wanted := ", then ".join(map(_in_words, tested.events))):
                yield f"its verdict on {subject!r} is on another mechanism than it tested, which is {wanted}"


def misattributed(report: PrivacyReport, makers: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields one sentence for each claim that none of the ``makers`` of the model makes with the status it is given."""
    made = {f"{g.status} in {{}} ({g.name}, {g.adjacency})" for maker in makers for g in maker.guarantees}
    for verdict in report.verdicts if makers else ():
        source = _source(verdict.subject) if CLAIM in verdict.subject else None
        if source is not None and source["file"] is not None:
            stated = f"{source['status']} in {{}} ({source['name']}, {source['adjacency']})"
            if stated not in made:
                yield f"its verdict on {verdict.subject!r} is on a claim that the model's report does not make so"


def _source(subject: str) -> re.Match[str] | None:
    """The source that ends the ``subject`` of a verdict on a claim; None if it names none."""
    found = [match for match in _SOURCE.finditer(subject) if match.end() == len(subject)]
    return found[0] if found else None


def _in_words(event: Event) -> str:
    """An event as audits name it, by its numbers to six digits."""
    noise = f"noise multiplier {getattr(event, 'noise_multiplier', 0.0):.6g}"
    steps = f"{event.steps} steps"
    if isinstance(event, BandedGaussian):
        return f"{noise} over {event.bands} bands, {steps}"
    if isinstance(event, BufferedGaussian):
        return f"{noise}, {event.buffers} buffers, {steps}"
    if not isinstance(event, SampledGaussian | GroupGaussian | TruncatedGaussian | BestOfRuns):
        return f"{event.tag}, {steps}"
    rate = f"rate {event.sample_rate:.6g}"
    if isinstance(event, BestOfRuns):
        number = f"the best of a random number of runs, {event.mean_runs:g} on average"
        return f"{number}: {noise}, {rate}, {event.run_steps} steps"
    if isinstance(event, GroupGaussian):
        return f"{noise}, {rate}, {steps}, up to {event.group_size} records of a user together"
    if isinstance(event, TruncatedGaussian):
        return f"{noise}, {rate}, {steps} of at most {event.largest_batch} of {event.examples} examples"
    return f"{noise}, {rate}, {steps}"
