"""The tables of ``docs/audits.md`` that say how often tests find a weak trace of membership, or none."""

from __future__ import annotations

from typing import Any

from tests.docs.figures import results
from tests.docs.pages import as_table


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    found = results("audit-power")
    repeats = _repeats(results("audit-repeats"))
    return {"power data set": _data_set(found), "power users": _users(found), "repeats": repeats}


def share(found: dict[str, Any], row: dict[str, Any], test: str) -> str:
    """The share of data sets of ``row`` in which ``test`` rejects."""
    return f"{row['rejected'][test] / found['sets']:.2f}"


def _data_set(found: dict[str, Any]) -> str:
    rows = [
        [str(row["records_per_side"]), f"{row['leak']:g}", *(share(found, row, test) for test in row["rejected"])]
        for row in found["data_sets"]
    ]
    names = ["records a side", "leak", "Maini's t-test", "all attacks, `fused` among them", "`--attack fused`"]
    return as_table(names, rows)


def _users(found: dict[str, Any]) -> str:
    nothing, little = (
        {row["records_per_user"]: row for row in found["of_users"] if (row["leak"] > 0) is leaks}
        for leaks in (False, True)
    )
    rows = {
        each: [share(found, nothing[each], "records")]
        + [share(found, kind[each], test) for test in ("users", "with_fused") for kind in (nothing, little)]
        for each in nothing
    }
    names = [
        "records a user", "shuffling records, nothing to find", "groups, nothing", "groups, a little",
        "with `fused`, nothing", "with `fused`, a little",
    ]  # fmt: skip
    return as_table(names, [[str(each), *row] for each, row in rows.items()])


def _repeats(found: dict[str, Any]) -> str:
    rows = [
        [f"{100 * row['members']:g} %", f"{100 * row['share']:g} %"]
        + [share(found, row, rule) for rule in ("as_audited", "side_by_side")]
        for row in found["found"]
    ]
    return as_table(["lines that are members", "lines that repeat", "as audited", "one copy kept of one side"], rows)
