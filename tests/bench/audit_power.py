"""How often an audit's tests find a weak trace of membership in made-up scores, and how often one that is not there.

First of a whole data set, beside the t-test of Maini et al. (2024); then of users with several records each, beside a
test that takes their records for independent ones.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.bench.common import publish, save

SIDES, LEAKS = (100, 250), (0.0, 0.1, 0.15)
EACH, LEAKS_OF_USERS = (1, 4, 16, 64), (0.0, 0.2)


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=200, help="data sets for each row")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each row what is known by then."""
    from tests.bench.simulated_scores import LEVEL, RELABELLINGS, USERS, judge_data_set, judge_users

    data: dict[str, Any] = {"level": LEVEL, "relabellings": RELABELLINGS, "sets": options.sets, "users": USERS}
    cases = [
        *(("data_sets", "records_per_side", judge_data_set, side, leak) for side in SIDES for leak in LEAKS),
        *(("of_users", "records_per_user", judge_users, each, leak) for each in EACH for leak in LEAKS_OF_USERS),
    ]
    rows = []
    for part, size, judge, count, leak in cases:
        found = {size: count, "leak": leak, "rejected": rejected(judge, count, leak, options.sets)}
        data.setdefault(part, []).append(found)
        save("audit-power", data, options.output)
        shares = (f"{name} {times / options.sets:.2f}" for name, times in found["rejected"].items())
        rows.append([size.replace("_", " "), str(count), str(leak), ", ".join(shares)])
        print(*rows[-1], file=sys.stderr, flush=True)
    publish("audit-power", ["of", "", "leak", "share of data sets rejected"], rows, data, options.output)


def rejected(judge: Callable[[int, float, int], dict[str, bool]], size: int, leak: float, sets: int) -> dict[str, int]:
    """In how many of ``sets`` data sets each test rejects."""
    found: Counter[str] = Counter()
    for seed in range(sets):
        found.update({name: int(rejects) for name, rejects in judge(size, leak, seed).items()})
    return dict(found)
