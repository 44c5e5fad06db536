"""Made-up scores of models that saw no record, judged as an audit judges them: the work of ``tests.bench.audit_null``.

A record has a difficulty and a gain by which a model that was trained on it is surer of it; models differ by noise.
Shadow models are trained on halves of the records, the target on none of them, or on the members where there is a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership import lira, loss, reference, rmia
from audits.membership.attack import RATES, Candidates, ScoreAttack, Settings, Shadows
from audits.membership.quantile import ATTACK as QUANTILE
from audits.membership.shadows import coins
from audits.scores.table import ScoreTable
from audits.statistics.fused import FusedScore
from audits.statistics.max_t import max_t, rank_statistics
from privctl.data.records import Record
from tests.audits.tiny import sentences

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL, RELABELLINGS = 0.05, 199
#: Attacks that shadow models serve.
OF_SHADOWS: tuple[ScoreAttack, ...] = (lira.OFFLINE, lira.ONLINE, rmia.OFFLINE, rmia.ONLINE, reference.ATTACK)
#: Scores that are fused, of which half know of a leak, and the share of the variance that they have in common.
FUSED, DIFFICULTY = 8, 0.81


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """So many records of each side, shadow models, and how far difficulties and gains of records (log) vary.

    ``copied`` is the share of records that have a near-copy, of the same difficulty, anywhere. The last shadow model
    may have seen every record (``all_in_one``), or the non-members and no other (``one_sided``): an audit refuses that.
    """

    members: int = 200
    nonmembers: int = 200
    models: int = 8
    spread: float = 1.0
    uneven: float = 0.3
    copied: float = 0.0
    all_in_one: bool = False
    one_sided: bool = False


SETTINGS: Mapping[str, Setting] = {
    "4 shadow models": Setting(models=4),
    "8 shadow models": Setting(),
    "64 shadow models": Setting(models=64),
    "4 shadow models, difficulties far apart": Setting(models=4, spread=5.0, uneven=1.5),
    "64 shadow models, difficulties far apart": Setting(models=64, spread=5.0, uneven=1.5),
    "8 shadow models, 400 members and 40 others": Setting(members=400, nonmembers=40, spread=3.0, uneven=1.0),
    "8 shadow models, 40 members and 400 others": Setting(members=40, nonmembers=400, spread=3.0, uneven=1.0),
    "8 shadow models, half of the records near-copies": Setting(copied=0.5, spread=3.0, uneven=1.0),
    "9 shadow models, one trained on all records": Setting(models=9, all_in_one=True, spread=3.0, uneven=1.0),
    "5 shadow models, one trained on the non-members alone (refused)": Setting(models=5, one_sided=True),
}


def shadowed(setting: Setting, leak: float, seed: int) -> bool:
    """Whether the joint test rejects for attacks by shadow models; members have the share ``leak`` of their gains."""
    source = np.random.default_rng([seed, round(100 * leak)])
    count = setting.members + setting.nonmembers
    difficulty, gain = (
        setting.spread * source.normal(size=count),
        np.exp(setting.uneven * source.normal(size=count)),
    )
    copied = np.flatnonzero(source.random(count) < setting.copied / 2)
    of = source.permutation(count)[: len(copied)]
    difficulty[copied], gain[copied] = difficulty[of], gain[of]
    own = 0.5 * np.exp(0.5 * source.normal(size=count))
    member = source.permutation(count) < setting.members
    included = np.stack([coins(seed, i, count) for i in range(setting.models)])
    if setting.all_in_one or setting.one_sided:
        included[-1] = ~member | setting.all_in_one
    lp = log_sigmoid(difficulty + gain * included + own * source.normal(size=included.shape))
    target = log_sigmoid(difficulty + leak * gain * member + own * source.normal(size=count))
    candidates = replace(one_token_each(target, member), shadows=Shadows(lp=lp, included=included))
    return _rejects({each.name: each.label_free_scores(candidates, Settings()) for each in OF_SHADOWS}, member, seed)


def fused_alone(side: int, leak: float, seed: int) -> bool:
    """Whether ``--attack fused`` rejects; ``leak`` in standard deviations of half of the scores."""
    source = np.random.default_rng([side, seed, round(100 * leak)])
    member = np.arange(2 * side) < side
    common = np.sqrt(DIFFICULTY) * source.normal(size=2 * side)
    scores = {
        str(i): common + np.sqrt(1 - DIFFICULTY) * source.normal(size=2 * side) + leak * member * (i < FUSED // 2)
        for i in range(FUSED)
    }
    digests = [source.bytes(16) for _ in range(2 * side)]
    found = FusedScore(scores=scores, digests=digests, members=side, rates=(), seed=seed)
    return bool(max_t({"fused": found.statistics}, member, seed, LEVEL, RELABELLINGS).p_values["fused"] <= LEVEL)


def referred(side: int, leak: float, seed: int) -> bool:
    """Whether the losses and their distance from a reference model's reject; members have ``leak`` of log-odds more.

    Every tenth record is certain to one of the two models, as far as floats tell.
    """
    source = np.random.default_rng([side, seed, round(100 * leak), 3])
    member = source.permutation(2 * side) < side
    difficulty = source.normal(size=2 * side)
    lp, usual = (log_sigmoid(difficulty + 0.5 * source.normal(size=2 * side) + gain) for gain in (leak * member, 0.0))
    lp[source.random(2 * side) < 0.05], usual[source.random(2 * side) < 0.05] = 0.0, 0.0
    candidates = replace(one_token_each(lp, member), reference=usual)
    return _rejects(
        {each.name: each.label_free_scores(candidates, Settings()) for each in (loss.ATTACK, reference.ATTACK)},
        member,
        seed,
    )


def label_only(side: int, leak: float, seed: int) -> bool:
    """Whether the share of 16 copies that keep the label rejects, which has 17 values; members keep it more often."""
    source = np.random.default_rng([side, seed, round(100 * leak), 1])
    member = np.arange(2 * side) < side
    kept = 1 / (1 + np.exp(-(1 + 2 * source.normal(size=2 * side) + leak * member)))
    return _rejects({"label-only": source.binomial(16, kept) / 16}, member, seed)


def quantile(side: int, leak: float, seed: int) -> bool:
    """Whether the attack by predicted quantiles rejects, where longer texts are harder."""
    source = np.random.default_rng([side, seed, round(100 * leak), 2])
    texts = sentences(2 * side, seed, longest=12)
    member = source.permutation(2 * side) < side
    words = np.array([len(text.split()) for text in texts])
    lp = -2.0 - 0.2 * words + 0.5 * source.normal(size=2 * side) + leak * member
    candidates = one_token_each(lp, member, texts)
    scores = QUANTILE.tested(candidates, Settings(), QUANTILE.score(candidates, Settings()))
    return _rejects({QUANTILE.name: scores}, member, seed)


def one_token_each(lp: NDArray[np.float64], member: NDArray[np.bool_], texts: list[str] | None = None) -> Candidates:
    """Records of one token each."""
    count = len(lp)
    none, same = np.zeros(0, dtype=np.int64), np.ones(count, dtype=np.float32)
    table = ScoreTable(
        lp=lp.astype(np.float32), mu=-same, var=same, rank=same, margin=same, lse=same,
        offsets=np.arange(count + 1), member=member, line=np.arange(count), truncated=np.zeros(count, dtype=np.bool_),
        skipped_member=none.astype(np.bool_), skipped_line=none, skipped_reason=none.astype(np.uint8),
    )  # fmt: skip
    named = texts or [str(i) for i in range(count)]
    return Candidates(table=table, records=[Record(i, text) for i, text in enumerate(named)])


def log_sigmoid(phi: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-np.logaddexp(0, -phi))


def _rejects(scores: Mapping[str, NDArray[Any]], member: NDArray[np.bool_], seed: int) -> bool:
    statistics = {name: rank_statistics(values, RATES) for name, values in scores.items()}
    return min(max_t(statistics, member, seed, LEVEL, RELABELLINGS).p_values.values()) <= LEVEL


#: (leak, seed) -> whether the test rejects, and the leak of the planted case.
Simulated = tuple[Callable[[float, int], bool], float]


def _of(setting: Setting) -> Callable[[float, int], bool]:
    return lambda leak, seed: shadowed(setting, leak, seed)


def _at(attack: Callable[[int, float, int], bool], side: int) -> Callable[[float, int], bool]:
    return lambda leak, seed: attack(side, leak, seed)


SIMULATED: Mapping[str, Simulated] = {
    **{name: (_of(setting), 0.15) for name, setting in SETTINGS.items()},
    **{
        f"fused alone, {side} records a side": (_at(fused_alone, side), leak)
        for side, leak in ((40, 0.3), (200, 0.15), (1000, 0.06))
    },
    "reference model, 200 records a side": (_at(referred, 200), 0.2),
    "label-only, 150 records a side": (_at(label_only, 150), 0.8),
    "quantile, 118 records a side": (_at(quantile, 118), 0.2),
}
