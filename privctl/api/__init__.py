"""The commands as functions, for programs and notebooks.

Each function takes a command's options as arguments of the same names and returns the report or another frozen value.
The functions print nothing and do not exit. What a command would note on standard error goes to ``notify``. Every error
is a ``PrivctlError`` whose message names the option (``--batch-size`` is the argument ``batch_size``). docs/python.md
has examples.
"""

from __future__ import annotations

from privctl.api.accounting import account
from privctl.api.auditing import audit
from privctl.api.gating import gate
from privctl.api.noising import noise
from privctl.api.reporting import report
from privctl.api.scoring import audit_scores
from privctl.api.splitting import audit_split
from privctl.api.training import retrain
from privctl.api.verifying import verify
from privctl.domain.notebook import show_by

__all__ = ["account", "audit", "audit_scores", "audit_split", "gate", "noise", "report", "retrain", "verify"]


def _in_html(value: object) -> str:
    from privctl.show.html.notebook import fragment

    return fragment(value)


def _as_text(value: object) -> str:
    from privctl.show.text.printed import printed

    return printed(value)


show_by(_in_html, _as_text)
