"""Computes the figures of an audit of secrets again, from the ranks that it kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.digest import NamedFiles
from verify.audits.ranks.drawn_again import is_same_numpy
from verify.audits.recounted import Recounted, kept_file
from verify.audits.secrets import rates, records_alone, traces
from verify.audits.secrets.kept import KeptSecrets, kept_secrets
from verify.audits.secrets.planned import other_bounds

_PROTECTION = "secret protection"
_CLOSE = 1e-6


def recount_secrets(path: Path, report: PrivacyReport, files: NamedFiles) -> Recounted:
    """Compare the figures of secrets in the audit report at ``path`` with the kept ranks, if present."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    if stated is None or stated.secrets is None:
        return Recounted()
    try:
        kept = kept_secrets(path, report, files)
    except InputError as fault:
        return Recounted(wrong=(f"what it kept of its secrets cannot be read ({fault})",))
    place = kept_file(path, report, files)
    if kept is None or place is None:
        return Recounted()
    drawn = _Drawn(seed=stated.secrets.get("seed"), same=is_same_numpy(report))
    kinds = [
        item.quantity.removeprefix(rates.KIND)
        for item in report.evidence
        if item.method == rates.RECONSTRUCTION and item.quantity.startswith(rates.KIND)
    ]
    items: list[Evidence] = []
    try:
        wrong = [f"{_PROTECTION}: {fault}" for fault in other_bounds(path, report, kept, place)]
    except InputError as fault:
        wrong = [f"{_PROTECTION}: its bounds are not those of the plan at hand ({fault})"]
    for item in report.evidence:
        try:
            faults = _faults(item, kept, kinds, drawn)
        except LookupError as missing:
            faults = [f"it lacks the entry {missing}, without which it cannot be computed again"]
        if faults is not None:
            items.append(item)
            wrong += [f"{item.method}, {item.quantity}: {fault}" for fault in faults]
    return Recounted(items=tuple(items), wrong=tuple(wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The seed of the permutations, and whether this numpy is the version that drew them."""

    seed: object
    same: bool


def _faults(item: Evidence, kept: KeptSecrets, kinds: Sequence[str], drawn: _Drawn) -> list[str] | None:
    """What is wrong with ``item``, a sentence each; None if what was kept does not give it."""
    if item.method == traces.TRACE:
        if not isinstance(drawn.seed, int) or drawn.seed < 0:
            return [f"the seed of its permutations is {drawn.seed!r}, and must be a whole number"]
        again = traces.tested_again(item, kept, drawn.seed, same=drawn.same)
        return None if again is None else list(again.faults(item))
    wanted: Mapping[str, float] | None = None
    if item.method in (rates.RECONSTRUCTION, rates.COMPLETION):
        wanted = rates.counted_again(item, kept, kinds)
    elif item.method == records_alone.BASELINE:
        wanted = records_alone.baseline_again(item, kept)
    elif item.method == _PROTECTION:
        wanted = traces.plan_again(kept)
    if wanted is None:
        return None
    fault = rates.expected_share_fault(item, kept)
    return [*_differences(item, wanted), *([fault] if fault else [])]


def _differences(item: Evidence, wanted: Mapping[str, float]) -> Iterator[str]:
    """Yields a sentence for each entry of ``item`` that differs; an estimate of NaN stands for none."""
    for name, value in wanted.items():
        stated = item.estimate if name == "estimate" else item.details.get(name, item.samples.get(name))
        number = math.nan if stated is None else float(stated)
        if math.isnan(number) and math.isnan(value):
            continue
        if not math.isclose(number, value, rel_tol=_CLOSE, abs_tol=1e-9):
            yield f"its {name} is {number:.6g}, and what was kept gives {value:.6g}"
