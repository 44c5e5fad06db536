"""The gate's judgement as JUnit XML: one test case per finding; inconclusive ones are errors, waived ones skipped."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.plain import plain


def render(judgement: GateJudgement) -> str:
    """The judgement as one test suite, in the form that common readers of JUnit files accept."""
    counts = {
        "tests": len(judgement.findings),
        "failures": len(judgement.of(GateOutcome.FAIL)),
        "errors": len(judgement.of(GateOutcome.INCONCLUSIVE)),
        "skipped": len(judgement.waived),
    }
    numbers = {name: str(count) for name, count in counts.items()}
    suites = ET.Element("testsuites", {"name": "privctl gate", **{n: numbers[n] for n in list(numbers)[:3]}})
    suite = ET.SubElement(suites, "testsuite", {"name": "privctl gate", **numbers})
    for finding in judgement.findings:
        _case(suite, judgement.subject(finding), finding)
    if judgement.notes:
        ET.SubElement(suite, "system-out").text = "\n".join(map(plain, judgement.notes))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ET.Element, subject: str, finding: Finding) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {
            "classname": f"privctl.gate.{finding.rule}",
            "name": plain(subject),
            "file": plain(finding.place.path),
            "line": str(finding.place.line),
            "time": "0",
        },
    )
    message = plain(finding.message)
    if finding.waiver:
        ET.SubElement(
            case, "skipped", {"message": f"waived by {plain(finding.waiver)}: {plain(finding.waived_because)}"}
        )
    elif finding.outcome is not GateOutcome.PASS:
        tag = "failure" if finding.outcome is GateOutcome.FAIL else "error"
        element = ET.SubElement(case, tag, {"type": finding.outcome.value, "message": message})
        place = f"{plain(finding.place.path)}:{finding.place.line}"
        element.text = f"{message}\nto fix: {plain(finding.fix)}\nat {place}"
    else:
        ET.SubElement(case, "system-out").text = message
