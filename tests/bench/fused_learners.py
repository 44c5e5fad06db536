"""What learns membership from several scores best: the ridge that ``fused`` is, or boosted trees.

Both are cross-fitted in the same folds. Trees can use what no weighted sum shows, but each relabelling of the joint
test takes a fit of its own, where the ridge's are one product of matrices.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish, save

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.05
TREES, LEAVES, RATE = 50, 4, 0.1
#: Relabellings that a joint test takes: its own, and those that say how the fused AUC varies.
FITS = 999 + 199
#: Data sets of each planted leak.
PLANTED, PLANTED_LEAK = 5, "planted leak"
#: Projects whose scores of audit-peers' targets are learned from: of which records, and their sources.
PEERS = (("mimir", "three sources of text", ("dialogues", "commands", "abstracts")), ("leakpro", "images", ("images",)))
#: Scores that learn from labels, or that no attack gave.
_NOT_LEARNED_FROM = ("blind", "fused", "midpoint")
HEADINGS = ("scores", "sets", "ridge AUC", "trees AUC", "trees are higher in", "ridge finds", "trees find")

#: Whether each record is a member [records], and its scores by name.
Made = tuple["NDArray[np.bool_]", Mapping[str, "NDArray[Any]"]]
Row = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=60, help="data sets of each made-up leak")
    parser.add_argument("--scores", type=Path, nargs="*", default=[], help="files of scores that audits wrote")
    parser.add_argument("--folder", type=Path, help="of audit-peers, whose scores by other projects count too")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each row what is known by then."""
    found: list[Row] = []
    data = {"level": LEVEL, "trees": TREES, "leaves": LEAVES, "rate": RATE, "fits": FITS, "found": found}
    for name, some in sources(options):
        row = measured(name, some, found)
        found.append(row)
        save("fused-learners", data, options.output)
        print(*cells(row), sep="  ", file=sys.stderr, flush=True)
    publish("fused-learners", HEADINGS, [cells(row) for row in found], data, options.output)


def sources(options: argparse.Namespace) -> list[tuple[str, list[Callable[[], Made]]]]:
    """Every row's name and data sets."""
    return [*_simulated(options.sets), *_planted(), *_stored(options.scores), *_of_peers(options.folder)]


def measured(name: str, some: Sequence[Callable[[], Made]], before: Sequence[Row]) -> Row:
    """Mean AUC of both learners over the data sets, and the processor seconds of one fit to all folds of each.

    Of made-up scores also how many AUCs lie above all but ``LEVEL`` of those where there is nothing to find.
    """
    areas: dict[str, list[float]] = {"ridge": [], "trees": []}
    seconds: dict[str, list[float]] = {"ridge": [], "trees": []}
    for make in some:
        member, scores = make()
        for learner, learn in (("ridge", ridge), ("trees", trees)):
            began = time.process_time()
            value = area(learn(member, scores), member)
            seconds[learner].append(time.process_time() - began)
            areas[learner].append(value)
    row: Row = {
        "scores": name, "sets": len(some), "records": len(member), "columns": len(scores),
        "auc": {learner: math.fsum(values) / len(values) for learner, values in areas.items()},
        "higher": sum(t > r for r, t in zip(areas["ridge"], areas["trees"], strict=True)),
        "seconds": {learner: median(values) for learner, values in seconds.items()},
    }  # fmt: skip
    if name == NOTHING:
        row["beyond"] = {learner: _beyond(values) for learner, values in areas.items()}
    if name in LEAKS:
        limits = next(row for row in before if row["scores"] == NOTHING)["beyond"]
        row["found"] = {learner: sum(each > limits[learner] for each in areas[learner]) for learner in areas}
    return row


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row under ``HEADINGS``."""
    found = row.get("found")
    shares = [f"{found[learner] / row['sets']:.2f}" if found else "" for learner in ("ridge", "trees")]
    areas = [f"{row['auc'][learner]:.3f}" for learner in ("ridge", "trees")]
    return [row["scores"], str(row["sets"]), *areas, str(row["higher"]), *shares]


def area(fitted: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """The AUC."""
    from audits.statistics.relabel import areas

    return float(areas(fitted[None], member[None])[0])


def ridge(member: NDArray[np.bool_], scores: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The fused score of audits [records]."""
    from audits.statistics.fused import FusedScore

    fused = FusedScore(scores=scores, digests=digests_of(len(member)), members=int(member.sum()), rates=(), seed=0)
    return fused.fitted(member[None])[0]


def trees(member: NDArray[np.bool_], scores: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Boosted trees on ranks and on the mean rank, cross-fitted in the ridge's folds: log-odds [records]."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier

    from audits.statistics.cross_fit import folds
    from audits.statistics.laws import mean_ranks

    ranks = np.stack([mean_ranks(score) for score in scores.values()], axis=1)
    features = np.column_stack([ranks.mean(axis=1), ranks])
    fold, fitted = folds(digests_of(len(member))), np.zeros(len(member))
    for number in range(int(fold.max()) + 1):
        judged = fold == number
        model = HistGradientBoostingClassifier(
            max_iter=TREES, max_leaf_nodes=LEAVES, learning_rate=RATE, early_stopping=False, random_state=0
        )
        fitted[judged] = model.fit(features[~judged], member[~judged]).decision_function(features[judged])
    return fitted


def digests_of(records: int) -> list[bytes]:
    """Of the records' places, which no label decides."""
    return [blake2b(str(i).encode(), digest_size=16).digest() for i in range(records)]


def _beyond(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil((1 - LEVEL) * len(values)) - 1]


NOTHING = "eight made-up scores, nothing to find"
#: By how much members are higher in half of eight scores, in standard deviations, and whether half of them are lower.
LEAKS = {
    "half of eight scores know a little": (0.15, False),
    "half of eight scores are higher for some members, lower for others": (0.5, True),
}


def _simulated(sets: int) -> list[tuple[str, list[Callable[[], Made]]]]:
    cases = {NOTHING: (0.0, False), **LEAKS}
    return [
        (name, [lambda seed=seed, case=case: _related(seed, *case) for seed in range(sets)])
        for name, case in cases.items()
    ]


def _related(seed: int, leak: float, both_ways: bool) -> Made:
    import numpy as np

    from tests.bench.planted_leaks import SIDE
    from tests.bench.simulated_scores import SCORES, related_scores

    source = np.random.default_rng([seed, 8])
    member = source.permutation(2 * SIDE) < SIDE
    sign = np.where(source.random(2 * SIDE) < 0.5, -1.0, 1.0) if both_ways else np.ones(2 * SIDE)
    scores = related_scores(source, member, np.zeros(2 * SIDE), 0.0, SCORES)
    known = leak * sign * member
    return member, {name: each + (known if i < SCORES // 2 else 0.0) for i, (name, each) in enumerate(scores.items())}


def _planted() -> list[tuple[str, list[Callable[[], Made]]]]:
    """What the attacks say of the leaks that they are there for; those of groups and of one score teach nothing."""
    from tests.bench.planted_leaks import planted

    def scores_of_leak(scored: Callable[[int], Any], attack: str, seed: int) -> Made:
        each = scored(seed)
        return each.member, {**each.basic, **each.others, attack: each.own}

    none = ("midpoint", "fused", "--group-by", "loss-top")
    return [
        (
            f"{PLANTED_LEAK} of `{each.attack}`",
            [lambda seed=seed, e=each: scores_of_leak(e.scored, e.attack, seed) for seed in range(PLANTED)],
        )
        for each in planted()
        if each.attack not in none and not each.attack.startswith("gradient-")
    ]


def _stored(paths: Sequence[Path]) -> list[tuple[str, list[Callable[[], Made]]]]:
    def read(path: Path) -> Made:
        import numpy as np
        from safetensors.numpy import load_file

        tensors = load_file(path)
        names = [name.removeprefix("score.") for name in tensors if name.startswith("score.")]
        learned = [name for name in names if name not in _NOT_LEARNED_FROM]
        label_free = {name: tensors.get(f"tested.{name}", tensors[f"score.{name}"]) for name in learned}
        return tensors["member"].astype(np.bool_), label_free

    return [(f"privctl's of {path.name.split('.')[0]}", [lambda path=path: read(path)]) for path in paths]


def _of_peers(folder: Path | None) -> list[tuple[str, list[Callable[[], Made]]]]:
    """Of other projects' scores, those that no labels taught, by method of training: a data set of each source."""
    from tests.bench.audit_targets import METHODS

    def read(path: Path) -> Made:
        import numpy as np

        attacks = json.loads(path.read_text())["attacks"]
        scores = {name: np.asarray(each["scores"]) for name, each in attacks.items() if not name.startswith("QMIA")}
        count = len(next(iter(scores.values())))
        return np.arange(count) < count // 2, scores

    if folder is None:
        return []
    found = []
    for party, what, sources in PEERS:
        for method in METHODS:
            paths = [folder / source / f"{method.replace(' ', '-')}.{party}.json" for source in sources]
            some = [lambda path=path: read(path) for path in paths if path.exists()]
            if some:
                found.append((f"{party}'s of {what}, {method}", some))
    return found
