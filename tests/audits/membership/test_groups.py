"""Groups of records, such as those of one user: found where they leak, and no more often than allowed where not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits import load_attack
from audits.findings import Findings
from audits.membership import group_features, groups
from audits.membership.attack import ScoreAttack, Settings
from audits.membership.audit import MembershipAudit
from audits.membership.baseline import GUARD, baseline
from audits.membership.groups import Grouping, grouped, highest, read_groups, weighed
from audits.membership.request import MembershipRequest
from audits.scores.scorer import compute_scores, plan_scoring
from audits.statistics.max_t import max_t, rank_statistics
from privctl.cli import run
from privctl.data.columns import USUAL
from privctl.data.records import Record
from privctl.domain.errors import CommandError, InputError
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.audits.membership.planted import Ruled
from tests.audits.membership.test_attacks import table
from tests.audits.tiny import sentences
from verify.audits.groups import check_groups

FEW = ("loss", "min-k")


@dataclass
class Users(Ruled):
    """A model that finds some users easier than others, by ``spread`` nats a token, and members by ``leak``."""

    spread: float = 0.0
    leak: float = 0.0
    known: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = SimpleNamespace(tokenizer=self.model.tokenizer, tokenizer_from=Path("m"), path=Path("m"))
        self.rule = self._rule

    def describe(self) -> dict[str, Any]:
        return {"task": self.task}

    def _rule(self, row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """What it says of a row whose first word is the user's number."""
        ease = np.random.default_rng(int(row[0])).normal(0, self.spread)
        leak = self.leak if row.tobytes() in self.known else 0.0
        return np.asarray(ease + leak + random.normal(-4, 0.5, size=len(row) - 1))


def write(path: Path, users: Sequence[int], sizes: Sequence[int], seed: int) -> Path:
    """``sizes`` records of each user."""
    source = np.random.default_rng(seed)
    with path.open("w") as file:
        for user, size in zip(users, sizes, strict=True):
            for _ in range(size):
                words = source.integers(20, 99, size=4).tolist()
                file.write(json.dumps({"text": " ".join(map(str, [user, *words])), "user": user}) + "\n")
    return path


def audited(folder: Path, model: Users, *, users: int = 40, seed: int = 0, **more: Any) -> Findings:
    """An audit of ``users`` a side with 1 to 8 records each."""
    source = np.random.default_rng(seed)
    names = (1000 + source.permutation(2 * users)).tolist()
    sizes = source.integers(1, 9, size=2 * users).tolist()
    request = MembershipRequest(
        members=write(folder / f"m{seed}.jsonl", names[:users], sizes[:users], seed),
        nonmembers=write(folder / f"n{seed}.jsonl", names[users:], sizes[users:], seed + 5000),
        **{"attacks": FEW, "group_by": "user", **more},
    )
    audit = MembershipAudit(model, request)
    model.known = {row.tobytes() for row, member in zip(audit.rows, audit._work.member, strict=True) if member}
    return audit.judge(compute_scores(plan_scoring(model, audit.rows)), 0.05)


def nothing(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.zeros(len(row) - 1)


def p_values(found: Findings) -> dict[str, float]:
    return {item.method: item.test.p_value for item in found.evidence if item.test is not None}


def test_the_evidence_of_a_users_records_adds_up(tmp_path: Path) -> None:
    model = Users(rule=nothing, leak=0.12)
    by_user = audited(tmp_path, model)
    area = {item.method: item for item in by_user.evidence if item.quantity == "AUC"}
    assert by_user.verdicts[0].outcome is Outcome.REFUTED
    assert area["loss"].samples == {"members": 40, "nonmembers": 40}
    assert by_user.parameters["group_by"] == "user"
    records = by_user.parameters["grouped_records"]
    by_record = {i.method: i for i in audited(tmp_path, model, group_by=None).evidence if i.quantity == "AUC"}
    assert by_record["loss"].samples == records
    assert (area["loss"].estimate or 0) > (by_record["loss"].estimate or 0) + 0.08
    assert any(f"40 groups of {records['members']} members" in text for text in by_user.warnings)
    assert len(by_user.arrays["score.loss"]) == len(by_user.arrays["member"]) == 80
    assert p_values(by_user).keys() == {"loss", "loss-top", "min-k", "min-k-top", "fused"}


@pytest.mark.slow
def test_nothing_is_found_of_users_of_whom_there_is_nothing(tmp_path: Path) -> None:
    """Users differ by far more than their records do: where 5 % may err, more than 5 of 40 do once in 140."""
    found = [audited(tmp_path, Users(rule=nothing, spread=1.0), users=25, seed=seed) for seed in range(40)]
    assert sum(min(p_values(each).values()) <= 0.05 for each in found) <= 5
    assert sum(each.verdicts[0].outcome is Outcome.REFUTED for each in found) <= 5


def test_records_of_one_user_are_not_shuffled_one_by_one() -> None:
    """Where users differ and membership tells nothing, a test of records rejects often, that of groups does not.

    100 data sets of 20 users a side with 10 records each: where 5 % may, more than 12 do once in 700.
    """
    random, rejected = np.random.default_rng(1), {"records": 0, "groups": 0}
    index = np.repeat(np.arange(40), 10)
    for seed in range(100):
        values = random.normal(size=40)[index] + random.normal(size=400)
        member = random.permutation(40) < 20
        tests = {"records": (values, member[index]), "groups": (weighed(values, index), member)}
        for name, (scores, labels) in tests.items():
            found = max_t({"loss": rank_statistics(scores, ())}, labels, seed, 0.05, count=99)
            rejected[name] += found.p_values["loss"] <= 0.05
    assert rejected["groups"] <= 12
    assert rejected["records"] >= 25


def test_the_weight_of_a_group_is_that_of_generalised_least_squares() -> None:
    """n / (1 + (n - 1) r) is what the inverse of an exchangeable correlation matrix sums to."""
    random = np.random.default_rng(2)
    sizes = random.integers(1, 30, size=4000)
    index = np.repeat(np.arange(len(sizes)), sizes)
    values = random.normal(0, 1, len(sizes))[index] + random.normal(0, 2, len(index))  # r is 1 / 5
    means = np.bincount(index, weights=values) / sizes
    sums = {n: np.linalg.inv(0.8 * np.eye(n) + 0.2).sum() for n in range(1, 30)}
    worth = [sums[n] for n in sizes.tolist()]
    expected = worth * (means - np.average(means, weights=worth))
    assert np.corrcoef(weighed(values, index), expected)[0, 1] > 0.9999
    assert np.allclose(weighed(means, np.arange(len(sizes))), means - means.mean())
    same = np.repeat(np.arange(500), 4)
    assert (np.argsort(weighed(values[:2000], same)) == np.argsort(np.bincount(same, weights=values[:2000]))).all()


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_groups_that_score_alike_are_tied_whatever_their_sizes(offset: float) -> None:
    """Rounding must not rank them by their sizes: 0.1 and 0.7 are no sums of powers of 2."""
    sizes = np.array([2, 18, 6, 4, 12, 40, 8, 2, 10])
    index = np.repeat(np.arange(len(sizes)), sizes)
    same, half = np.full(len(index), 0.1 + offset), np.tile([0.1, 0.7], len(index) // 2) + offset
    assert not weighed(same, index).any()
    assert not weighed(half, index).any()
    assert set(highest(same, index).tolist()) == {0.1 + offset}
    one_more = np.where(index == 4, same + 1e-3, same)
    assert (weighed(one_more, index) > 0).tolist() == (np.arange(9) == 4).tolist()
    # Groups away from the middle, and records of a group in another order.
    index = np.repeat(np.arange(12), [2, 18, 6, 4, 12, 40, 8, 28, 44, 52, 7, 9])
    two_scores = np.where(index % 2, 0.7, 0.1)
    assert len(set(highest(two_scores, index).tolist())) == 2
    pairs = np.repeat(np.arange(60), 18)
    rows = np.random.default_rng(1).choice([0.1, 0.3, 0.7], (30, 18))
    mixed = weighed(np.stack([rows, rows[:, ::-1]], axis=1).ravel() + offset, pairs)
    assert (mixed[::2] == mixed[1::2]).all()


def test_users_of_unequal_sizes_with_ties_have_the_p_value_of_all_divisions() -> None:
    """Each of the 84 divisions of nine users in turn, with its members' records first, as they stand in files.

    The p-value is the share of all divisions that do as well, and for at most 4 it is within 5 %. Planted: ties broken
    by the place in the file, as sorting does, which accuse many.
    """
    sizes = np.array([1, 4, 2, 1, 3, 9, 1, 2, 5])
    values = [np.random.default_rng(i).integers(0, 3, size).astype(float) for i, size in enumerate(sizes)]

    def statistics(order: Sequence[int], *, broken: bool = False) -> dict[str, Any]:
        index = np.repeat(np.arange(len(order)), sizes[order])
        scores = [score(np.concatenate([values[i] for i in order]), index) for score in (weighed, highest)]
        if broken:
            scores = [-np.argsort(np.argsort(-score, kind="stable")) for score in scores]
        return {str(i): rank_statistics(each, (0.2,)) for i, each in enumerate(scores)}

    sides = np.array([np.isin(np.arange(9), some) for some in itertools.combinations(range(9), 3)])
    largest = np.max([each(sides).max(axis=1) for each in statistics(range(9)).values()], axis=0)
    exact = (largest[:, None] <= largest + 1e-9).mean(axis=1)
    found: dict[bool, list[float]] = {False: [], True: []}
    for seed, side in enumerate(sides):
        order = np.argsort(~side, kind="stable")
        for broken, p_values in found.items():
            tested = max_t(statistics(order, broken=broken), side[order], seed, 0.05, count=599)
            p_values.append(min(tested.p_values.values()))
    assert np.abs(np.array(found[False]) - exact).max() < 0.06
    assert sum(p <= 0.05 for p in exact) <= 4
    assert sum(p <= 0.05 for p in found[False]) <= 4
    assert sum(p <= 0.05 for p in found[True]) > 20


def test_the_highest_quarter_of_a_group() -> None:
    index = np.array([0, 1, 0, 0, 0, 0, 1, 2])
    values = np.array([1.0, 7.0, 5.0, 3.0, 4.0, 2.0, 8.0, -1.0])
    assert highest(values, index).tolist() == [4.5, 8.0, -1.0]


def test_groups_are_wholly_on_one_side(tmp_path: Path) -> None:
    members, others = write(tmp_path / "m.jsonl", [7, 8], [2, 2], 0), write(tmp_path / "n.jsonl", [9, 8], [1, 2], 1)
    with pytest.raises(InputError, match=r"the group '8' of 'user' has records among the members \(line 3 of "):
        read_groups("user", members, others, USUAL)
    with pytest.raises(InputError, match="line 1 lacks 'person'; give every record one"):
        read_groups("person", members, others, USUAL)


def doubted(seed: int, spreads: tuple[float, float], users: int = 24) -> bool:
    """Whether the blind baseline doubts ``users`` a side whose log sizes differ in nothing but ``spreads``."""
    source = np.random.default_rng([seed, users])
    logarithms = np.concatenate([source.normal(1.6, spread, users) for spread in spreads])
    sizes = np.maximum(1, np.exp(logarithms).round()).astype(int)
    index, member = np.repeat(np.arange(2 * users), sizes), np.repeat(np.arange(2 * users) < users, sizes)
    scores = source.normal(size=len(index))
    of_records = table(scores[member] - 9, scores[~member] - 9)
    records = [Record(i, text) for i, text in enumerate(sentences(len(index), seed + 1000))]
    candidates = groups._candidates(replace(of_records, records=records, reference=None), index)
    return baseline(candidates, Settings()).p_value <= GUARD


def test_users_of_other_sizes_are_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the spread of their sizes too, which the logarithm alone does not show."""
    seeds = range(6)
    assert sum(doubted(seed, (0.25, 0.75)) for seed in seeds) >= 5
    of_both = group_features._of_size
    monkeypatch.setattr(group_features, "_of_size", lambda sizes: of_both(sizes)[:, :1])
    assert sum(doubted(seed, (0.25, 0.75)) for seed in seeds) <= 4


@pytest.mark.slow
def test_users_of_like_sizes_are_doubted_as_often_as_the_guard_says() -> None:
    """Of 150 data sets 30 on average; less than 15 or more than 45 are once in 300."""
    assert 15 <= sum(doubted(seed, (0.5, 0.5)) for seed in range(150)) <= 45


def test_what_cannot_be_asked_of_groups_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--attack midpoint cannot be run: it sets a threshold for single records"):
        audited(tmp_path, Users(rule=nothing), users=10, attacks=("midpoint",))


@pytest.fixture(scope="module")
def report_path(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """An audit by users, who have 2 records each."""
    folder = tmp_path_factory.mktemp("users")
    words = {1000 + user: f"w{user} w{user // 2}" for user in range(24)}
    for name, users in (("m", range(1000, 1012)), ("n", range(1012, 1024))):
        rows = [{"text": f"{words[u]} w{i} w{40 + u % 9} w3", "user": u} for u in users for i in range(2)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sides = ["--members", str(folder / "m.jsonl"), "--nonmembers", str(folder / "n.jsonl"), "--group-by", "user"]
    output = ["-o", str(folder / "a.report.json"), "--log", str(folder / "log.jsonl"), "--device", "cpu", "-q"]
    assert run(["audit", "membership", str(llama), *sides, *output]) == 0
    return folder / "a.report.json"


def test_groups_that_an_audit_states_are_counted_again(report_path: Path) -> None:
    report = read_report(report_path)
    (found,) = check_groups(report_path, report, ())
    assert (found.outcome, report.parameters["grouped_records"]) == (
        Outcome.CONSISTENT,
        {"members": 24, "nonmembers": 24},
    )
    assert run(["verify", str(report_path), "-q"]) == 0
    forged = {
        "counts 12 groups of 24 members, but their files hold 24 values": {"group_by": "text"},
        "counts 12 groups of 99 members": {"grouped_records": {"members": 99, "nonmembers": 24}},
        "without the records in them": {"grouped_records": None},
        "or these without a field": {"group_by": None},
        "0 of its groups have names spelled like another's, and it says 4": {"similar_names": 4},
    }
    for reason, change in forged.items():
        (found,) = check_groups(report_path, replace(report, parameters={**report.parameters, **change}), ())
        assert found.outcome is Outcome.REFUTED
        assert reason in found.reason
    records = tuple(replace(i, samples={"members": 24, "nonmembers": 24}) for i in report.evidence)
    (found,) = check_groups(report_path, replace(report, evidence=records), ())
    assert "it counts 24 groups of 24 members, but their files hold 12 values of 'user'" in found.reason


def test_groups_whose_records_are_cut_are_counted_as_groups(
    report_path: Path, llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of the 24 users has 2 records of 4 words or more."""
    sides = [f"--{side}s={report_path.with_name(f'{side[0]}.jsonl')}" for side in ("member", "nonmember")]
    output = ["-o", str(report_path.with_name("cut.report.json")), "--log", str(report_path.with_name("cut.jsonl"))]
    call = ["audit", "membership", str(llama), *sides, "--group-by", "user", "--max-length", "4", "--device", "cpu"]
    assert run([*call, "--attack", "loss", *output]) == 0
    assert "cut to their first 4 tokens: some records of 24 of 24 groups" in " ".join(capfd.readouterr().out.split())
    assert run(["verify", output[1], "-q"]) == 0


@pytest.mark.parametrize(
    ("names", "outcome", "reason"),
    [
        (("ann", "Ann"), Outcome.REFUTED, "2 of its groups have names spelled like another's, and it says 0"),
        (('["ann"]', "Ann"), Outcome.REFUTED, "a record names none: .* has a list as 'user', and a record of several"),
        ((["ann"], "Ann"), Outcome.REFUTED, "a record names none: .* has a list as 'user', and a record of several"),
    ],
)
def test_names_of_groups_are_read_again(
    report_path: Path, tmp_path: Path, names: tuple[Any, str], outcome: Outcome, reason: str
) -> None:
    """The report of an audit of files in which two users were renamed."""
    report, inputs = read_report(report_path), []
    for item in report.inputs:
        file = report_path.parent / item.path
        if item.role in ("members", "nonmembers"):
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            for row in rows:
                row["user"] = {1000: names[0], 1012: names[1]}.get(row["user"], row["user"])
            file = tmp_path / file.name
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            item = replace(item, path=str(file), digest=file_digest(file), bytes=file.stat().st_size)
        inputs.append(item)
    (found,) = check_groups(report_path, replace(report, inputs=tuple(inputs)), ())
    assert found.outcome is outcome
    assert re.search(reason, found.reason)
    if names[0] == "ann":
        older = {name: value for name, value in report.parameters.items() if name != "similar_names"}
        (found,) = check_groups(report_path, replace(report, inputs=tuple(inputs), parameters=older), ())
        assert found.outcome is Outcome.INCONCLUSIVE
        with pytest.raises(InputError, match="among the non-members"):
            places = [Path(item.path) for item in inputs if item.role in ("members", "nonmembers")]
            read_groups("fold(user)", places[0], places[1], USUAL)


def test_a_split_of_records_has_no_groups(report_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = report_path.with_name("m.jsonl")
    folder = report_path.with_name("split")
    assert run(["audit", "split", str(data), "-o", str(folder), "-q"]) == 0
    assert run(["audit", "membership", "m", "--split", str(folder / "manifest.json"), "--group-by", "user"]) == 2
    assert "tossed a coin for each record" in capfd.readouterr().err


def test_shadow_models_scores_of_records_are_joined_by_group() -> None:
    """LiRA scores each record by itself, and a group by all of its own or by the highest."""
    source = np.random.default_rng(4)
    candidates = table(source.normal(-4.5, 0.5, 12), source.normal(-5, 0.5, 12))
    records = [Record(i % 12 + 1, f"w{i} w{i % 5}") for i in range(24)]
    lines = replace(candidates.table, line=np.arange(24, dtype=np.int64) % 12 + 1)
    candidates = replace(candidates, table=lines, records=records, digests=[record.digest for record in records])
    names = {(side, line): f"{side}{line // 4}" for side in (True, False) for line in range(1, 13)}
    grouping = Grouping(field="user", names=names)
    attack = load_attack("lira")
    groups, attacks = grouped(candidates, grouping, [attack], Settings())
    scores = {
        attack.name: attack.label_free_scores(groups, Settings())
        for attack in attacks
        if isinstance(attack, ScoreAttack)
    }
    assert isinstance(attack, ScoreAttack)
    of_records = attack.label_free_scores(candidates, Settings())
    index = grouping.numbers(candidates.table.member, candidates.table.line)
    assert scores.keys() == {"lira", "lira-top"}
    assert np.array_equal(scores["lira"], weighed(of_records, index))
    assert np.array_equal(scores["lira-top"], highest(of_records, index))
