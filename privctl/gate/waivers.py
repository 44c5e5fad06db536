"""Waivers: findings that somebody accepts until a date, with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from privctl.domain.gate import Finding, GateOutcome, Rule
from privctl.gate.settings import shorten, suggestion

#: Key of a waiver -> whether it is required.
_KEYS = {"id": True, "rule": True, "reason": True, "expires": True, "subject": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """Accepts findings of ``rule``, or only those on ``subject``, until the end of the day ``expires`` (UTC)."""

    name: str
    rule: str
    reason: str
    expires: date
    subject: str | None = None

    def covers(self, finding: Finding) -> bool:
        """Whether the waiver is for ``finding``, even if expired."""
        return finding.rule == self.rule and self.subject in (None, finding.subject)


def read_waivers(entries: Any, rules: Mapping[str, Rule]) -> tuple[Waiver, ...]:
    """Read the waivers of a policy; ``rules`` are the known rules by name.

    Raises ValueError, with the end of a sentence that begins with the key, for an entry that is not a valid waiver.
    """
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("is not a list of tables; write each as [[waiver]]")
    waivers = tuple(_waiver(i, entry, rules) for i, entry in enumerate(entries, start=1))
    names = [waiver.name for waiver in waivers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has two entries with the id {shorten(name)}; give each its own")
    return waivers


def _waiver(index: int, entry: Mapping[str, Any], rules: Mapping[str, Rule]) -> Waiver:
    which = f"entry {index}"
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"has the unknown key {shorten(key)} in {which}; {suggestion(key, _KEYS)}")
    for key, needed in _KEYS.items():
        if needed and key not in entry:
            raise ValueError(f"lacks {key!r} in {which}; a waiver needs an id, a rule, a reason and an expiry date")
        if key != "expires" and key in entry and not (isinstance(entry[key], str) and entry[key].strip()):
            raise ValueError(f"has {key} {shorten(entry[key])} in {which}; expected some text")
    rule = entry["rule"]
    if rule not in rules:
        raise ValueError(f"names the unknown rule {shorten(rule)} in {which}; {suggestion(rule, rules)}")
    if not rules[rule].waivable:
        raise ValueError(
            f"would waive {rule} in {which}, which checks whether reports can be trusted; correct the reports instead"
        )
    return Waiver(
        name=entry["id"],
        rule=rule,
        reason=entry["reason"],
        expires=_day(entry["expires"], which),
        subject=entry.get("subject"),
    )


def _day(value: Any, which: str) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise ValueError(f"has expires {shorten(value)} in {which}; expected a date such as 2030-01-31")


def apply(
    findings: Sequence[Finding], waivers: Sequence[Waiver], today: date
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Mark the findings that a waiver covers on ``today`` (UTC). Returns all findings, and notes on unused waivers."""
    alive = [waiver for waiver in waivers if today <= waiver.expires]
    marked, used = [], set()
    for finding in findings:
        waiver = next((waiver for waiver in alive if waiver.covers(finding)), None)
        if waiver is None or finding.outcome is GateOutcome.PASS:
            marked.append(finding)
            continue
        used.add(waiver.name)
        because = f"{waiver.reason} (until {waiver.expires.isoformat()})"
        marked.append(replace(finding, waiver=waiver.name, waived_because=because))
    stopped = [finding for finding in findings if finding.outcome is not GateOutcome.PASS]
    notes = []
    for each in waivers:
        if each not in alive:
            missed = " and its findings count again" if any(map(each.covers, stopped)) else ""
            notes.append(f"waiver {each.name} expired on {each.expires.isoformat()}{missed}: renew or remove it")
        elif each.name not in used:
            notes.append(f"waiver {each.name} covers no finding: remove it")
    return tuple(marked), tuple(notes)
