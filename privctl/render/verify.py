"""A verification, for the terminal: what was found wrong first, then every guarantee with its verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Guarantee, Status
from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome, Verdict
from privctl.render.text import number, table

_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """One guarantee with its verdict."""

    guarantee: Guarantee
    verdict: Verdict


def verification(
    integrity: Sequence[Verdict],
    guarantees: Sequence[VerifiedRow],
    simulated: Sequence[Verdict] = (),
    evidence: Sequence[Evidence] = (),
    omissions: Sequence[Omission] = (),
) -> str:
    """The whole answer to ``privctl verify``."""
    lines = [_bytes(integrity)]
    rows = [
        [row.verdict.subject, number(row.guarantee.epsilon), f"{row.guarantee.delta:g}", row.guarantee.status,
         row.verdict.outcome]
        for row in guarantees
    ]  # fmt: skip
    if rows:
        lines += ["", table(["guarantee", "epsilon", "delta", "the report says", "verdict"], rows).rstrip("\n"), ""]
        lines += [line for row in guarantees for line in _wrapped(f"{row.verdict.subject}: {row.verdict.reason}")]
        if any(r.guarantee.status is Status.CLAIMED and r.verdict.outcome is Outcome.REFUTED for r in guarantees):
            lines += _wrapped("What the report itself calls only claimed promises nothing, and fails nothing here.")
    else:
        lines += ["", "The report holds no guarantee."]
    if simulated:
        lines += ["", "Simulated:"]
        for verdict in simulated:
            lines += _wrapped(f"{verdict.subject}: {verdict.outcome}: {verdict.reason}")
        for found in evidence:
            lines += _wrapped(f"{found.quantity}: {number(found.estimate, 4)} ({found.method}); {found.reason}")
    lines += [f"not looked at: {omission.what}: {omission.reason}" for omission in omissions]
    return "\n".join(lines) + "\n"


def _bytes(integrity: Sequence[Verdict]) -> str:
    """How much of the chain is intact, and each fault."""
    good = [v for v in integrity if v.outcome in (Outcome.PROVED, Outcome.CONSISTENT)]
    lines = [f"{len(good)} of {len(integrity)} checks of files, reports, parameters and noise passed"]
    for verdict in integrity:
        if verdict.outcome is not Outcome.PROVED:
            lines += _wrapped(f"{verdict.outcome}: {verdict.subject}: {verdict.reason}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
