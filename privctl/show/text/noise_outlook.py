"""What ``privctl noise --dry-run`` shows if facts about the training are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.show.text.style import number, paragraph, table


@dataclass(frozen=True, slots=True, kw_only=True)
class FactLine:
    """One fact about the training: its value and its source; if ``value`` is None, the option that would set it."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLine:
    """The noise for one value of a missing fact; ``usual``: the value that the other rows assume for this fact."""

    fact: str
    value: float
    usual: bool
    stddev: float | None
    published_stddev: float


def outlook_text(facts: Sequence[FactLine], lines: Sequence[NoiseLine], *, size: float, aim: str, advice: str) -> str:
    """The known and missing facts, then the noise for usual values; ``size`` is the weights' root mean square."""
    known = table(
        ["fact", "value", "stated by"],
        [[fact.name, "missing" if fact.value is None else fact.value, fact.source] for fact in facts],
    )
    body = [
        [
            line.fact,
            f"{line.value:g}{' *' if line.usual else ''}",
            number(line.stddev, 4),
            "-" if line.stddev is None else number(line.stddev / size, 3),
            number(line.published_stddev, 4),
        ]
        for line in lines
    ]
    noise = table(["if", "is", "noise stddev", "/ weights", "published stddev"], body)
    below = [
        f"noise stddev: for {aim}, if each example's gradient was clipped and other missing facts are as marked by *",
        f"/ weights: divided by the weights' root mean square ({number(size, 3)}); much above 1, the model is useless",
        "published stddev: what the DP-Weights paper's formula would add; its epsilon does not follow",
        advice,
    ]
    return f"{known}\n{noise}" + "".join(paragraph(line, indent=2) for line in below)
