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
    for each in judgement.findings:
        _case(suite, judgement.subject(each), each)
    if judgement.notes:
        ET.SubElement(suite, "system-out").text = "\n".join(map(plain, judgement.notes))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ET.Element, subject: str, each: Finding) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {
            "classname": f"privctl.gate.{each.rule}",
            "name": plain(subject),
            "file": plain(each.place.path),
            "line": str(each.place.line),
            "time": "0",
        },
    )
    message = plain(each.message)
    if each.waiver:
        ET.SubElement(case, "skipped", {"message": f"waived by {plain(each.waiver)}: {plain(each.waived_because)}"})
    elif each.outcome is not GateOutcome.PASS:
        tag = "failure" if each.outcome is GateOutcome.FAIL else "error"
        element = ET.SubElement(case, tag, {"type": each.outcome.value, "message": message})
        place = f"{plain(each.place.path)}:{each.place.line}"
        element.text = f"{message}\nto fix: {plain(each.fix)}\nat {place}"
    else:
        ET.SubElement(case, "system-out").text = message
