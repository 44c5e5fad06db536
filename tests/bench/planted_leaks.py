"""For each attack beyond the basic ones a leak that these miss: how well either finds it, and what the test says.

The basic attacks are loss, zlib, min-k, min-k++ and reference, the last beside a model that knows nothing of
membership, or beside shadow models. The leaks are made up, so this says where an attack is of use, not how often models
leak in that way.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import RESULTS, publish, save

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from audits.membership.attack import Candidates
    from audits.statistics.max_t import Statistics

BASIC = ("loss", "zlib", "min-k", "min-k++", "reference")
LEVEL, RELABELLINGS = 0.05, 199
#: Records a side.
SIDE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What attacks say of the records of one data set: scores [records] of the ``basic`` ones, of ``others``, and one.

    ``statistics`` are those of the attack in question, where its scores do not give them.
    """

    member: NDArray[np.bool_]
    basic: Mapping[str, NDArray[Any]]
    others: Mapping[str, NDArray[Any]]
    own: NDArray[Any]
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A leak that ``attack`` is to find, in words, and a data set that has it, by its seed."""

    attack: str
    leak: str
    scored: Callable[[int], Scored]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=60, help="data sets for each attack")
    parser.add_argument("--attacks", nargs="*", help="others keep their result")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each attack what is known by then."""
    data: dict[str, Any] = {"level": LEVEL, "records_per_side": SIDE, "sets": options.sets}
    leaks, rows = planted(), []
    known = _known(options) if options.attacks else {}
    for leak in leaks:
        if options.attacks and leak.attack not in options.attacks:
            continue
        found = {"attack": leak.attack, "leak": leak.leak, **measured(leak.scored, options.sets)}
        known[leak.attack] = found
        data["found"] = [known[other.attack] for other in leaks if other.attack in known]
        save("planted-leaks", data, options.output)
        rows.append([leak.attack, leak.leak, *cells(found, options.sets)])
        print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    publish("planted-leaks", ["attack", "leak", *HEADINGS], rows, data, options.output)


def _known(options: argparse.Namespace) -> dict[str, Any]:
    """The result of each attack; raises ValueError if it is of another number of data sets."""
    path = Path(options.output) if options.output else RESULTS / "planted-leaks.json"
    found = json.loads(path.read_text())
    if found["sets"] != options.sets:
        raise ValueError(f"{path} is of {found['sets']} data sets for each attack; measure all of them anew")
    return {each["attack"]: each for each in found["found"]}


HEADINGS = ("best basic AUC", "its AUC", "best other AUC", "basic attacks reject", "and with it")


def cells(found: Mapping[str, Any], sets: int) -> list[str]:
    """The cells of a row under ``HEADINGS``."""
    best = [_best(found[part]) for part in ("basic", "others")]
    return [best[0], f"{found['own']:.2f}", best[1], *(f"{found[test] / sets:.2f}" for test in ("before", "after"))]


def _best(areas: Mapping[str, float]) -> str:
    name = max(areas, key=lambda each: areas[each], default="")
    return f"{areas[name]:.2f} (`{name}`)" if name else "none"


def measured(scored: Callable[[int], Scored], sets: int) -> dict[str, Any]:
    """Mean AUC by attack, and in how many of ``sets`` data sets the joint test rejects before and with the attack."""
    from audits.statistics.max_t import rank_statistics
    from audits.statistics.metrics import auc

    areas: dict[str, dict[str, list[float]]] = {"basic": {}, "others": {}, "own": {}}
    before = after = 0
    for seed in range(sets):
        leak = scored(seed)
        parts = {"basic": leak.basic, "others": leak.others, "own": {"": leak.own}}
        for part, scores in parts.items():
            for name, values in scores.items():
                value = auc(values[leak.member], values[~leak.member]).value
                areas[part].setdefault(name, []).append(value)
        statistics = {name: rank_statistics(values, ()) for name, values in leak.basic.items()}
        before += rejects(statistics, leak.member, seed)
        own = leak.statistics or rank_statistics(leak.own, ())
        after += rejects(statistics | {"own": own}, leak.member, seed)
    means = {part: {n: math.fsum(v) / sets for n, v in by.items()} for part, by in areas.items()}
    return {**means, "own": means["own"][""], "before": before, "after": after}


def rejects(statistics: Mapping[str, Statistics], member: NDArray[np.bool_], seed: int) -> bool:
    """Whether the joint test of these attacks rejects."""
    from audits.statistics.max_t import max_t

    return min(max_t(statistics, member, seed, LEVEL, RELABELLINGS).p_values.values()) <= LEVEL


def planted() -> list[Planted]:
    """All attacks with their leaks."""
    return [*_of_tokens(), *_of_answers(), *_of_gradients(), *_of_shadows(), *_of_many()]


def scored_by(name: str, found: Candidates, others: Sequence[str]) -> Scored:
    """What the attack called ``name``, the basic ones and ``others`` say of ``found``, those that can be run."""
    from audits import load_attack
    from audits.membership.attack import ScoreAttack, Settings

    def scores(names: Sequence[str]) -> dict[str, NDArray[Any]]:
        attacks = (load_attack(each) for each in names if each != name)
        return {
            a.name: a.label_free_scores(found, Settings())
            for a in attacks
            if isinstance(a, ScoreAttack) and not a.missing(found)
        }

    attack = load_attack(name)
    assert isinstance(attack, ScoreAttack)
    basic = [each for each in BASIC if found.task != "text-classification" or each in ("loss", "reference")]
    own = attack.label_free_scores(found, Settings())
    return Scored(member=found.table.member, basic=scores(basic), others=scores(others), own=own)


def _of_tokens() -> list[Planted]:
    """Attacks that read the tokens' log-probabilities in one pass."""
    from tests.audits.membership import leaks

    names = ("min-k++-all", "min-k++-half", "surp", "slope", "rises")
    leak_table: dict[str, tuple[str, Callable[[int, int], Candidates]]] = {
        "min-k++-all": (
            "the likelier half of the tokens is likelier; records differ in difficulty",
            partial(leaks.of_deviations, leaks.upper_half),
        ),
        "min-k++-half": (
            "of the tokens, the second quarter from below is likelier, and the upper half less likely",
            partial(leaks.of_deviations, leaks.towards_the_median),
        ),
        "surp": ("unlikely tokens are likelier where the model was sure", partial(leaks.of_tokens, leaks.certain)),
        "slope": ("the likeliest tokens stand last", partial(leaks.reordered, leaks.likeliest_last)),
        "rises": ("a few unlikely tokens stand first", partial(leaks.reordered, leaks.unlikely_first)),
    }
    return [
        Planted(attack=name, leak=leak, scored=lambda seed, n=name, m=make: scored_by(n, m(seed, 2 * SIDE), names))
        for name, (leak, make) in leak_table.items()
    ]


def _of_answers() -> list[Planted]:
    """Attacks that ask the model more than the records."""
    from tests.audits.membership import leaks

    causal, labelled = ("neighbour", "pac", "repeat", "recall", "con-recall"), ("augmented", "label-only")
    leak_table = [
        ("neighbour", "in altered copies, tokens of middling likelihood are less likely", leaks.middle_of_copies),
        ("pac", "in altered copies, the likeliest and unlikeliest tokens are less likely", leaks.ends_of_copies),
        ("repeat", "a second time is no likelier", leaks.second_time),
        ("recall", "less likely after any other record", leaks.whatever_in_front),
        ("con-recall", "likelier after members", leaks.after_members),
        ("augmented", "the label of altered copies is surer", leaks.of_copies(leaks.surer)),
        ("label-only", "altered copies keep the label more often", leaks.of_copies(leaks.oftener_right)),
    ]
    return [
        Planted(
            attack=name,
            leak=leak,
            scored=partial(_answered, name, rule, labelled if name in labelled else causal),
        )
        for name, leak, rule in leak_table
    ]


def _answered(name: str, rule: Callable[[set[bytes]], Any], names: Sequence[str], seed: int) -> Scored:
    import numpy as np

    from privctl.data.columns import HeadKind
    from tests.audits.membership.planted import asked
    from tests.bench.null_scores import log_sigmoid

    labels = "label-only" in names
    found = asked(rule, names, "text-classification" if labels else "causal-lm", SIDE, seed=seed)
    # A reference model knows no more than how likely records are in general.
    usual = np.random.default_rng([seed, 7]).normal(found.mean_lp.mean(), 0.2, len(found.records))
    if labels:  # the scores are margins between two labels
        lp, usual = log_sigmoid(found.table.lp).astype(np.float32), log_sigmoid(usual)
        found = replace(found, table=replace(found.table, lp=lp), head=HeadKind.ONE)
    return scored_by(name, replace(found, reference=usual), names)


def _of_gradients() -> list[Planted]:
    """Attacks by gradients, of small networks."""
    from tests.audits.membership.gradient_leaks import flatter, one_private_step

    names = ("gradient-norm", "gradient-alignment")
    leak_table = {
        "gradient-norm": ("losses of members are as large, and change less with the weights", flatter),
        "gradient-alignment": ("one large step down the members' clipped gradients, with noise", one_private_step),
    }
    return [
        Planted(attack=name, leak=leak, scored=lambda seed, n=name, m=make: scored_by(n, m(seed, SIDE, names), names))
        for name, (leak, make) in leak_table.items()
    ]


def _of_shadows() -> list[Planted]:
    """Attacks with the help of shadow models, and by predicted quantiles, which need none."""
    from tests.audits.membership.shadow_leaks import LEAKS, of_shadows

    words = {
        "lira": "shadow models, none trained on the records, agree on some of them far better than on others",
        "lira-online": "training helps some records far more than others",
        "rmia": "few shadow models, none trained on the records, each of which misjudges a fifth of them badly",
        "rmia-online": "shadow models misjudge a tenth of the records badly",
    }
    of_pools = [
        Planted(
            attack=name,
            leak=words[name],
            scored=lambda seed, n=name, r=records: scored_by(n, of_shadows(r, seed, 2 * SIDE), list(LEAKS)),
        )
        for name, records in LEAKS.items()
    ]
    return [
        *of_pools,
        Planted(
            attack="quantile", leak="text in capitals is harder by far more than members are known", scored=_capitals
        ),
    ]


def _capitals(seed: int) -> Scored:
    import numpy as np

    from tests.audits.tiny import sentences
    from tests.bench.null_scores import one_token_each

    source = np.random.default_rng([seed, 5])
    share, member = source.random(2 * SIDE), source.permutation(2 * SIDE) < SIDE
    texts = [
        " ".join(word.upper() if source.random() < each else word for word in text.split())
        for text, each in zip(sentences(2 * SIDE, seed, longest=40), share.tolist(), strict=True)
    ]
    lp = -3.0 - 6.0 * share + 0.5 * source.normal(size=2 * SIDE) + 0.5 * member
    return scored_by("quantile", one_token_each(lp, member, texts), ())


def _of_many() -> list[Planted]:
    """What joins scores, or records."""
    return [
        Planted(attack="midpoint", leak="members are likelier by a constant", scored=_constant),
        Planted(attack="fused", leak="half of eight scores know a little of membership", scored=_fused),
        Planted(
            attack="--group-by", leak="each of a user's 16 records shows a little", scored=partial(_users, top=False)
        ),
        Planted(attack="loss-top", leak="one of a user's 16 records is known well", scored=partial(_users, top=True)),
    ]


def _constant(seed: int) -> Scored:
    """Where a threshold halfway is right; it reads the same score as ``loss``."""
    import numpy as np

    from audits.membership.attack import Settings
    from audits.membership.midpoint import ATTACK
    from tests.bench.null_scores import one_token_each

    source = np.random.default_rng([seed, 6])
    member = source.permutation(2 * SIDE) < SIDE
    found = one_token_each(-4.0 + source.normal(size=2 * SIDE) + 0.3 * member, member)
    loss = found.mean_lp
    return Scored(
        member=member, basic={"loss": loss}, others={}, own=loss,
        statistics=ATTACK.statistics(found, Settings(), loss),
    )  # fmt: skip


def _fused(seed: int) -> Scored:
    import numpy as np

    from audits.statistics.fused import FusedScore
    from tests.bench.simulated_scores import SCORES, related_scores

    source = np.random.default_rng([seed, 3])
    member = np.arange(2 * SIDE) < SIDE
    scores = related_scores(source, member, np.zeros(2 * SIDE), 0.25, SCORES)
    digests = [source.bytes(16) for _ in member]
    found = FusedScore(scores=scores, digests=digests, members=SIDE, rates=(), seed=seed)
    return Scored(
        member=member, basic=scores, others={}, own=found.fitted(member[None])[0], statistics=found.statistics
    )


def _users(seed: int, *, top: bool) -> Scored:
    """Users with 16 records: beside one record of each, or, where one record shows all, beside their mean."""
    import numpy as np

    from audits.membership.groups import highest, weighed

    source, users, each = np.random.default_rng([seed, 4]), 2 * SIDE, 16
    member = source.permutation(users) < SIDE
    index = np.repeat(np.arange(users), each)
    values = 0.3 * source.normal(size=users)[index] + source.normal(size=users * each)
    known = np.arange(users * each) % each == 0 if top else np.ones(users * each, dtype=np.bool_)
    values += (2.5 if top else 0.2) * (member[index] & known)
    mean, first = weighed(values, index), values[1::each]
    return Scored(
        member=member,
        basic={"loss of users" if top else "loss of a record": mean if top else first},
        others={} if top else {"loss-top": highest(values, index)},
        own=highest(values, index) if top else mean,
    )
