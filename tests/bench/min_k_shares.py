"""Min-K%++ of several shares of a record's tokens: the best share chosen on other records, or all shares weighted.

Chosen in two ways: for each tenth of the records on the other nine, or on one half of the records, which then judges
nothing. Weighted is as the fused score does it. Each way is tested by relabelling, and chooses or learns again for each
relabelling, so that all tests are exact.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.audit_targets import METHODS, SOURCES, Source
from tests.bench.common import RESULTS, publish, save
from tests.bench.fused_learners import digests_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from audits.membership.attack import Candidates

LEVEL, RELABELLINGS = 0.05, 199
#: Shares of a record's tokens that are chosen from, and those of the audit's three attacks.
SHARES, OURS = tuple(i / 10 for i in range(1, 11)), (0.2, 0.5, 1.0)
#: Records a side: of made-up leaks, and of the smaller sets of a target.
SIDE = 100
FIXED, CHOSEN, HALF, WEIGHTED, WEIGHTED_TEN = "a fifth", "chosen", "chosen on half", "weighted", "ten weighted"
WAYS = (FIXED, CHOSEN, HALF, WEIGHTED, WEIGHTED_TEN)
#: Joint tests of the other attacks of one pass, of Min-K%++ in some form, and of the fused score of all of them.
AUDIT, AND_CHOSEN, INSTEAD = "all", "all and chosen", "chosen for the three"
TESTS = (*WAYS, AUDIT, AND_CHOSEN, INSTEAD)
OTHERS, FUSED = ("loss", "zlib", "min-k"), "fused"
#: By how much members' unlikeliest tokens are likelier, in the model's deviations, by the share that is.
GAINS = {0.1: 0.25, 0.2: 0.18, 0.5: 0.12, 0.8: 0.1, 1.0: 0.1}
HEADINGS = ("min-k++ of", "sets", *WAYS, "weighted - chosen", *(f"{test}: finds" for test in TESTS))
_TEXTS = ("dialogues", "commands", "abstracts")

#: Whether each record is a member [records], Min-K%++ by share, and scores of others by name [records].
Made = tuple["NDArray[np.bool_]", Mapping[float, "NDArray[Any]"], Mapping[str, "NDArray[Any]"]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=60, help="data sets of each leak and target")
    parser.add_argument("--folder", type=Path, help="of audit-peers, whose targets are measured instead")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each row what is known by then: targets with ``--folder``, else leaks made up."""
    path = Path(options.output) if options.output else RESULTS / "min-k-shares.json"
    known = {row["scores"]: row for row in (json.loads(path.read_text())["found"] if path.exists() else [])}
    leaks = dict(made_up())
    data: dict[str, Any] = {"level": LEVEL, "records_per_side": SIDE}
    for name, measure in _targets(options.folder) if options.folder else _leaks(leaks):
        known[name] = {"scores": name, "sets": options.sets, **measure(options.sets)}
        data["found"] = sorted(known.values(), key=lambda row: row["scores"] not in leaks)
        save("min-k-shares", data, options.output)
        print(*cells(known[name]), sep="  ", file=sys.stderr, flush=True)
    publish("min-k-shares", HEADINGS, [cells(row) for row in data["found"]], data, options.output)


def _leaks(leaks: Mapping[str, Callable[[int], Made]]) -> Iterator[tuple[str, Callable[[int], dict[str, Any]]]]:
    return ((name, partial(of_leak, leak)) for name, leak in leaks.items())


def _targets(folder: Path) -> Iterator[tuple[str, Callable[[int], dict[str, Any]]]]:
    return ((name, partial(of_target, target)) for name, target in targets(folder))


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row under ``HEADINGS``."""
    difference = row["difference"]
    apart = f"{difference['AUC']:+.3f} ({difference['lower']:+.3f} to {difference['upper']:+.3f})"
    areas = [f"{row['auc'][weighting]:.3f}" for weighting in WAYS]
    return [
        row["scores"],
        str(row["sets"]),
        *areas,
        apart,
        *(f"{row['found'][test] / row['sets']:.2f}" for test in TESTS),
    ]


def made_up() -> list[tuple[str, Callable[[int], Made]]]:
    """Leaks of the unlikeliest tokens, and none."""
    from tests.audits.membership import leaks

    def scores_of_deviations(shift: Callable[[NDArray[Any]], NDArray[Any]], seed: int) -> Made:
        found = leaks.of_deviations(shift, seed, 2 * SIDE)
        return scores_of(found)

    def lowest(share: float, gain: float, z: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        return np.asarray(gain * (z <= np.quantile(z, share)))

    cases = {"nothing to find": partial(lowest, 1.0, 0.0)}
    cases |= {f"a leak in the lowest {share:.0%}": partial(lowest, share, gain) for share, gain in GAINS.items()}
    return [(name, partial(scores_of_deviations, shift)) for name, shift in cases.items()]


def targets(folder: Path) -> Iterator[tuple[str, Made]]:
    """The text models of audit-peers that are in ``folder``."""
    for source in (source for source in SOURCES if source.name in _TEXTS):
        for method in METHODS:
            if source.target(folder, method).exists():
                found = scored(source, source.target(folder, method), folder)
                yield f"{source.name}, {method}", scores_of(found)


def scored(source: Source, target: Path, folder: Path) -> Candidates:
    """One pass of ``target`` over both sides' records."""
    from audits.membership.records import candidates_of, prepare
    from audits.scores.scorer import compute_scores, plan_scoring
    from audits.scores.subject import load_subject, read

    subject = load_subject(target, device="cpu")
    work = prepare(subject, *(read(subject, source.side(folder, side)) for side in ("members", "nonmembers")))
    return candidates_of(work, compute_scores(plan_scoring(subject.scorer, work.rows)))


def scores_of(found: Candidates) -> Made:
    """Min-K%++ by share, and ``OTHERS``."""
    from audits import load_attack
    from audits.membership.attack import ScoreAttack, Settings
    from audits.membership.min_k import lowest_mean, standardised_log_probs

    values = standardised_log_probs(found)
    others = [attack for attack in map(load_attack, OTHERS) if isinstance(attack, ScoreAttack)]
    return (
        found.table.member,
        {share: lowest_mean(values, found.table.offsets, share) for share in SHARES},
        {attack.name: attack.label_free_scores(found, Settings()) for attack in others},
    )


def of_leak(draw: Callable[[int], Made], sets: int) -> dict[str, Any]:
    """Mean AUC by way, how often it is found, and the mean difference with its interval over independent sets."""
    import numpy as np

    each = [by_way(*draw(seed), seed) for seed in range(sets)]
    apart = np.array([one[0][WEIGHTED] - one[0][CHOSEN] for one in each])
    reach, mean = 1.96 * float(apart.std(ddof=1)) / math.sqrt(sets), float(apart.mean())
    return {
        "auc": {weighting: math.fsum(one[0][weighting] for one in each) / sets for weighting in WAYS},
        "difference": {"AUC": mean, "lower": mean - reach, "upper": mean + reach},
        "found": _found(each),
    }


def of_target(target: Made, sets: int) -> dict[str, Any]:
    """AUCs of all records with DeLong's interval, and in how many smaller sets of them each way finds something."""
    import numpy as np

    from tests.bench.paired_areas import area_difference

    member, shares, others = target
    weighted, chosen = (
        fitted[weighting].fitted(member[None])[0] for fitted in [learners(*target)] for weighting in (WEIGHTED, CHOSEN)
    )
    apart, _, interval = area_difference(*((scored[member], scored[~member]) for scored in (weighted, chosen)))
    each = []
    for seed in range(sets):
        source = np.random.default_rng([seed, 3])
        sides = (source.choice(np.flatnonzero(side), SIDE, replace=False) for side in (member, ~member))
        some = source.permutation(np.concatenate([*sides]))
        smaller = ({name: values[some] for name, values in scores.items()} for scores in (shares, others))
        each.append(by_way(member[some], *smaller, seed))
    return {
        "auc": by_way(*target, 0)[0],
        "difference": {"AUC": apart, **interval},
        "found": _found(each),
    }


def _found(each: Sequence[tuple[Any, Mapping[str, float]]]) -> dict[str, int]:
    return {test: sum(p_values[test] <= LEVEL for _, p_values in each) for test in TESTS}


def by_way(
    member: NDArray[np.bool_], shares: Mapping[float, NDArray[Any]], others: Mapping[str, NDArray[Any]], seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The AUC by each of ``WAYS``, and the p-value of each of ``TESTS``; that of ``HALF`` is of the other half."""
    import numpy as np

    from audits.statistics.cross_fit import folds
    from audits.statistics.max_t import rank_statistics
    from audits.statistics.relabel import areas

    def labels(true: NDArray[np.bool_]) -> NDArray[np.bool_]:
        random = np.random.default_rng(seed)
        return np.concatenate([true[None], random.permuted(np.tile(true, (RELABELLINGS, 1)), axis=1)])

    rows, found = labels(member), learners(member, shares, others)
    judged = folds(digests_of(len(member)), 2) == 1
    best = max(shares, key=lambda share: float(areas(shares[share][~judged], member[None, ~judged])[0]))
    plain = {**others, **{str(share): shares[share] for share in OURS}}
    statistics = {name: rank_statistics(values, ())(rows)[:, 0] for name, values in plain.items()}
    statistics |= {name: each.statistics(rows)[:, 0] for name, each in found.items()}
    three = tuple(map(str, OURS))
    joint = {
        FIXED: three[:1], CHOSEN: (CHOSEN,), WEIGHTED: (WEIGHTED,), WEIGHTED_TEN: (WEIGHTED_TEN,),
        AUDIT: (*OTHERS, *three, FUSED), AND_CHOSEN: (*OTHERS, *three, FUSED, CHOSEN),
        INSTEAD: (*OTHERS, CHOSEN, FUSED),
    }  # fmt: skip
    largest = {test: np.max([statistics[name] for name in names], axis=0) for test, names in joint.items()}
    largest[HALF] = areas(shares[best][judged], labels(member[judged]))
    area = {
        weighting: float(areas(found[weighting].fitted(member[None]), member[None])[0])
        for weighting in (CHOSEN, *_WEIGHTS)
    }
    area |= {FIXED: float(areas(shares[OURS[0]], member[None])[0]), HALF: float(largest[HALF][0])}
    return area, {test: float((each >= each[0] - 1e-9).mean()) for test, each in largest.items()}


_WEIGHTS = {WEIGHTED: OURS, WEIGHTED_TEN: SHARES}


def learners(
    member: NDArray[np.bool_], shares: Mapping[float, NDArray[Any]], others: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """What is learned from other records: the weights of shares, the best share, and the fused score, by name."""
    from audits.statistics.fused import FusedScore

    def named(some: Sequence[float]) -> dict[str, NDArray[Any]]:
        return {str(share): shares[share] for share in some}

    settings: dict[str, Any] = {
        "digests": digests_of(len(member)), "members": int(member.sum()), "rates": (), "seed": 0
    }  # fmt: skip
    return {
        **{weighting: FusedScore(scores=named(some), **settings) for weighting, some in _WEIGHTS.items()},
        FUSED: FusedScore(scores={**others, **named(OURS)}, **settings),
        CHOSEN: chosen_score(named(SHARES), settings),
    }


def chosen_score(scores: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Any:
    """For each tenth of the records the score with the largest AUC of the other nine; as ranks, to be joined."""
    import numpy as np

    from audits.statistics.fused import FusedScore
    from audits.statistics.laws import mean_ranks

    table = np.stack([*scores.values()])

    class Chosen(FusedScore):
        """The same tests of it as of the fused score."""

        def fitted(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
            """See ``FusedScore``."""
            whole, found = mean_ranks(table), np.empty(labels.shape)
            for number in range(int(self.fold.max()) + 1):
                judged = self.fold == number
                # Under one labelling the AUC grows with the members' sum of ranks.
                best = (labels[:, ~judged] @ mean_ranks(table[:, ~judged]).T).argmax(axis=1)
                found[:, judged] = whole[best][:, judged]
            return found

    return Chosen(scores=scores, **settings)
