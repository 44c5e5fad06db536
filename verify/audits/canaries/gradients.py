"""Recounts correct guesses on canary gradients from what the training observed of each canary.

The training writes its coins and scores to a file, and the audit keeps them with its own scores. A set of guesses takes
a number of the highest scores as included and as many of the lowest as left out, without scores that tie with the next
one beyond. The set of all canaries is cut at the widest gap near the middle. ``bounds`` checks the bounds from these
counts.
Standard library only, like a gate over audits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from verify.audits.terms import METHODS, counts_of
from verify.files.places import located

SUBJECT = "guesses on canary gradients"
_ROLE, _KIND = "canaries", "privctl-gradient-canaries"
#: For each kind of observation, as bounds name it, its entry in the training's file and in the audit's.
OBSERVED = {"every step": ("every_step", "gradient.every_step"), "final weights": ("end", "gradient.end")}
#: The audit's entry for the coins.
COINS = "gradient.included"
_COUNT = "number included"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The contents of ``source``: whether each canary was ``included``, and its ``scores`` by kind of observation."""

    source: str
    included: tuple[bool, ...]
    scores: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        if any(
            len(scores) != len(self.included) or not all(map(math.isfinite, scores)) for scores in self.scores.values()
        ):
            raise ValueError(f"{self.source} does not hold a finite score for each canary")

    def same(self, other: Observations) -> bool:
        """Whether ``other`` holds the same numbers."""
        return self.included == other.included and self.scores == other.scores


def bounds_in(report: PrivacyReport) -> list[Evidence]:
    """The bounds from canary gradients in an audit report; empty if its canaries were planted."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    if stated is None or stated.canary_commitment is not None or not stated.canary_conditions:
        return []
    return [i for i in report.evidence if i.method in METHODS and _observed(i) in OBSERVED]


def check_observed(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Compares the counts of the audit report at ``path`` with the training's file, if that is present."""
    items = bounds_in(report)
    if not items:
        return
    try:
        observations = observations_at_hand(path, report)
    except (InputError, ValueError, TypeError, KeyError) as fault:
        reason = f"what the training observed of its canaries cannot be read ({fault})"
        yield Verdict(subject=SUBJECT, outcome=Outcome.REFUTED, reason=reason)
        return
    if observations is not None:
        yield from verdicts_on(items, report, observations)


def verdicts_on(items: Sequence[Evidence], report: PrivacyReport, observations: Observations) -> Iterator[Verdict]:
    """Refuted verdicts for counts of ``items`` that the ``observations`` contradict, or a consistent one."""
    wrong = [
        *_wrong_number(report, observations),
        *(text for item in items for text in _count_faults(item, observations)),
    ]
    for reason in wrong:
        yield Verdict(subject=SUBJECT, outcome=Outcome.REFUTED, reason=reason)
    if not wrong:
        reason = f"the right guesses of {counted(len(items), 'bound')} are those that {observations.source} gives"
        yield Verdict(subject=SUBJECT, outcome=Outcome.CONSISTENT, reason=reason)


def unchecked_counts(report: PrivacyReport, why: str) -> Iterator[Omission]:
    """Yields the omission that the counts were not checked, for the reason ``why``."""
    if items := bounds_in(report):
        reason = f"{why}; how many guesses behind {counted(len(items), 'bound')} were right is the report's word"
        yield Omission(what=SUBJECT, reason=reason)


def observations_at_hand(path: Path, report: PrivacyReport) -> Observations | None:
    """The contents of the training's file that the audit read; None if it is missing or no longer as recorded.

    Raises InputError, ValueError, TypeError or KeyError if the file holds something else.
    """
    for artifact in report.inputs:
        place = located(path, artifact.path)
        if artifact.role != _ROLE or not os.path.isfile(place) or NamedFiles().digest(place) != artifact.digest:
            continue
        data = parse_json(read_text(place), str(place))
        if data["kind"] == _KIND:
            return _read_observations(data, place.name)
    return None


def _read_observations(data: Mapping[str, Any], source: str) -> Observations:
    return Observations(
        source=source,
        included=tuple(map(bool, data["included"])),
        scores={name: tuple(map(float, data[entry])) for name, (entry, _) in OBSERVED.items()},
    )


def _observed(item: Evidence) -> str:
    return item.quantity.partition(", ")[2]


def _wrong_number(report: PrivacyReport, observations: Observations) -> Iterator[str]:
    """Yields a sentence if the stated number of included canaries is wrong."""
    stated = readable(AuditParameters, report)
    statement = next((c.statement for c in (stated and stated.canary_conditions) or () if c.name == _COUNT), None)
    number = f"{sum(observations.included)} of {len(observations.included)} canaries are included"
    if statement is not None and number not in statement:
        yield f"it says that {statement!r}, and {observations.source} says that {number}"


def _count_faults(item: Evidence, kept: Observations) -> Iterator[str]:
    scores = kept.scores[_observed(item)]
    for number, (canaries, guesses, right) in enumerate(counts_of(item), start=1):
        if canaries != len(scores):
            yield f"its bound on {item.quantity} is of {canaries} canaries, and {kept.source} holds {len(scores)}"
            return
        if not 0 <= guesses <= canaries:
            yield f"its bound on {item.quantity} is of {guesses} guesses on {canaries} canaries"
            return
        low, high = _middle(scores) if guesses == canaries else _outside(scores, guesses // 2)
        made = sum(score >= high or score <= low for score in scores) if low < high else 0
        hits = sum(
            (score >= high) == coin
            for score, coin in zip(scores, kept.included, strict=True)
            if low < high and (score >= high or score <= low)
        )
        if (int(item.details.get(f"made {number}", guesses)), right) != (made, hits):
            yield (
                f"its bound on {item.quantity} says that {right} of {guesses} guesses were right, and {kept.source} "
                f"gives {hits} of {made} made"
            )


def _outside(scores: Sequence[float], half: int) -> tuple[float, float]:
    """The highest score guessed as left out and the lowest guessed as included, with ``half`` of the guesses each."""
    ordered = sorted(scores)
    below = [score for score in ordered[:half] if score < ordered[half]] if half < len(ordered) else ordered
    above = [score for score in ordered[len(ordered) - half :] if score > ordered[len(ordered) - half - 1]]
    return below[-1] if below else -math.inf, above[0] if above else math.inf


def _middle(scores: Sequence[float]) -> tuple[float, float]:
    """The scores on either side of the widest gap within 2 sqrt(n) places of the middle.

    If all scores there are equal, the nearest scores below and above them.
    """
    ordered = sorted(scores)
    count, reach = len(ordered), math.ceil(2 * math.sqrt(len(ordered)))
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    if high <= low:
        return math.inf, -math.inf
    widest = max(range(low, high), key=lambda i: ordered[i + 1] - ordered[i])  # the first of the widest
    if ordered[widest] < ordered[widest + 1]:
        return ordered[widest], ordered[widest + 1]
    below = [score for score in ordered if score < ordered[widest]]
    above = [score for score in ordered if score > ordered[widest]]
    return below[-1] if below else -math.inf, above[0] if above else math.inf
