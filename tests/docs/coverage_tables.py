"""The tables of ``docs/architectures.md``: whose clipped gradients of tiny architectures are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.bench import coverage
from tests.bench.coverage import FAILS, LESS, NONE, REFUSED, RIGHT, WRONG, best
from tests.docs.figures import results
from tests.docs.pages import ROOT, as_table

MODES = {"hooks": "hooks", "functorch": "functorch", "ghost": "ghost clipping"}
_MOST_REASONS = 10
#: Columns of the coverage's table that are not about Opacus.
_OWN = 5


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    data = results("coverage")
    rows = [row for row in data["rows"] if row["privctl"]["outcome"] != NONE]
    return {
        "coverage versions": _versions(data, rows),
        "coverage tasks": as_table(list(coverage.HEADINGS), coverage.table_rows(rows)),
        "coverage bfloat16": _in_bfloat16(),
        "coverage modes": _modes(rows),
        "coverage reasons": _reasons(rows),
        "coverage refused": _refused(rows),
        "coverage all": "\n".join(_all(rows)),
    }


def _versions(data: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    left = sum(row["privctl"]["outcome"] == NONE for row in data["rows"])
    ahead = data["pairs"] - len(data["rows"])
    rest = f" {ahead} of the {data['pairs']} pairs are not measured yet." if ahead else ""
    return (
        f"Measured with {versions}: {len(rows)} pairs of a task and an architecture, "
        f"{len({row['architecture'] for row in rows})} architectures. {left} more pairs could not be built.{rest}\n"
    )


def _in_bfloat16() -> str:
    """The counts by task, and the refusals in bfloat16 of pairs that are right in float32."""
    rows = results("coverage-bf16")["rows"]
    right = {pair_of(row) for row in results("coverage")["rows"] if row["privctl"]["outcome"] == RIGHT}
    table = as_table(list(coverage.HEADINGS[:_OWN]), [row[:_OWN] for row in coverage.table_rows(rows)])
    refused = [row for row in rows if row["privctl"]["outcome"] not in (RIGHT, NONE) and pair_of(row) in right]
    by_reason: dict[str, list[str]] = {}
    for row in refused:
        reason = re.split(r"; | \(\w+Error", re.sub(r"^\w+Error: ", "", row["privctl"]["reason"]))[0]
        by_reason.setdefault(reason, []).append(f"{row['architecture']} ({row['task']})")
    lines = [f"- {reason}: {', '.join(names)}" for reason, names in by_reason.items()]
    return "\n".join([table, "Of the pairs that are right in float32, these are not:", "", *lines, ""])


def pair_of(row: dict[str, Any]) -> tuple[str, str]:
    """The task and the architecture."""
    return row["task"], row["architecture"]


def _modes(rows: list[dict[str, Any]]) -> str:
    table = []
    for mode, name in MODES.items():
        ends = Counter(row["opacus"][mode]["outcome"] for row in rows if mode in row["opacus"])
        table.append([name, *(str(ends[each]) for each in (RIGHT, LESS, WRONG, FAILS))])
    return as_table(["Opacus, mode", "right", "right with less trained", "wrong", "fails"], table)


def _reasons(rows: list[dict[str, Any]]) -> str:
    reasons = Counter(
        _kind(row["opacus"]["hooks"]["reason"])
        for row in rows
        if row["opacus"].get("hooks", {}).get("outcome") == FAILS
    )
    most = reasons.most_common(_MOST_REASONS)
    table = [[f"`{reason}`", str(count)] for reason, count in most]
    others = sum(reasons.values()) - sum(count for _, count in most)
    return as_table(["message", "pairs"], [*table, *([["others", str(others)]] if others else [])])


def _kind(reason: str) -> str:
    """A message's first sentence without names and numbers of the one model."""
    text = re.sub(r"\b\w+_forward\(\)|\b\w+\.forward\(\)", "forward()", reason)
    text = re.sub(r" missing \d+ required.*", " missing required arguments", text)
    text = re.sub(r"\d+", "N", re.split(r"\. |; |\n", text)[0])
    return text.replace("|", "/").replace("`", "'")[:100].strip()


def _refused(rows: list[dict[str, Any]]) -> str:
    """With the sentence of the whole command, as the zoo stored it."""
    stored = json.loads((ROOT / "tests" / "zoo" / "outcomes.json").read_text(encoding="utf-8"))
    reasons = {(task, kind): reason for task, kind, command, _, reason in stored if command == "dp-sgd"}
    table = [
        [
            row["task"],
            row["architecture"],
            _sentence(reasons.get((row["task"], row["architecture"]), "") or row["privctl"]["reason"]),
        ]
        for row in rows
        if row["privctl"]["outcome"] == REFUSED
    ]
    return as_table(["task", "architecture", "reason; what to do"], table)


def _sentence(reason: str) -> str:
    return re.sub(r"^\w+Error: (model (\(\w+\) )?)?", "", reason).replace("|", r"\|")


def _all(rows: list[dict[str, Any]]) -> Iterator[str]:
    for task in dict.fromkeys(row["task"] for row in rows):
        groups: dict[str, list[str]] = {}
        for row in rows:
            if row["task"] == task:
                groups.setdefault(_group(row), []).append(row["architecture"])
        yield f"**{task}**\n"
        for group in sorted(groups, key=_ORDER.index):
            yield f"- {group} ({len(groups[group])}): {', '.join(groups[group])}"
        yield ""


def _group(row: dict[str, Any]) -> str:
    ours = row["privctl"]["outcome"]
    if ours == REFUSED:
        return "privctl refuses"
    theirs = {RIGHT: "both right", LESS: "privctl right, Opacus with less trained"}
    if ours == RIGHT:
        return theirs.get(best(row["opacus"]), f"privctl right, Opacus {best(row['opacus'])}")
    return f"privctl {ours}"


_ORDER = (
    "both right", "privctl right, Opacus with less trained", "privctl right, Opacus wrong",
    "privctl right, Opacus fails", "privctl refuses", "privctl wrong", "privctl crashed",
)  # fmt: skip
