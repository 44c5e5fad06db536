"""Parts of an audit that its report says could not be run: extraction and secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from privctl.domain.report import Omission, PrivacyReport
from privctl.reports.audit_parameters import AskedAudit

EXTRACTION, SECRETS = "extraction", "secrets"
#: The methods of the figures on secrets.
SECRET_METHODS = (
    "secret reconstruction", "secret completion", "secret trace", "secret protection", "secret baseline",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traces:
    """What a part leaves in a report if it was run: the role of its file, its methods, and the prefix of its arrays."""

    role: str
    methods: tuple[str, ...]
    arrays: str


_TRACES = {
    EXTRACTION: _Traces(
        role="train",
        methods=("extraction", "adversarial prefix", "prompts from a file", "divergence", "divergence control"),
        arrays="extraction.",
    ),
    SECRETS: _Traces(
        role="secrets",
        methods=SECRET_METHODS,
        arrays="secret.",
    ),
}


def not_run(report: PrivacyReport) -> frozenset[str]:
    """The parts that ``report`` says could not be run."""
    return frozenset(omission.what for omission in report.omissions if omission.what in _TRACES)


def unmeasured(report: PrivacyReport) -> Iterator[Omission]:
    """Yields an omission of the verification for each of these parts."""
    named = (omission for omission in report.omissions if omission.what in _TRACES)
    yield from (Omission(what=part.what, reason=f"the audit could not measure it: {part.reason}") for part in named)


def faults(report: PrivacyReport, asked: AskedAudit, *, extraction: bool) -> Iterator[str]:
    """Yields one sentence for each sign that such a part was run after all, or was never requested.

    ``extraction`` is whether the report states settings of an extraction.
    """
    for part in sorted(not_run(report)):
        traces = _TRACES[part]
        if traces.role not in asked.files:
            yield f"it says why {part} was not measured, and was not asked to measure it"
        if any(item.method in traces.methods for item in report.evidence) or (extraction and part == EXTRACTION):
            yield f"it says that {part} was not measured, and states what was"


def kept(report: PrivacyReport, arrays: Iterable[str]) -> Iterator[str]:
    """Yields a sentence if an audit kept ``arrays`` of a part that it says it did not run."""
    names = tuple(arrays)
    for part in sorted(not_run(report)):
        if any(name.startswith(_TRACES[part].arrays) for name in names):
            yield f"it says that {part} was not measured, and kept what {part} measures"
