"""A verification as a report, which names the report it verified by digest."""

from __future__ import annotations

from pathlib import Path

from privctl.domain.report import ParentReport, PrivacyReport
from privctl.reports.files import now, relative, versions
from privctl.storage.digest import file_digest
from verify.run import Verification


def as_report(verification: Verification, report_path: Path, seed: int | None) -> PrivacyReport:
    """The report to write at ``report_path``; ``seed`` is the simulation's seed, or None if nothing was simulated."""
    parent = ParentReport(path=relative(verification.path, report_path), digest=file_digest(verification.path))
    return PrivacyReport(
        step="verify",
        created=now(),
        versions=versions(("numpy", "scipy", "python-flint", "blake3")),
        parameters={"simulated": seed is not None, **({} if seed is None else {"seed": seed})},
        evidence=verification.evidence,
        verdicts=verification.verdicts,
        omissions=verification.omissions,
        parents=(parent,),
    )
