"""The gate's judgement as SARIF 2.1.0 (OASIS Standard): a result with a location for every finding that did not pass.

A failure is an error and an inconclusive finding a warning: the kind "open" would require the level "none", which
readers do not show. A waived finding is a suppressed result.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from privctl.domain.gate import Finding, GateJudgement, GateOutcome, Rule
from privctl.domain.version import VERSION
from privctl.show.plain import plain

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {GateOutcome.FAIL: "error", GateOutcome.INCONCLUSIVE: "warning"}


def render(judgement: GateJudgement) -> str:
    """One SARIF run as JSON; it lists all rules of the gate, checked or not."""
    index = {rule.name: i for i, rule in enumerate(judgement.rules)}
    stopped = [finding for finding in judgement.findings if finding.outcome is not GateOutcome.PASS]
    driver = {"name": "privctl", "version": VERSION, "rules": [_rule(rule) for rule in judgement.rules]}
    notes = [{"level": "note", "message": {"text": plain(note)}} for note in judgement.notes]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(judgement, finding, index[finding.rule]) for finding in stopped],
        "properties": {"outcome": judgement.outcome.value},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.about},
        "fullDescription": {"text": _rules(rule)},
        "help": {"text": f"The rule {rule.name} of privctl gate: {rule.about}."},
        "defaultConfiguration": {"level": "error"},
    }


def _rules(rule: Rule) -> str:
    waived = (
        "A waiver in the policy may accept a finding until a date."
        if rule.waivable
        else "No waiver can accept a finding, because the rule decides whether the reports can be trusted."
    )
    return (
        f"The gate requires that {rule.about}. A finding is an error if that is not so, and a warning if the reports "
        f"do not show it. {waived}"
    )


def _result(judgement: GateJudgement, finding: Finding, index: int) -> dict[str, Any]:
    fix = f" To fix: {plain(finding.fix)}." if finding.fix else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.outcome],
        "message": {"text": f"{plain(judgement.subject(finding))}: {plain(finding.message)}.{fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri_of(finding.place.path)},
                    "region": {"startLine": finding.place.line},
                }
            }
        ],
        "partialFingerprints": {"privctlFinding/v1": _fingerprint(finding)},
        "properties": {"outcome": finding.outcome.value},
    }
    if finding.waiver:
        justification = f"{plain(finding.waiver)}: {plain(finding.waived_because)}"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": justification}]
    return result


def uri_of(path: str) -> str:
    """``path`` as a URI reference: relative if it is below the current folder, otherwise with the scheme file."""
    whole = Path(path)
    if whole.is_absolute():
        try:
            whole = whole.relative_to(Path.cwd())
        except ValueError:
            return "file://" + quote(os.fsencode(whole), safe="/")
    shown = quote(os.fsencode(whole), safe="/")
    return shown if ":" not in shown.split("/")[0] else f"./{shown}"


def _fingerprint(finding: Finding) -> str:
    return hashlib.sha256(
        "\0".join((finding.rule, finding.model, finding.subject, finding.place.path)).encode(errors="surrogatepass")
    ).hexdigest()[:32]
