"""Whether the warnings of a report are texts that privctl writes, and none that the report calls for is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.domain.version import VERSION
from privctl.reports.parameters import ParametersError
from verify.methods.expected import TRAINING
from verify.stated import method_of
from verify.texts.warnings.table import TEXTS
from verify.warned.required import RULES
from verify.warned.required_of_audits import contradicted

_SUBJECT = "warnings"
#: The most characters of a text that are shown.
_SHOWN = 120


def check_warnings(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes warnings that are unknown to this version, repeated, missing, or contradicted by the rest of the report.

    An unknown warning of another version or an unknown method is inconclusive.
    """
    try:
        known = {**TEXTS.get(report.step, {}), **_method_texts(report)}
        needed = list(RULES[report.step](report, parents)) if report.step in RULES else []
        unwanted = list(contradicted(report))
    except ParametersError:
        return  # reported by another check
    # The warnings of an unknown method are unknown too.
    same_version = report.versions.get("privctl") == VERSION and (
        report.step != TRAINING or method_of(report) is not None
    )
    for text, times in Counter(report.warnings).items():
        if times > 1:
            yield _refuted(f"it warns {times} times that {_shortened(text)}")
        if any(re.fullmatch(pattern, text, re.DOTALL) for pattern in known.values()):
            continue
        if same_version:
            yield _refuted(f"unknown warning: no {report.step} report of this version says {_shortened(text)}")
        else:
            reason = f"unknown warning: what another version or method may mean by {_shortened(text)} is not known here"
            yield Verdict(subject=_SUBJECT, outcome=Outcome.INCONCLUSIVE, reason=reason)
    for pattern in unwanted:
        if any(re.fullmatch(pattern, text, re.DOTALL) for text in report.warnings):
            yield _refuted(f"what the report says elsewhere contradicts the warning {_shortened(_readable(pattern))}")
    for pattern in dict.fromkeys(needed):
        if not any(re.fullmatch(pattern, text, re.DOTALL) for text in report.warnings):
            yield _refuted(f"what the report says elsewhere calls for the warning {_shortened(_readable(pattern))}")


def _method_texts(report: PrivacyReport) -> dict[str, str]:
    method = method_of(report)
    return {} if method is None else dict(method.warnings)


def _refuted(reason: str) -> Verdict:
    return Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=reason)


def _readable(pattern: str) -> str:
    """A regular expression as readable text, with escapes removed and each group replaced by three dots."""
    text, depth, out = pattern, 0, []
    for i, letter in enumerate(text):
        escaped = i > 0 and text[i - 1] == "\\"
        if letter == "(" and not escaped:
            depth += 1
            out += ["..."] if depth == 1 else []
        elif letter == ")" and not escaped:
            depth -= 1
        elif depth == 0 and letter != "\\":
            out.append(letter)
    return "".join(out)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
