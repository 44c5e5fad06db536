"""Computes the figures of an extraction audit again, from what it kept of each text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.digest import NamedFiles
from verify.audits.extraction import recounted_alike, recounted_searches, recounted_texts
from verify.audits.extraction.kept import KeptExtraction, kept_extraction
from verify.audits.recounted import Recounted

_CLOSE = 1e-6
#: Why a record has no verdict, by the numbers in the file.
_SKIPPED = {
    1: "of fewer tokens than a prefix and a suffix",
    2: "beginning with the same prefix and suffix as an earlier one of their file",
    3: "given NaN or infinite scores by the model",
    4: "held out, but beginning with the same prefix and suffix as a training record",
}
_NOT_FINITE = 3
#: What counts for certain and what may count, which only Fisher's test needs.
_TESTED = ("_least", "_most")
_OMITTED = re.compile(r"([0-9]+) records? of .+ in extraction \(line .+", re.DOTALL)


def recount_extraction(path: Path, report: PrivacyReport, files: NamedFiles) -> Recounted:
    """Compare the figures of extraction in the audit report at ``path`` with what it kept of each text, if present."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    if stated is None or stated.extraction is None:
        return Recounted()
    settings = stated.extraction
    suffix = settings.get("suffix_tokens")
    try:
        kept = kept_extraction(path, report, files, suffix if isinstance(suffix, int) else None)
    except InputError as fault:
        return Recounted(wrong=(f"what it kept of its texts cannot be read ({fault})",))
    if kept is None:
        return Recounted()
    items, wrong = [], [*_records(report, settings, kept), *recounted_alike.left_out(report.evidence, kept)]
    for item in report.evidence:
        try:
            faults = _faults(item, kept, settings)
        except LookupError as missing:
            faults = [f"it lacks the entry {missing}, without which it cannot be computed again"]
        if faults is not None:
            items.append(item)
            wrong += [f"{item.method}, {item.quantity}: {fault}" for fault in faults]
    return Recounted(items=tuple(items), wrong=tuple(wrong))


def _faults(item: Evidence, kept: KeptExtraction, settings: Mapping[str, Any]) -> list[str] | None:
    """What is wrong with ``item``, a sentence each; None if what was kept does not give it."""
    if recounted_alike.repeats(item):
        fault = recounted_alike.fault(item, kept, settings)
        return None if fault is None else [fault] if fault else []
    if item.method == recounted_texts.METHOD:
        wanted = recounted_texts.counted_again(item, kept, settings)
        fault = recounted_texts.sampling_fault(item, kept)
        return None if wanted is None else [*_differences(item, wanted), *([fault] if fault else [])]
    wanted = recounted_searches.counted_again(item, kept, settings)
    return None if wanted is None else list(_differences(item, wanted))


def _differences(item: Evidence, wanted: Mapping[str, float]) -> Iterator[str]:
    """Yields a sentence for each entry of ``item`` that differs.

    An estimate of NaN stands for none, and a count of 0 need not be stated, nor what only tests count.
    """
    for name, value in wanted.items():
        if name.endswith(_TESTED) and name not in item.details:
            continue
        if name.startswith("sample "):
            stated: float | None = item.samples.get(name.removeprefix("sample "))
        else:
            stated = item.estimate if name == "estimate" else item.details.get(name)
        if (stated is None and (math.isnan(value) or (value == 0 and name != "estimate"))) or stated == value:
            continue
        number = math.nan if stated is None else float(stated)
        if not math.isclose(number, value, rel_tol=_CLOSE, abs_tol=1e-9):
            yield f"its {name} is {number:.6g}, and what was kept gives {value:.6g}"


def _records(report: PrivacyReport, settings: Mapping[str, Any], kept: KeptExtraction) -> Iterator[str]:
    """Yields a sentence if the report does not say how many records have no verdict, and why, or how many it drew."""
    if "skipped_reason" not in kept or "skipped_train" not in kept:
        return
    skipped = list(zip(kept["skipped_train"].tolist(), kept["skipped_reason"].tolist(), strict=True))
    found = Counter((count, _SKIPPED.get(why, "")) for (_, why), count in Counter(skipped).items())
    stated = Counter(
        (int(match[1]), omission.reason)
        for omission in report.omissions
        if (match := _OMITTED.fullmatch(omission.what))
    )
    for count, reason in sorted((found - stated).keys()):
        yield f"extraction: what it kept lacks {count} records {reason}, and it does not say that it left these out"
    drawn = int(kept["train"].sum()) + skipped.count((True, _NOT_FINITE))
    if settings.get("drawn") != drawn:
        yield f"extraction: it kept {drawn} training texts, and says that {settings.get('drawn')} were drawn"
