"""The gate's judgement as JSON."""

from __future__ import annotations

import json
from typing import Any

from privctl.domain.gate import Finding, GateJudgement
from privctl.show.plain import json_text

#: Increased if a key is removed or changes its meaning.
GATE_VERSION = 1


def render(judgement: GateJudgement) -> str:
    """One JSON object with keys in a fixed order, ending in a newline."""
    data = {
        "gate_version": GATE_VERSION,
        "outcome": judgement.outcome.value,
        "models": list(judgement.models),
        "findings": [_finding(finding) for finding in judgement.findings],
        "notes": list(judgement.notes),
        "policy": {s.key: {"value": s.value, "source": s.source} for s in judgement.settings},
    }
    return json_text(json.dumps(data, indent=2, ensure_ascii=True)) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "outcome": finding.outcome.value,
        "model": finding.model or None,
        "subject": finding.subject,
        "message": finding.message,
        "fix": finding.fix,
        "path": finding.place.path,
        "line": finding.place.line,
        "waiver": finding.waiver or None,
    }
