"""Findings of the gate that say the same about several subjects, such as several attacks, told as one."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome

#: Subjects of alike findings that are named, before the others are only counted.
_NAMED = 4


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings grouped by rule, file, conclusion and fix; one without a fix or a waiver is on its own."""
    groups: dict[object, list[Finding]] = {}
    for each in findings:
        _, _, conclusion = each.message.rpartition(": ")
        where = (each.rule, each.outcome, each.model, each.place.path)
        key = (*where, conclusion, each.fix, each.waiver, each.waived_because)
        groups.setdefault(key if each.fix or each.waiver else id(each), []).append(each)
    return list(groups.values())


def told(judgement: GateJudgement, alike: Sequence[Finding]) -> str:
    """Subject and message of one finding; of several, their conclusion, then the first subjects with their values."""
    if len(alike) == 1:
        return f"{judgement.subject(alike[0])}: {alike[0].message}"
    conclusion, named = parts(judgement, alike)
    shown = named if len(named) <= _NAMED + 1 else [*named[:_NAMED], f"and {len(named) - _NAMED} more"]
    return f"{conclusion}: {', '.join(shown)}"


def parts(judgement: GateJudgement, alike: Sequence[Finding]) -> tuple[str, list[str]]:
    """The conclusion that the findings share, and each one's subject with its value."""
    cut = [each.message.rpartition(": ") for each in alike]
    named = [f"{judgement.subject(each)} {value}".rstrip() for each, (value, _, _) in zip(alike, cut, strict=True)]
    return cut[0][2], named


def in_a_sentence(judgement: GateJudgement) -> str:
    """What the judgement means for a release, with the names of the rules that stand in its way."""
    if judgement.outcome is GateOutcome.PASS:
        waived = ", with what is waived" if judgement.waived else ""
        return f"Every requirement of the policy is met{waived}."
    failed = _rules(judgement.of(GateOutcome.FAIL))
    undecided = [rule for rule in _rules(judgement.of(GateOutcome.INCONCLUSIVE)) if rule not in failed]
    if failed:
        also = f", and {_listed(undecided)} could not be decided" if undecided else ""
        return f"Do not release: {_listed(failed)} failed{also}."
    if undecided:
        return f"Do not release yet: nothing failed, but {_listed(undecided)} could not be decided."
    return "Do not release yet: nothing was checked."


def _rules(findings: Sequence[Finding]) -> list[str]:
    """The rules of ``findings``, each once, in order."""
    return list(dict.fromkeys(finding.rule for finding in findings))


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])
