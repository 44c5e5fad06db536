"""Whole audits of models that saw no record, with every attack on: few conclude anything, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits import ATTACKS, FUSED, THOROUGH
from audits.membership import quantile
from audits.membership.attack import Candidates, ScoreAttack, Settings
from privctl.domain.verdict import Outcome
from tests.audits.tiny import save_model, sentences, write_jsonl
from tests.bench import pair_models
from tests.bench.audit_null import concluded, false_alarms, interval
from tests.bench.null_audits import KINDS, audited
from tests.bench.null_scores import SIMULATED, Setting, shadowed
from tests.remembered import FEW_TREES


def _audits(*attacks: str, seeds: list[int] | None = None) -> Any:
    """Audits of a kind, of which that of every odd seed rejects; ``seeds`` lists the seeds."""

    def audit(seed: int) -> Any:
        if seeds is not None:
            seeds.append(seed)
        test = SimpleNamespace(rejects=seed % 2 == 1)
        return SimpleNamespace(
            verdicts=[SimpleNamespace(outcome=Outcome.INCONCLUSIVE)],
            evidence=[SimpleNamespace(test=test)],
            parameters={"attack": attacks},
        )

    return lambda _: audit


def test_more_data_sets_are_others_and_count_with_the_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setitem(KINDS, "odd", _audits("loss", "zlib", seeds=seeds))
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    for folder in (first, second, whole):
        folder.mkdir()
    known = false_alarms("odd", 3, first)
    together = false_alarms("odd", 5, second, known)
    assert seeds == [*range(8)]
    assert together == false_alarms("odd", 8, whole)
    assert (together["sets"], together["rejected"], together["refuted"]) == (8, 4, 0)
    assert together["rejected_interval"] == interval(4, 8)


def test_results_of_other_attacks_are_not_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"sets": 3, "refuted": 0, "rejected": 1, "attacks": ["loss"]}
    monkeypatch.setitem(KINDS, "odd", _audits("loss", "zlib"))
    with pytest.raises(ValueError, match="of other attacks than loss, zlib; measure it anew"):
        false_alarms("odd", 1, tmp_path, known)


@pytest.mark.slow
def test_nothing_is_found_in_nothing_by_whole_audits(tmp_path: Path) -> None:
    """Of 80 at most 11 may err where the rate is 5 % (one in 1600 such tests would see more).

    The bound of a drawn split may refute its claim where the joint test rejects nothing; both share the 5 %.
    """
    found = [false_alarms(kind, 4, tmp_path) for kind in KINDS]
    assert sum(max(each["refuted"], each["rejected"]) for each in found) <= 11
    attacks = {name for each in found for name in each["attacks"]}
    assert attacks >= {*ATTACKS, *THOROUGH, FUSED, "loss-top"}


@pytest.mark.parametrize(
    ("name", "sets", "most"),
    [
        pytest.param("4 shadow models, difficulties far apart", 60, 9, marks=pytest.mark.slow),
        ("label-only, 150 records a side", 100, 12),
        *(pytest.param(name, 100, 12, marks=pytest.mark.slow) for name in SIMULATED if "refused" not in name),
    ],
)
def test_made_up_scores_without_membership_are_rejected_rarely(name: str, sets: int, most: int) -> None:
    """At 5 %; one in 500 such tests would see more than ``most``. With a leak the same tests reject more often."""
    rejects, leak = SIMULATED[name]
    assert sum(rejects(0.0, seed) for seed in range(sets)) <= most
    assert sum(rejects(3 * leak, seed) for seed in range(5)) >= 4


def test_a_shadow_model_of_one_side_accuses_falsely() -> None:
    """It knows the membership that the test shuffles; an audit refuses coins that their seed did not toss."""
    assert sum(shadowed(Setting(models=5, one_sided=True), 0.0, seed) for seed in range(20)) >= 5


@pytest.mark.slow
def test_what_differs_is_counted_though_no_model_leaks_it(tmp_path: Path) -> None:
    """Longer texts: the test rejects, and the baseline keeps the audit from accusing the model."""
    members = write_jsonl(tmp_path / "m.jsonl", sentences(118, 1, longest=8))
    others = write_jsonl(tmp_path / "n.jsonl", sentences(118, 2, longest=20))
    model = save_model(tmp_path / "model", bos=True)
    assert concluded(audited(model, members=members, nonmembers=others, thorough=True)) == (False, True)


def _tested(monkeypatch: pytest.MonkeyPatch, audit: Callable[[list[int], list[int]], Any], count: int) -> Any:
    """The scores that the joint test is made of, by attack and record, of two divisions of ``count`` records."""
    scores: dict[str, dict[tuple[bool, int], float]] = {}
    original = ScoreAttack.statistics

    def statistics(self: ScoreAttack, candidates: Candidates, settings: Settings, values: Any) -> Any:
        places = zip(candidates.table.member.tolist(), candidates.table.line.tolist(), strict=True)
        scores[self.name] = dict(zip(places, values.tolist(), strict=True))
        return original(self, candidates, settings, values)

    monkeypatch.setattr(ScoreAttack, "statistics", statistics)
    found = []
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(count).tolist()
        sides = {True: order[: count // 2], False: order[count // 2 :]}
        audit(sides[True], sides[False])
        found.append({
            name: {sides[member][line - 1]: value for (member, line), value in values.items()}
            for name, values in scores.items()
        })  # fmt: skip
    return found


@pytest.mark.parametrize("leaky", [False, True])
def test_no_score_in_bfloat16_depends_on_the_division(
    leaky: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records divided in two ways score the same to the bit, so that the joint test is exact.

    Planted: the test is given scores that were fitted to non-members.
    """
    monkeypatch.setattr(quantile, "_TREES", FEW_TREES)
    if leaky:
        monkeypatch.setattr(ScoreAttack, "tested", lambda self, candidates, settings, scores: scores)
    model, texts = save_model(tmp_path / "model", bos=True), sentences(120, 1, longest=12)

    def audit(members: list[int], others: list[int]) -> None:
        paths = [
            write_jsonl(tmp_path / f"{name}.jsonl", [texts[i] for i in some])
            for name, some in (("m", members), ("n", others))
        ]
        names = ("loss", "quantile", "neighbour")
        audited(model, members=paths[0], nonmembers=paths[1], precision="bfloat16", attacks=names)

    first, second = _tested(monkeypatch, audit, len(texts))
    assert set(first) == {"loss", "quantile", "neighbour"}
    assert [name for name in first if first[name] != second[name]] == (["quantile"] if leaky else [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", pair_models.KINDS)
def test_no_score_of_pairs_depends_on_the_division(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = pair_models.untrained(tmp_path / kind, kind), pair_models.drawn_pairs(80, 1)

    def audit(members: list[int], others: list[int]) -> None:
        paths = [
            pair_models.write_pairs(tmp_path / f"{name}.jsonl", [pairs[i] for i in some])
            for name, some in (("m", members), ("n", others))
        ]
        audited(model, members=paths[0], nonmembers=paths[1], thorough=True)

    first, second = _tested(monkeypatch, audit, len(pairs))
    assert {"loss", "neighbour", "gradient-norm"} < set(first)
    assert first == second
