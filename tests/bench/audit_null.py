"""Whole audits with every attack on, of models that saw no record: how many find something, and what it takes to find.

No model was trained on any of the records, so each verdict that something leaks, and each claim refuted, is false. An
audit allows itself 5 %. The power is that of the joint test for scores of known AUC, beside what an audit says that it
could have seen.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.show.text.style import table
from tests.bench.common import RESULTS, publish, save
from tests.bench.null_audits import CLAIM, KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.domain.report import PrivacyReport

LEVEL = 0.05
#: Other scores, which know nothing of membership, and how much all scores correlate.
COMPANY, ALIKE = 14, 0.7
RELABELLINGS = 199
#: CPU seconds for the nulls of each simulated test.
_PATIENCE = 60.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=200, help="data sets of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="others keep their result")
    parser.add_argument(
        "--more", action="store_true", help="other data sets than those of the known result, counted with them"
    )
    parser.add_argument(
        "--simulated", type=int, default=1000, help="sets of made-up scores at most; 0 keeps their result"
    )
    parser.add_argument("--power-sets", type=int, default=200, help="data sets for each point of the power")
    parser.add_argument(
        "--sides", type=int, nargs="*", default=[50, 100, 200, 400], help="for the power; none keeps it"
    )


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each kind what is known by then."""
    path = Path(options.output) if options.output else RESULTS / "audit-null.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    found = dict(known.get("null", {}))
    data = {"level": LEVEL, "claim": CLAIM, "null": found, "power": known.get("power", [])}
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            known_of_kind = found.get(kind) if options.more else None
            found[kind] = false_alarms(kind, options.sets, Path(folder), known_of_kind)
            save("audit-null", data, options.output)
    data["simulated"] = known.get("simulated", {})
    if options.simulated:
        data["simulated"] = simulated(options.simulated)
        save("audit-null", data, options.output)
    if options.sides:
        data["power"] = [power_at(side, options.power_sets) for side in options.sides]
    for line in data["simulated"].items():
        print(*_simulated_row(*line), sep="  ")
    rows = [
        [kind, str(found[kind]["sets"]), *(_rate_cell(found[kind], name) for name in ("refuted", "rejected"))]
        for kind in KINDS
        if kind in found
    ]
    publish("audit-null", ["audit", "data sets", "refuted", "test rejects"], rows, data, options.output)
    headings = ["records a side", "sees, alone", "found", "sees, among others", "found"]
    names = ("alone_sees", "alone", "together_sees", "together")
    print(table(headings, [[str(p["records_per_side"]), *(f"{p[name]:.3f}" for name in names)] for p in data["power"]]))


def _rate_cell(found: Mapping[str, Any], name: str) -> str:
    low, high = found[f"{name}_interval"]
    return f"{found[name] / found['sets']:.3f} ({low:.3f} to {high:.3f})"


def simulated(sets: int) -> dict[str, Any]:
    """How often the tests of ``null_scores`` reject where there is nothing, and for a planted leak."""
    import time

    from tests.bench.null_scores import SIMULATED

    found = {}
    for name, (rejects, leak) in SIMULATED.items():
        begun, counts = time.process_time(), {}
        for key, size, most in (("rejected", 0.0, sets), ("found", leak, max(1, sets // 5))):
            detected, wrong = 0, 0
            while detected < most and time.process_time() < begun + _PATIENCE * (1.0 if size == 0 else 1.3):
                wrong, detected = wrong + rejects(size, detected), detected + 1
            counts[key] = {"sets": detected, "count": wrong, "interval": interval(wrong, detected)}
        found[name] = {"leak": leak, **counts}
        print(*_simulated_row(name, found[name]), sep="  ", file=sys.stderr, flush=True)
    return found


def _simulated_row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    cells = [name]
    for each in (found["rejected"], found["found"]):
        low, high = each["interval"]
        cells.append(f"{each['count']} of {each['sets']}: {each['count'] / each['sets']:.3f} ({low:.3f} to {high:.3f})")
    return tuple(cells)


def interval(count: int, sets: int) -> tuple[float, float]:
    """Clopper and Pearson's at 95 %."""
    from audits.statistics.metrics import clopper_pearson

    low, high = clopper_pearson(count, sets, 0.05)
    return float(low), float(high)


def false_alarms(kind: str, sets: int, folder: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """In how many of ``sets`` audits a verdict refutes anything, and in how many the joint test rejects.

    The counts of ``known`` are added to. Its seeds are those before the first one here, so that no data set counts
    twice. Raises ValueError if it is of other attacks.
    """
    first, refuted, rejected = (0, 0, 0) if known is None else (known[name] for name in ("sets", "refuted", "rejected"))
    attacks: list[str] = [] if known is None else known["attacks"]
    (folder / kind).mkdir()
    audit = KINDS[kind](folder / kind)
    for seed in range(first, first + sets):
        report = audit(seed)
        wrong, detected = concluded(report)
        refuted, rejected = refuted + wrong, rejected + detected
        used = list(report.parameters["attack"])
        if known is not None and sorted(used) != sorted(attacks):
            raise ValueError(f"the known result of {kind} is of other attacks than {', '.join(used)}; measure it anew")
        attacks = used
        if seed % 20 == 19:
            print(f"{kind}: {seed + 1} audits, {refuted} refuted, {rejected} rejected", file=sys.stderr, flush=True)
    sets += first
    return {
        "sets": sets,
        "refuted": refuted,
        "refuted_interval": interval(refuted, sets),
        "rejected": rejected,
        "rejected_interval": interval(rejected, sets),
        "attacks": attacks,
    }


def concluded(report: PrivacyReport) -> tuple[bool, bool]:
    """Whether ``report`` refutes anything, and whether its joint test rejects, which a baseline may silence."""
    from privctl.domain.verdict import Outcome

    refuted = any(item.outcome is Outcome.REFUTED for item in report.verdicts)
    return refuted, any(item.test is not None and item.test.rejects for item in report.evidence)


def power_at(side: int, sets: int) -> dict[str, Any]:
    """How often the joint test finds a score of the AUC that is said to be found four times in five, [sets] each.

    First the score by itself, then with ``COMPANY`` others and, where there is one, the fused score.
    """
    from scipy.special import ndtri

    from audits.membership.fused import LEAST
    from audits.statistics.power import detectable_area_beyond

    print(f"power at {side} records a side", file=sys.stderr, flush=True)
    alone = detectable_area_beyond(-float(ndtri(LEVEL / 2)), side, side)
    found: dict[str, Any] = {"records_per_side": side, "sets": sets, "alone_sees": alone}
    found["alone"] = sum(_rejects(side, alone, seed, company=0)[0] for seed in range(sets)) / sets
    together = float(_together_sees(side))
    found["together_sees"], found["fused"] = together, side >= LEAST
    found["together"] = sum(_rejects(side, together, seed, company=COMPANY)[0] for seed in range(sets)) / sets
    return found


def _together_sees(side: int) -> float:
    """The AUC that an audit of all scores says it would notice, on average over ten data sets."""
    from audits.statistics.power import detectable_area_beyond

    critical = [_rejects(side, 0.5, seed, company=COMPANY)[1] for seed in range(10)]
    return detectable_area_beyond(math.fsum(critical) / len(critical), side, side)


def _rejects(side: int, area: float, seed: int, *, company: int) -> tuple[bool, float]:
    """Whether the joint test rejects, and the critical value; the first score alone has the AUC ``area``."""
    import numpy as np
    from scipy.special import ndtri

    from audits.membership.attack import RATES
    from audits.membership.fused import LEAST
    from audits.statistics.fused import FusedScore
    from audits.statistics.max_t import max_t, rank_statistics

    source = np.random.default_rng([side, seed, company])
    member = np.arange(2 * side) < side
    common = source.normal(size=2 * side)
    scores: dict[str, NDArray[Any]] = {
        str(i): math.sqrt(ALIKE) * common + math.sqrt(1 - ALIKE) * source.normal(size=2 * side)
        for i in range(company + 1)
    }
    scores["0"] = scores["0"] + math.sqrt(2) * float(ndtri(area)) * member
    statistics: dict[str, Any] = {name: rank_statistics(values, RATES) for name, values in scores.items()}
    if company and side >= LEAST:
        digests = [source.bytes(16) for _ in range(2 * side)]
        fused = FusedScore(scores=scores, digests=digests, members=side, rates=RATES, seed=seed)
        statistics["fused"] = fused.statistics
    found = max_t(statistics, member, seed, LEVEL, RELABELLINGS)
    return min(found.p_values.values()) <= LEVEL, found.critical
