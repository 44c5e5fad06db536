"""Verifiers: each checks what a report claims without sharing the code that claimed it."""

from __future__ import annotations

#: Verifier name -> (where it is, one line of help).
VERIFIERS: dict[str, tuple[str, str]] = {
    "integrity": ("verify.integrity:check_chain", "Digests of the model, of its report and of every parent report."),
}
