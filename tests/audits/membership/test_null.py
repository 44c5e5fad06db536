"""On records that do not differ, an audit concludes something in at most 5 % of cases, with all attacks on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np
import pytest

from audits import ATTACKS, load_attack
from audits.membership import baseline
from audits.membership.attack import Attack, AttackResult, Candidates, ScoreAttack, Settings, Shadows
from audits.membership.joint_test import with_joint_test
from audits.membership.verdict import verdict
from audits.scores.table import ScoreTable
from audits.statistics.relabel import data_seed
from privctl.data.records import Record
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome
from tests.audits.tiny import sentences

ALPHA = 0.05


def nothing_to_find(seed: int, records: int = 240) -> Candidates:
    """Scores, texts and shadow models in which membership plays no part."""
    source = np.random.default_rng(seed)
    texts = sentences(records, seed=seed)
    lengths = np.array([len(text.split()) for text in texts])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(offsets[-1])
    fields = {name: source.normal(size=tokens).astype(np.float32) for name in ("rank", "margin", "lse")}
    none = np.zeros(0, dtype=np.int64)
    table = ScoreTable(
        lp=-source.gamma(2, 2, tokens).astype(np.float32),
        mu=-source.gamma(20, 0.2, tokens).astype(np.float32),
        var=source.gamma(5, 1, tokens).astype(np.float32),
        **fields,
        offsets=offsets,
        member=source.permutation(records) < records // 2,
        line=np.arange(records),
        truncated=np.zeros(records, dtype=np.bool_),
        skipped_member=none.astype(np.bool_),
        skipped_line=none,
        skipped_reason=none.astype(np.uint8),
    )
    coins = source.random((8, records)) < 0.5
    shadows = Shadows(lp=source.normal(-4, 0.3, (16, records)), included=np.concatenate([coins, ~coins]))
    listed = [Record(i, text) for i, text in enumerate(texts)]
    return Candidates(table=table, records=listed, reference=source.normal(-4, 1, records), shadows=shadows)


def judged_together(
    candidates: Candidates, settings: Settings, attacks: Sequence[Attack], found: Mapping[str, AttackResult]
) -> tuple[Evidence, ...]:
    """The evidence of ``found`` with the joint test, as an audit makes it."""
    evidence = {name: attacked.evidence for name, attacked in found.items()}
    tested = {attack.name: attack.tested(candidates, settings, found[attack.name].scores) for attack in attacks}
    statistics = {attack.name: attack.statistics(candidates, settings, tested[attack.name]) for attack in attacks}
    seed = data_seed(record.digest for record in candidates.records)
    return with_joint_test(evidence, statistics, candidates.table.member, seed, ALPHA)


def concluded(candidates: Candidates, confidence: float, *, tested: bool = False) -> tuple[bool, bool]:
    """Whether any interval lies above chance, and whether the verdict is that something was found."""
    settings = Settings(confidence=confidence)
    attacks = [load_attack(name) for name in ATTACKS]
    found = {attack.name: attack.run(candidates, settings) for attack in attacks}
    of_attacks = [item for attacked in found.values() for item in attacked.evidence]
    scores = {name: found[name].scores for name in ATTACKS if isinstance(load_attack(name), ScoreAttack)}
    blind = baseline.baseline(candidates, settings)
    evidence: list[Evidence] = [
        *(judged_together(candidates, settings, attacks, found) if tested else of_attacks),
        *baseline.differences(scores, blind, candidates, settings),
    ]
    above = [i for i in (*evidence, *blind.evidence) if i.lower is not None and i.lower > i.details.get("chance", 1)]
    return bool(above), verdict(evidence, blind).outcome is Outcome.REFUTED


def corrected(candidates: Candidates) -> float:
    scoring = sum(isinstance(load_attack(name), ScoreAttack) for name in ATTACKS)
    intervals = sum(load_attack(name).quantities for name in ATTACKS) + baseline.quantities(candidates, scoring)
    return 1 - ALPHA / intervals


@pytest.mark.slow
def test_nothing_is_found_in_nothing() -> None:
    """Of 200, at most 17 may err where the rate is 5 % (one in a hundred such tests would see more)."""
    conclusions = [concluded(each, corrected(each), tested=True) for each in map(nothing_to_find, range(200))]
    assert sum(above for above, _ in conclusions) <= 17
    assert sum(refuted for _, refuted in conclusions) <= 17


@pytest.mark.slow
def test_the_correction_is_needed() -> None:
    few = partial(nothing_to_find, records=120)
    found = (seed for seed in range(8) if concluded(few(seed), 1 - ALPHA)[0])
    assert len(list(islice(found, 2))) == 2, "without a correction more is found than in one case of 20"
    conclusions = [concluded(each, corrected(each)) for each in map(few, range(4))]
    assert sum(above for above, _ in conclusions) <= 1
