"""How often an audit's test finds something in nothing where records repeat, by what is done with repeated ones.

Each line's side is drawn by itself, so a repeated record may be on one side or on both. The model saw neither side, but
finds repeated records easier than others by one standard deviation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish

if TYPE_CHECKING:
    from audits.scores.table import Skip
    from privctl.data.records import Record

LEVEL, RELABELLINGS, LINES = 0.05, 99, 400
#: The share of lines that are members, of lines that repeat, and how often one record stands there.
SIDES, SHARES, COPIES = (0.1, 0.5, 0.75, 0.9), (0.1, 0.3, 0.5), 2

#: Whether each record is a member, and the record; their digests -> why each is left out.
Rule = Callable[[Sequence[tuple[bool, "Record"]], Sequence[bytes]], Sequence["Skip | None"]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=400, help="data sets for each row")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    from audits.membership.records import left_out

    rules = {"as_audited": left_out, "side_by_side": side_by_side}
    found: list[dict[str, Any]] = []
    for members in SIDES:
        for share in SHARES:
            row = {name: rejected(rule, share, COPIES, options.sets, members) for name, rule in rules.items()}
            found.append({"members": members, "share": share, "rejected": row})
            print(found[-1], file=sys.stderr, flush=True)
    rows = [
        [f"{row['members']:g}", f"{row['share']:g}", *(f"{row['rejected'][name] / options.sets:.3f}" for name in rules)]
        for row in found
    ]
    data = {"level": LEVEL, "relabellings": RELABELLINGS, "lines": LINES, "sets": options.sets, "found": found}
    publish("audit-repeats", ["members", "lines repeat", "as audited", "by side"], rows, data, options.output)


def side_by_side(listed: Sequence[tuple[bool, Record]], names: Sequence[bytes]) -> list[Skip | None]:
    """A rule that tells labels: all copies go where they are on both sides, all but one where they are on one."""
    from audits.scores.table import Skip

    of_members = {name for (member, _), name in zip(listed, names, strict=True) if member}
    both = of_members & {name for (member, _), name in zip(listed, names, strict=True) if not member}
    digests = set[bytes]()
    reasons: list[Skip | None] = []
    for name in names:
        reasons.append(Skip.IN_BOTH if name in both else Skip.DUPLICATE if name in digests else None)
        digests.add(name)
    return reasons


def rejected(rule: Rule, share: float, copies: int, sets: int, members: float = 0.9, *, together: bool = False) -> int:
    """In how many of ``sets`` the test rejects where a ``share`` of the lines repeat, each record ``copies`` times.

    A share of ``members`` of the lines is drawn, or, ``together``, of the records with all their lines.
    """
    import numpy as np

    from audits.statistics.max_t import max_t, rank_statistics
    from privctl.data.records import Record

    found = 0
    for seed in range(sets):
        random = np.random.default_rng([seed, copies, round(100 * share), round(100 * members), together])
        repeated = round(LINES * share / copies)
        text = np.concatenate([np.repeat(np.arange(repeated), copies), np.arange(repeated, LINES)])[:LINES]
        texts = int(text.max()) + 1
        ease = random.normal(size=texts) + (np.arange(texts) < repeated)
        member = random.random(texts)[text] < members if together else random.random(len(text)) < members
        listed = [(bool(inside), Record(i, f"t{i}")) for i, inside in zip(text.tolist(), member, strict=True)]
        names = [record.text.encode() for _, record in listed]
        kept = [i for i, why in enumerate(rule(listed, names)) if why is None]
        statistics = {"loss": rank_statistics(ease[text[kept]], ())}
        found += max_t(statistics, member[kept], seed, LEVEL, RELABELLINGS).p_values["loss"] <= LEVEL
    return found
