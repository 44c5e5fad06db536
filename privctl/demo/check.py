"""The demonstration's last act: every report in its folder verified, as ``privctl verify`` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import ExitCode
from privctl.domain.guarantee import Status
from privctl.domain.verdict import Outcome
from verify.run import read, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What ``privctl verify`` says of all reports; ``failed`` are those that it does not pass.

    ``proved`` counts the guarantees to rely on that hold, ``false`` those that their report only calls claimed and that
    do not.
    """

    reports: int
    proved: int
    false: int
    failed: tuple[Path, ...] = ()
    exit_code: ExitCode = ExitCode.OK


def check(folder: Path) -> Checked:
    """Verify every report in ``folder``."""
    verifications = [verify(path, read(path)) for path in sorted(folder.glob("*.report.json"))]
    verdicts = [judged.verdict for verification in verifications for judged in verification.guarantees]
    failed = [verification for verification in verifications if verification.exit_code is not ExitCode.OK]
    refuted = any(verification.exit_code is ExitCode.REFUTED for verification in failed)
    return Checked(
        reports=len(verifications),
        proved=sum(verdict.outcome is Outcome.PROVED for verdict in verdicts),
        false=sum(v.outcome is Outcome.REFUTED and v.status is Status.CLAIMED for v in verdicts),
        failed=tuple(verification.path for verification in failed),
        exit_code=ExitCode.OK if not failed else ExitCode.REFUTED if refuted else ExitCode.BAD_INPUT,
    )
