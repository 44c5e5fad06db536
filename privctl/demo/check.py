"""The last step of the demonstration: verifies every report in its folder, as ``privctl verify`` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import ExitCode
from privctl.domain.guarantee import Status
from privctl.domain.progress import Progress, unseen
from privctl.domain.verdict import Outcome
from verify.run import read, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationCounts:
    """The outcome of ``privctl verify`` for all reports; ``failed`` are those that do not pass.

    ``proved`` counts guarantees that are proved, ``claims_refuted`` those that are only claimed and are refuted.
    """

    reports: int
    proved: int
    claims_refuted: int
    failed: tuple[Path, ...] = ()
    exit_code: ExitCode = ExitCode.OK


def check(folder: Path, progress: Progress = unseen) -> VerificationCounts:
    """Verify every report in ``folder`` (``*.report.json``). Raises InputError if one cannot be read."""
    paths = sorted(folder.glob("*.report.json"))
    verifications = []
    with progress("verification", len(paths), "reports") as advance:
        for path in paths:
            verifications.append(verify(path, read(path)))
            advance(1)
    verdicts = [judged.verdict for verification in verifications for judged in verification.guarantees]
    failed = [verification for verification in verifications if verification.exit_code is not ExitCode.OK]
    refuted = any(verification.exit_code is ExitCode.REFUTED for verification in failed)
    return VerificationCounts(
        reports=len(verifications),
        proved=sum(verdict.outcome is Outcome.PROVED for verdict in verdicts),
        claims_refuted=sum(v.outcome is Outcome.REFUTED and v.status is Status.CLAIMED for v in verdicts),
        failed=tuple(verification.path for verification in failed),
        exit_code=ExitCode.OK if not failed else ExitCode.REFUTED if refuted else ExitCode.BAD_INPUT,
    )
