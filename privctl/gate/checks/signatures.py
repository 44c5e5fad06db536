"""Signatures of reports: each must be signed with one of the policy's keys.

A signature prevents others from editing or replacing a report. The signer can still sign a false one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from privctl.domain.errors import CommandError, InputError
from privctl.domain.gate import Finding, GateOutcome
from privctl.gate.files import LoadedReport, read_bounded
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.signatures import first_accepted
from privctl.reports.signing import LARGEST, Signer, signed_by, signer

RULE = "require_signer"


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the signature of every report in the model's history and of every report that examined it."""
    if not policy.require_signer:
        return
    reports = list({report.digest: report for report in (*case.history, *case.examinations)}.values())
    place = policy.places.get(RULE, case.default_place)
    try:
        signers = [
            signer(Path(name), read_bounded(Path(name), LARGEST, CommandError)) for name in policy.require_signer
        ]
    except InputError as fault:  # a policy that names no public key is malformed
        raise CommandError(str(fault)) from None
    except ImportError as missing:
        yield Finding(
            rule=RULE,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=case.name,
            message=f"no signature can be checked because {missing.name} is not installed",
            fix="install the package cryptography",
            place=place,
        )
        return
    unsigned = False
    for report in reports:
        try:
            first_accepted(report.path, partial(_signer_of, signers, report))
        except InputError as fault:
            unsigned = True
            yield Finding(
                rule=RULE,
                outcome=GateOutcome.FAIL,
                subject=str(report.path),
                message=f"no signer that the policy trusts signed it: {fault}",
                fix="have its author sign it (privctl sign --key), and put the signature next to it",
                place=report.place(),
            )
    if reports and not unsigned:
        yield Finding(
            rule=RULE,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"{'the report is' if len(reports) == 1 else f'all {len(reports)} reports are'} signed",
            place=place,
        )


def _signer_of(signers: Sequence[Signer], report: LoadedReport, signature: bytes) -> Signer:
    return signed_by(signature, signers, report.report, report.digest, report.sha256)
