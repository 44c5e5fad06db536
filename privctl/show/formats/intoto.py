"""An in-toto Statement v1 about a model's files; its predicate is a summary of the privacy reports.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. The statement is not signed.
"""

from __future__ import annotations

import json
from typing import Any

from privctl.domain.guarantee import Guarantee
from privctl.reports.signing import STATEMENT
from privctl.show.page_data import PageData, ReportSource
from privctl.show.summary import summarize

#: A tag URI (RFC 4151), which needs no server.
PREDICATE = "tag:privctl,2026:privacy-report/v1"


def statement(data: PageData) -> str:
    """The statement as JSON; equal reports and files give equal bytes."""
    body = {
        "_type": STATEMENT,
        "subject": [{"name": file.name, "digest": dict(file.digests)} for file in data.files],
        "predicateType": PREDICATE,
        "predicate": {
            "generator": {"name": "privctl", "version": data.version},
            "models": [_model(data, index) for index in range(len(data.subjects))],
            "reports": [_report(data, source) for source in data.sources],
        },
    }
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _model(data: PageData, index: int) -> dict[str, Any]:
    subject = data.subjects[index]
    summary = summarize(subject)
    return {
        "report": subject.source.name,
        "guarantees": [_guarantee(guarantee) for guarantee in subject.source.report.guarantees],
        "verdicts": [
            {"subject": v.subject, "outcome": str(v.outcome), "reason": v.reason, "report": source.name}
            for source in (*subject.audits, *subject.checks)
            for v in source.report.verdicts
        ],
        "notChecked": list(summary.unchecked),
    }


def _guarantee(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "name": guarantee.name,
        "status": str(guarantee.status),
        "notion": str(guarantee.notion),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": str(guarantee.unit),
        "adjacency": str(guarantee.adjacency),
        "scope": str(guarantee.scope),
        "accountant": guarantee.accountant,
        "assumptions": [{"statement": a.statement, "state": str(a.state)} for a in guarantee.assumptions],
    }


def _report(data: PageData, source: ReportSource) -> dict[str, Any]:
    algorithm, _, value = source.digest.partition(":")
    return {
        "name": source.name,
        "step": source.report.step,
        "created": source.report.created,
        "digest": {algorithm: value, **data.report_files.get(source.key, {})},
    }
