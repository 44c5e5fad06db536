"""Membership attacks of several projects on the same targets and records: what each finds, and how long it takes.

privctl's attacks run here. Those of other projects run outside of it, on the folder of targets that ``--folder`` keeps:
the scores in ``SOURCE/TARGET.PARTY.json`` are judged by the same code as privctl's. Such a file holds ``party``,
``commit``, ``shared_seconds`` (processor seconds of what all attacks need) and ``attacks``: by name, ``seconds`` and
``scores``, higher for members, first of all members and then of all non-members. Without such files, the figures of
other projects stay those that are stored.

A target's ``floor`` is what forward passes alone take over the same batches: the least of any attack that asks the
model about each record once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from audits import ATTACKS, FUSED, THOROUGH
from tests.bench.audit_targets import METHODS, SHADOWS, SOURCES, Source, make
from tests.bench.common import RESULTS, ROOT, publish, save

if TYPE_CHECKING:
    from privctl.domain.evidence import Evidence
    from privctl.domain.progress import Advance
    from privctl.domain.report import PrivacyReport

#: privctl's last audit, in the folder of targets.
REPORT, SCORES = "audit.report.json", "audit.scores.safetensors"
OURS = "privctl"
RECALL, ALL = "privctl, with recall", "privctl, thorough"
#: Attacks of ``--thorough`` that read the pass over the records that the default ones read, where tokens are predicted.
SAME_PASS = ("min-k++-half", "surp", "slope", "rises")
#: Random labels of a null target's records, and the level at which a party's figures are said to show a leak.
RELABELLINGS, LEVEL = 200, 0.05
#: Quantities that are compared, and the false positive rate of each TPR.
AREA, RATE = "AUC", "TPR at 1 %"
RATES = {RATE: 0.01, "TPR at 0.1 %": 0.001}
_DATA = ROOT.parent / "shared" / "data"
_REPORTED = {"AUC": AREA, "TPR at 1 % FPR": RATE, "TPR at 0.1 % FPR": "TPR at 0.1 %"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the shared data")
    parser.add_argument("--folder", type=Path, required=True, help="where targets and others' scores are kept")
    parser.add_argument("--sources", nargs="+", default=[source.name for source in SOURCES], help="of the records")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="of training")
    parser.add_argument("--rounds", type=int, default=3, help="in which the floor is measured; 0 keeps what is stored")
    parser.add_argument("--thorough", action="store_true", help="also privctl's audits with every attack")
    parser.add_argument(
        "--compare", action="store_true", help="only how far apart the parties are, anew; all figures stay as stored"
    )


def main(options: argparse.Namespace) -> None:
    """Train what is not there yet, audit it, judge what other projects found, and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    before = _stored(options)
    targets: dict[str, Any] = dict(before)
    for source in (source for source in SOURCES if source.name in options.sources):
        methods = tuple(method for method in source.methods if method in options.methods)
        source = replace(source, methods=methods)
        make(source, options.data, options.folder)
        for method in source.methods:
            name = f"{source.name}, {method}"
            print(name, file=sys.stderr, flush=True)
            measure = compared if options.compare and name in before else measured
            targets[name] = measure(source, method, options, before.get(name, {}))
            save("audit-peers", _data(targets), options.output)
    headings = ["target", "party", "best AUC", "by", "best TPR at 1 %", "by", "seconds", "records/s"]
    publish("audit-peers", headings, rows(targets), _data(targets), options.output)


def _stored(options: argparse.Namespace) -> dict[str, Any]:
    path = Path(options.output) if options.output else RESULTS / "audit-peers.json"
    found: dict[str, Any] = json.loads(path.read_text())["targets"] if path.exists() else {}
    return found


def _data(targets: Mapping[str, Any]) -> dict[str, Any]:
    sources = {
        source.name: {"records_per_side": source.records, "settings": {**source.settings}}
        for source in SOURCES
        if any(name.startswith(f"{source.name}, ") for name in targets)
    }
    methods = {name: {**settings} for name, settings in METHODS.items()}
    order = [f"{source.name}, {method}" for source in SOURCES for method in METHODS]
    ordered = {name: targets[name] for name in sorted(targets, key=order.index)}
    return {"shadow_models": SHADOWS, "sources": sources, "methods": methods, "targets": ordered}


def measured(source: Source, method: str, options: argparse.Namespace, before: Mapping[str, Any]) -> dict[str, Any]:
    """What each party finds in one target; ``before`` is what is stored of it, for what is not measured again."""
    target = source.target(options.folder, method)
    ours = {OURS: audited(source, target, options)}
    own = standing(options.folder / SCORES, source.records)
    if "task" not in source.settings:
        ours[RECALL] = audited(source, target, options, [*_scores(ours[OURS]), *SAME_PASS, "recall"])
    if options.thorough:
        ours[ALL] = audited(source, target, options, thorough=True)
    others = {
        each["party"]: {**judged(each, null=method == "null"), "difference": difference(own, each)}
        for each in scores_of_others(target)
    }
    passes = floor(source, target, options) if options.rounds else before.get("floor")
    return {
        "records": 2 * source.records, "null": method == "null", "shadows": source.shadows,
        **({"floor": passes} if passes else {}),
        "parties": {**ours, **_kept(before.get("parties", {}), ours), **others},
    }  # fmt: skip


def compared(source: Source, method: str, options: argparse.Namespace, before: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` with what ``difference`` says now of the parties whose scores are there.

    Raises ValueError where privctl's attacks do not find again what is stored.
    """
    target = source.target(options.folder, method)
    ours, stored = audited(source, target, options)["attacks"], before["parties"][OURS]["attacks"]
    if ours != stored:
        raise ValueError(f"privctl's figures of {source.name}, {method} are others than those stored; measure it anew")
    own = standing(options.folder / SCORES, source.records)
    parties = {party: {**found} for party, found in before["parties"].items()}
    for each in scores_of_others(target):
        parties[each["party"]]["difference"] = difference(own, each)
    return {**before, "parties": parties}


def scores_of_others(target: Path) -> list[dict[str, Any]]:
    """What other projects' attacks left beside ``target``."""
    paths = sorted(target.parent.glob(f"{target.name}.*.json"))
    found = [json.loads(path.read_text()) for path in paths if ".report." not in path.name]
    return [each for each in found if "party" in each]


def _kept(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``before`` is not measured again: other parties, and audits with every attack unless ``now`` has one."""
    return {party: found for party, found in before.items() if party not in {OURS, RECALL, *now}}


def audited(
    source: Source,
    target: Path,
    options: argparse.Namespace,
    attacks: Sequence[str] = (),
    *,
    thorough: bool = False,
) -> dict[str, Any]:
    """privctl's attacks on ``target``: processor seconds of scoring, and of the whole audit with its tests."""
    import privctl

    clock: dict[str, float] = {}
    members, nonmembers = (source.side(options.folder, side) for side in ("members", "nonmembers"))
    began = time.process_time()
    report = privctl.audit(
        target, members=members, nonmembers=nonmembers, shadow=source.shadow(options.folder), attacks=attacks,
        thorough=thorough,
        reference=None if "task" in source.settings else options.data / "stories260k",
        output=options.folder / REPORT, no_cache=True, force=True, progress=_timed(clock),
    )  # fmt: skip
    whole = time.process_time() - began
    return {"seconds": sum(clock.values()), "whole_seconds": whole, **_found(report)}


def floor(source: Source, target: Path, options: argparse.Namespace) -> dict[str, float]:
    """Processor seconds of forward passes of the target over all records, alone and with the scores of all attacks.

    Both take turns; ``ratio`` is the median of what they are to each other in a round.
    """
    from audits.membership.records import prepare
    from audits.scores.subject import load_subject, read
    from tests.bench.audit_bare import passed

    subject = load_subject(target, device="cpu")
    rows = prepare(
        subject, *(read(subject, source.side(options.folder, side)) for side in ("members", "nonmembers"))
    ).rows
    variants = {"bare": lambda: passed(subject, rows), "scored": lambda: subject.scorer.score(rows)}
    spent: dict[str, list[float]] = {name: [] for name in variants}
    passed(subject, rows[:64])
    for _ in range(options.rounds):
        for name, variant in variants.items():
            began = time.process_time()
            variant()
            spent[name].append(time.process_time() - began)
    ratios = [scored / bare for bare, scored in zip(*spent.values(), strict=True)]
    return {**{f"{name}_seconds": median(each) for name, each in spent.items()}, "ratio": median(ratios)}


def standing(path: Path, records: int) -> dict[str, Any]:
    """The ranks of all records in an audit's file of scores by attack, first of members, NaN where it has none."""
    import numpy as np
    from safetensors.numpy import load_file

    from audits.scores.scores_file import SCORE

    found = load_file(path)
    places = np.where(found["member"], 0, records) + found["line"] - 1
    table = {}
    for array, ranks in found.items():
        name = array.removeprefix(SCORE)
        if array.startswith(SCORE) and name in {*ATTACKS, *THOROUGH, FUSED}:
            table[name] = np.full(2 * records, np.nan)
            table[name][places] = ranks
    return table


def difference(own: Mapping[str, Any], scored: Mapping[str, Any]) -> dict[str, Any]:
    """By how much privctl's best AUC is above that of ``scored``, on the records that both judge, with its interval.

    Both are the best of several, chosen by these records, so the interval (95 %, DeLong's for pairs) is too narrow.
    There is none where both put the records into the same order. The same of the best TPR at each of ``RATES``, by
    ``paired_rates``, where the non-members resolve it.
    """
    import numpy as np

    from audits.statistics.metrics import auc, tpr_at_fpr
    from tests.bench.paired_areas import area_difference
    from tests.bench.paired_rates import rate_difference

    judged_by_us = np.all([np.isfinite(ranks) for ranks in own.values()], axis=0)
    members = np.arange(len(judged_by_us)) < len(judged_by_us) // 2

    def sides(scores: Any) -> tuple[Any, Any]:
        table = np.asarray(scores, np.float64)
        return table[members & judged_by_us], table[~members & judged_by_us]

    theirs = {name: each["scores"] for name, each in scored["attacks"].items()}
    ours, other = (max(some, key=lambda name: auc(*sides(some[name])).value) for some in (own, theirs))
    apart, stderr, interval = area_difference(sides(own[ours]), sides(theirs[other]))
    same = apart == 0 and math.isnan(stderr)
    areas: dict[str, Any] = {"attack": ours, "other": other, "AUC": apart, **({} if same else interval)}
    non_members, rates = int((~members & judged_by_us).sum()), {}
    for quantity, rate in RATES.items():
        if non_members * rate < 1:
            continue
        ours, other = (max(some, key=lambda name: tpr_at_fpr(*sides(some[name]), rate).tpr) for some in (own, theirs))
        rates[quantity] = {
            "attack": ours, "other": other, **rate_difference(sides(own[ours]), sides(theirs[other]), rate)
        }  # fmt: skip
    return {**areas, **rates}


def _scores(found: Mapping[str, Any]) -> Iterator[str]:
    """The attacks that gave scores by themselves."""
    return (name for name in found["attacks"] if name != FUSED)


def _timed(clock: dict[str, float]) -> Any:
    """A ``Progress`` that adds up the processor seconds of what it shows."""

    @contextmanager
    def progress(label: str, total: float, unit: str) -> Iterator[Advance]:
        began = time.process_time()
        yield lambda _: None
        clock[label] = clock.get(label, 0.0) + time.process_time() - began

    return progress


def _found(report: PrivacyReport) -> dict[str, Any]:
    attacks: dict[str, dict[str, float | None]] = {}
    least = 1.0
    for item in report.evidence:
        if item.quantity in _REPORTED and not _is_baseline(item):
            attacks.setdefault(item.method, {})[_REPORTED[item.quantity]] = item.estimate
        if item.test is not None:
            least = min(least, item.test.p_value)
    return {"p_value": least, "attacks": attacks}


def _is_baseline(item: Evidence) -> bool:
    return item.method not in {*ATTACKS, *THOROUGH, FUSED}


def judged(scored: Mapping[str, Any], *, null: bool = False) -> dict[str, Any]:
    """The same quantities of another project's scores, which ``scored`` holds, and of a ``null`` target's ``shows``."""
    import numpy as np

    from audits.statistics.metrics import auc, tpr_at_fpr

    attacks: dict[str, dict[str, Any]] = {}
    for name, each in scored["attacks"].items():
        members, others = np.split(np.asarray(each["scores"], np.float64), 2)
        points = {rate: tpr_at_fpr(members, others, value) for rate, value in RATES.items()}
        attacks[name] = {
            AREA: auc(members, others).value,
            **{rate: None if point.reason else point.tpr for rate, point in points.items()},
            "seconds": each["seconds"],
        }
    spent = scored["shared_seconds"] + sum(attack["seconds"] for attack in scored["attacks"].values())
    alarms = {"shows": shows([attack["scores"] for attack in scored["attacks"].values()])} if null else {}
    return {"commit": scored["commit"], "seconds": spent, **alarms, "attacks": attacks}


def shows(scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Whether figures read one by one show a leak where there is none: ``seen``, and the ``share`` of random labels.

    ``scores`` are each attack's, first of members. A leak shows where the interval of any attack's AUC at ``LEVEL``
    lies above one half. The projects that report no test leave this reading to whoever sees the figures.
    """
    import numpy as np

    from audits.statistics.metrics import auc

    table = np.asarray(scores, np.float64)
    half = table.shape[1] // 2

    def detects(order: Any) -> bool:
        return any(auc(row[order[:half]], row[order[half:]], LEVEL).lower > 0.5 for row in table)

    random = np.random.default_rng(0)
    found = [detects(random.permutation(table.shape[1])) for _ in range(RELABELLINGS)]
    return {"seen": detects(np.arange(table.shape[1])), "share": float(np.mean(found)), "relabellings": RELABELLINGS}


def best(found: Mapping[str, Any], quantity: str) -> tuple[float, str]:
    """The largest ``quantity`` of one party's attacks, and which attack's it is."""
    values = [(each[quantity], name) for name, each in found["attacks"].items() if each.get(quantity) is not None]
    return max(values, default=(float("nan"), ""))


def rows(targets: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """Of each target and party the best attack by AUC and that by TPR, and how long all attacks took."""
    table = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            area, rate = best(found, AREA), best(found, RATE)
            seconds = found["seconds"]
            table.append([
                target, party, f"{area[0]:.3f}", area[1], f"{rate[0]:.3f}", rate[1], f"{seconds:.2f}",
                f"{each['records'] / seconds:.0f}",
            ])  # fmt: skip
    return table
