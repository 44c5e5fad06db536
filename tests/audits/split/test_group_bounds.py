"""Coins of users bound the epsilon of a user; claims about users are tested as they stand, others by group privacy.

Scores are made up as mechanisms would: what a user adds is the scale, and the noise is known.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.canaries.bounds import EITHER
from audits.canaries.design import power_ceiling, register
from audits.claims import CurveClaim, EpsilonClaim, claims_of, with_half_noise
from audits.findings import Findings
from audits.lineage import _fixes_graph
from audits.split.draw import SplitRequest, draw_split
from audits.split.drawn import DrawnSplit
from audits.split.findings import split_findings
from audits.split.implied import examples_of_a_coin, group_privacy
from audits.statistics.one_run import divide, epsilon_bound
from privctl.accounting.gaussian import delta_at
from privctl.accounting.profile import profile
from privctl.data.selection import select
from privctl.data.sharing import Sharing
from privctl.domain.errors import InputError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.groups import of_group
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.shared_records import SharedRecords
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import TrainingParameters
from tests.audits.split.test_split import drawn
from tests.audits.split.users import drawn_users, included, scored, split_at
from tests.gate.made import PROVED
from verify.audits.canaries.guesses import check_guesses
from verify.audits.consistency import faults
from verify.audits.split.groups import wrong_form

#: So many users, of whom one in nine has 20 records, and as many as notice half of the noise.
USERS, MANY, MOST = 900, 2700, 20


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> DrawnSplit:
    return split_at(drawn_users(tmp_path_factory.mktemp("users"), USERS))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> DrawnSplit:
    return split_at(drawn_users(tmp_path_factory.mktemp("many"), MANY))


@pytest.fixture(scope="module")
def of_records(tmp_path_factory: pytest.TempPathFactory) -> DrawnSplit:
    return split_at(drawn(tmp_path_factory.mktemp("records"), [f"record {i}" for i in range(USERS)]))


def findings(
    split: DrawnSplit, shift: float, *claims: EpsilonClaim, curve: CurveClaim | None = None, seed: int = 0
) -> Findings:
    """Of scores that are normal with deviation 1, and for members larger by ``shift``."""
    noise = np.random.default_rng(seed).normal(size=len(split.included))
    scores, named = scored(split, shift * included(split) + noise)
    return split_findings(scores, named, trained_on=None, claimed=claims, curve=curve, delta=None, alpha=0.025)


def report_of(found: Findings, group_by: str | None) -> PrivacyReport:
    groups = {} if group_by is None else {"group_by": group_by, "split_groups": found.evidence[0].samples["canaries"]}
    return PrivacyReport(
        step="audit", created="2020-01-01T00:00:00Z", versions={}, evidence=found.evidence, verdicts=found.verdicts,
        parameters={"attack": ["loss"], "confidence": 0.95, "split_commitment": "blake3:0", "asked": {}, **groups,
                    **found.parameters},
        inputs=(Artifact(role="model", path="m/model.safetensors", digest="blake3:0", bytes=9),),
        outputs=(Artifact(role="scores", path="r.scores.safetensors", digest="blake3:0", bytes=9),),
        parents=(ParentReport(path="m", digest="blake3:1"),),
    )  # fmt: skip


def wrong(report: PrivacyReport) -> list[str]:
    return [fault for fault in faults(report) if "was asked for" not in fault and "not asked about" not in fault]


def outcomes(found: Findings) -> list[Outcome]:
    return [verdict.outcome for verdict in found.verdicts]


def claim(epsilon: float, unit: str | None = None, delta: float = 1e-5) -> EpsilonClaim:
    return EpsilonClaim(epsilon=epsilon, delta=delta, unit=unit)


def test_users_who_are_all_told_certify_as_much_as_so_many_canaries(split: DrawnSplit) -> None:
    found = findings(split, 100.0)
    epsilon, mu = found.evidence
    assert (epsilon.quantity, mu.quantity) == ("epsilon of a group, loss", "mu of a group, loss")
    assert epsilon.lower == pytest.approx(power_ceiling(register([1] * USERS), 1e-5, 0.025))
    assert (epsilon.samples["canaries"], epsilon.details["group_records"]) == (USERS, MOST)
    report = report_of(found, "user")
    assert not wrong(report)
    assert not list(check_guesses(Path("r.json"), report, ()))


def test_a_claim_is_judged_for_the_examples_that_it_is_about(split: DrawnSplit, of_records: DrawnSplit) -> None:
    """Certain coins: as many as these certify more than 5. What is refuted of users is not refuted of records."""
    claimed = (claim(3, "user"), claim(3), claim(3, "site"), claim(0.2, delta=0), claim(0.3, delta=0))
    found = findings(split, 100.0, *claimed)
    assert outcomes(found) == [
        Outcome.REFUTED,  # users, as they stand
        Outcome.INCONCLUSIVE,  # records: 20 of them may do anything
        Outcome.INCONCLUSIVE,  # sites
        Outcome.REFUTED,  # records: 20 of them have an epsilon of 4
        Outcome.INCONCLUSIVE,  # and here of 6
    ]
    subjects = [verdict.subject for verdict in found.verdicts]
    assert subjects[0] == "(3, 1e-05)-DP, as claimed"
    assert subjects[1] == "(60, 1)-DP, of 20 examples together by (3, 1e-05)-DP, as claimed"
    assert subjects[2] == "(3, 1e-05)-DP for values of 'site', as claimed"
    assert "draw a split with --group-by site" in found.verdicts[2].reason
    assert "with 900 coins no bound can exceed" in found.verdicts[4].reason
    assert "draw more groups (privctl audit split --group-by user --to-see 6" in found.verdicts[4].reason
    assert not wrong(report_of(found, "user"))

    found = findings(of_records, 100.0, claim(3), claim(3, "user"), claim(2, "user", delta=0))
    assert outcomes(found) == [Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.REFUTED]
    assert found.verdicts[2].subject == "(4, 0)-DP, of 2 examples together by (2, 0)-DP, as claimed"
    assert not wrong(report_of(found, None))


def test_claims_for_a_fixed_graph_are_not_judged_by_coins_of_records(
    split: DrawnSplit, of_records: DrawnSplit, tmp_path: Path
) -> None:
    """Of {a, b_1 ... b_n} and {b_i, c_i}, with one record a user, the first keeps n others out: a coin moves n + 1."""
    users = ["a", *(f"b{i}" for i in range(9))], *([f"b{i}", f"c{i}"] for i in range(9))
    used = [int(select(Sharing.of(named), 1, SharedRecords.FIRST).sum()) for named in (users, users[1:])]
    assert used == [1, 9]
    rules = {None: False, "all": False, "first": True, "greedy": True, "most": True}
    assert {rule: _fixes_graph(TrainingParameters(shared_records=rule)) for rule in rules} == rules
    fixed = replace(claim(0.5, "user"), fixed_graph=True)
    found = findings(of_records, 100.0, fixed)
    assert outcomes(found) == [Outcome.INCONCLUSIVE]
    assert "other records may have been chosen" in found.verdicts[0].reason
    assert outcomes(findings(split, 100.0, fixed)) == [Outcome.REFUTED], "groups of a split share no record"
    report, parameters = report_of(found, None), AuditParameters(split_commitment="blake3:0")
    assert not wrong(report)
    together_too = "(1, 2.6e-5)-DP, of 2 examples together by (0.5, 1e-5)-DP, c"
    for subject, fits in ((found.verdicts[0].subject, True), (together_too, False)):
        assert wrong_form(subject, report, parameters, "user", chosen=True) is not fits
        assert wrong_form(subject, report, parameters, "user") is fits
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"text": f"t{i}", "user": '["a", "b"]'}) + "\n" for i in range(9)))
    with pytest.raises(InputError, match="a record of several groups has no coin"):
        draw_split(SplitRequest(data=data, folder=tmp_path / "s", group_by="user"))


def test_group_privacy(split: DrawnSplit, of_records: DrawnSplit) -> None:
    """1e-6 (1 + e + e^2) is 1.1107337927e-5; and no Gaussian mechanism, exact for groups, does worse than it says."""
    assert group_privacy(1.0, 1e-6, 3) == (3.0, pytest.approx(1.1107337927e-5, rel=1e-9))
    assert group_privacy(0.0, 1e-6, 4) == (0.0, 4e-6)
    assert group_privacy(2.0, 0.0, 500) == (1000.0, 0.0)
    assert group_privacy(2.0, 1e-9, 500) == (1000.0, 1.0)
    for mu in (0.2, 1.0):
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            for count in (2, 3, 10):
                whole, delta = group_privacy(epsilon, delta_at(epsilon, mu), count)
                assert delta_at(whole, count * mu) <= delta * (1 + 1e-9)
    assert [examples_of_a_coin(split, unit) for unit in ("user", None, "site")] == [1, MOST, None]
    assert [examples_of_a_coin(of_records, unit) for unit in (None, "user")] == [1, 2]


def curve(multiplier: float, examples: int = 1) -> CurveClaim:
    ledger = Ledger(events=(SampledGaussian(noise_multiplier=multiplier, sample_rate=1.0, steps=1),))
    mechanism = ledger if examples == 1 else of_group(ledger, examples)
    half = profile(with_half_noise(mechanism))
    return CurveClaim(mechanism=mechanism, points=profile(mechanism), source="m", half=half)


def test_a_mechanism_for_users_is_refuted_by_half_of_its_noise(many: DrawnSplit) -> None:
    """One step with all users at noise 1: what a user adds is one deviation of it, and with half of it two."""
    held, broken = (findings(many, shift, curve=curve(1.0)) for shift in (1.0, 2.0))
    assert outcomes(held) == [Outcome.CONSISTENT]
    assert outcomes(broken) == [Outcome.REFUTED]
    for found in (held, broken):
        assert not wrong(report_of(found, "user"))
    assert outcomes(findings(many, 2.0, curve=curve(0.5))) == [Outcome.INCONCLUSIVE]


def test_a_mechanism_for_records_is_held_against_all_records_of_a_user(many: DrawnSplit) -> None:
    """Twenty records of a user add twenty times as much as one, whose epsilon they do not refute."""
    claimed = curve(20.0, MOST)
    held, broken = (findings(many, shift, claim(1.0), curve=claimed) for shift in (1.0, 2.0))
    assert outcomes(held) == [Outcome.INCONCLUSIVE, Outcome.CONSISTENT]
    assert outcomes(broken) == [Outcome.INCONCLUSIVE, Outcome.REFUTED]
    assert not wrong(report_of(broken, "user"))
    assert outcomes(findings(many, 1.0, curve=curve(20.0)))[0] is Outcome.REFUTED  # as if it were about one record


@pytest.mark.slow
def test_a_true_claim_about_users_is_seldom_refuted(many: DrawnSplit) -> None:
    """Of 200 audits of a mechanism at its limit, 2.5 % may refute it: more than 14 do once in 1000."""
    claimed, refuted = curve(1.0), 0
    for seed in range(200):
        found = findings(many, 1.0, claim(epsilon_of(1.0), "user"), curve=claimed, seed=seed)
        refuted += Outcome.REFUTED in outcomes(found)
    assert refuted <= 14


def epsilon_of(mu: float) -> float:
    """Nearly the epsilon of mu-GDP at 1e-5."""
    return min(epsilon for epsilon in np.arange(0.0, 30.0, 0.01).tolist() if delta_at(epsilon, mu) <= 1e-5)


def test_coins_of_users_taken_for_coins_of_records_certify_what_is_not_there(split: DrawnSplit) -> None:
    """Users differ, the model saw none: by their own coins 5 % may certify something, by records' far more do."""
    places = sorted(split.coins)
    coin = np.array([split.coins[place] for place in places])
    member, random = included(split), np.random.default_rng(5)
    certified = {"records": 0, "users": 0}
    for _ in range(100):
        side = random.permutation(member)
        records = random.normal(size=USERS)[coin] + random.normal(size=len(coin)) / 2
        users = np.bincount(coin, weights=records) / np.bincount(coin)
        for name, scores, truth in (("records", records, side[coin]), ("users", users, side)):
            correct = int((divide(scores) == np.where(truth == 1, 1, -1)).sum())
            certified[name] += epsilon_bound(len(scores), len(scores), correct, 1e-5, 0.05) > 0
    assert certified["users"] <= 12
    assert certified["records"] >= 20


def test_what_is_forged_of_groups_is_seen(split: DrawnSplit) -> None:
    found = findings(split, 100.0, claim(0.2, delta=0))
    right = report_of(found, "user")
    assert not wrong(right)
    epsilon = right.evidence[0]
    as_records = replace(epsilon, quantity="epsilon, loss")
    sizeless = replace(epsilon, details={k: v for k, v in epsilon.details.items() if k != "group_records"})
    verdict = found.verdicts[0]
    for forged, says in (
        (replace(right, evidence=(as_records, *right.evidence[1:])), "is not about what it counts, groups"),
        (replace(right, evidence=(sizeless, *right.evidence[1:])), "is not about what it counts, groups"),
        (report_of(found, None), "is not about what it counts, records"),
        (
            replace(right, verdicts=(replace(verdict, subject=verdict.subject.replace("20 ex", "10 ex")),)),
            "is about 10 examples, and a coin changes up to 20",
        ),
        (
            replace(right, verdicts=(replace(verdict, subject=verdict.subject.replace("(4, 0)", "(9, 0)", 1)),)),
            "does not follow by group privacy, which gives (4, 0)",
        ),
        (
            replace(right, verdicts=(replace(verdict, outcome=Outcome.INCONCLUSIVE),)),
            "but its counts refute that",
        ),
    ):
        assert any(says in fault for fault in wrong(forged)), says


def test_claims_of_a_report_have_the_unit_of_its_training() -> None:
    (of_user,) = claims_of([PROVED], "m.json", "user")
    (of_record,) = claims_of([PROVED], "m.json")
    assert (of_user.unit, of_record.unit) == ("user", None)
    assert math.isclose(of_user.epsilon, of_record.epsilon)
    assert EITHER.startswith("one run")
