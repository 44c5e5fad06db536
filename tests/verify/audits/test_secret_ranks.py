"""Figures of an audit of secrets, computed again from the ranks that it kept: changed ones are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.canaries.completion import Completion
from audits.extraction.summary import QueryBudget
from audits.scores.scores_file import staged_scores
from audits.secrets import blind
from audits.secrets import evidence as evidences
from audits.secrets.attack import Ranks, SecretAnswers, SecretAttackResult
from audits.secrets.beam import BeamHits
from audits.secrets.kept import kept_arrays
from audits.secrets.planned_bound import PlannedBound
from audits.secrets.trace import trace_tests
from audits.secrets.verdict import trace as judged
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.digest import NamedFiles
from tests.few import few
from verify.audits.secrets.figures import faults
from verify.audits.secrets.recounted import recount_secrets
from verify.audits.verdicts import other_verdicts

PLAN = Artifact(role="plan", path="plan.safetensors", digest="blake3:0", bytes=9)

SEED, ALPHA = 5, 0.05
#: Secrets trained on, held out, never drawn by a plan, and drawn at random, in this order.
NATURAL, DESIGNED = 24, 9
Side = tuple[str, int, dict[str, Any]]
_HELD: list[Side] = [("trained", NATURAL, {"compared": True}), ("held", NATURAL, {"held_out": True, "compared": True})]
_PLAN: list[Side] = [("trained", NATURAL, {}), ("never", NATURAL, {"control": True})]
_DRAWN: list[Side] = [("drawn", DESIGNED, {"format": "pin {digits:4}"}), ("trained", 3, {})]
_ALONE: list[Side] = [("trained", NATURAL, {})]
_FEW: list[Side] = [("trained", 8, {"compared": True}), ("held", 8, {"held_out": True, "compared": True})]


def _result(sides: list[Side], *, base: bool, beam: bool) -> SecretAttackResult:
    """Ranks of secrets of two kinds; those that were trained on are told more often."""
    drawn = np.random.default_rng(7)
    problems, leaks = [], []
    for name, size, more in sides:
        for number in range(size):
            target = {
                "position": len(problems), "kind": ("pin", "name")[number % 2], "control": False, "held_out": False,
                "compared": False, "format": None, "records": 1 + number % 3 // 2,
                "allowance": PlannedBound(information=1e-3, prior=0.01, posterior=0.02) if number % 4 else None,
                "passages": [SimpleNamespace(text=f"{name} {number % 5} {drawn.integers(99)} of {number}")],
            }  # fmt: skip
            pool = 40 + 5 * (number % 2) if "format" in more else 0
            problems.append(SimpleNamespace(target=SimpleNamespace(**target | more), pool=pool))
            leaks.append(name in ("trained", "drawn"))
    leak, count = np.array(leaks), len(leaks)

    def answers(*, knows: bool) -> SecretAnswers:
        found = drawn.random(count) < np.where(leak & knows, 0.5, 0.02)
        states = [Completion.DISCLOSED if each else drawn.choice([0, 0, 2]) for each in found]
        return SecretAnswers(
            ranks=_ranks(found), loss=drawn.exponential(4, count), completion=np.array(states, dtype=np.uint8),
            logp=-drawn.exponential(4, count),
        )  # fmt: skip

    def _ranks(found: np.ndarray) -> Ranks:
        among = drawn.integers(30, 41, count)
        return Ranks(rank=np.where(found, 1, drawn.integers(1, among + 1)), count=among)

    hits = BeamHits(width=5, found=drawn.random(count) < np.where(leak, 0.5, 0.1), chance=drawn.random(count) / 9)
    return SecretAttackResult(
        problems=tuple(problems), lost=(), after=answers(knows=True), before=answers(knows=False) if base else None,
        calibrated=_ranks(leak & (drawn.random(count) < 0.4)) if base else None, beam=hits if beam else None,
    )  # fmt: skip


class Audit:
    """The evidence on one result, and what is kept of it."""

    def __init__(self, folder: Path, result: SecretAttackResult) -> None:
        omitted, queries = [("street", "not found"), ("pin", "too long")], QueryBudget()
        alone = blind.without_the_model(result, ALPHA)
        plan = evidences.protection(result, ALPHA)
        self.evidence = (
            *evidences.rates(result, omitted, queries, ALPHA),
            *evidences.tests_as_evidence(trace_tests(result, SEED), ALPHA),
            *alone.evidence,
            *(() if plan is None else [plan[0]]),
        )
        self.arrays = kept_arrays(result, omitted, queries, alone.arrays)
        self.folder = folder

    def wrong(self, evidence: Sequence[Evidence], arrays: dict[str, Any] | None = None, **more: Any) -> list[str]:
        """What is found in a report of ``evidence``, beside the file of what was kept."""
        place = self.folder / "r.report.json"
        kept = place.with_name("other.safetensors" if arrays else "r.safetensors")
        if arrays or not kept.is_file():
            with staged_scores(kept, arrays or self.arrays, {}) as pending:
                pending.commit(replace=True)
        report = PrivacyReport(
            step="audit", created=now(), versions=versions(("numpy",)), outputs=(file_artifact("scores", kept, place),),
            parameters={"secrets": {"seed": SEED}}, evidence=tuple(evidence), inputs=(PLAN,),
        )  # fmt: skip
        found = recount_secrets(place, replace(report, **more), NamedFiles())
        self.recounted = {(item.method, item.quantity) for item in found.items}
        try:
            return [*found.wrong, *faults(report)]
        except LookupError as missing:  # as for all figures of an audit
            return [f"it lacks the entry {missing}"]


def audit_report(*evidence: Evidence, verdict: Verdict) -> PrivacyReport:
    return PrivacyReport(step="audit", created=now(), versions={}, evidence=evidence, verdicts=(verdict,))


KINDS: dict[str, Callable[[], SecretAttackResult]] = {
    "held-out secrets, a base model and a beam": lambda: _result(_HELD, base=True, beam=True),
    "secrets that a plan left out": lambda: _result(_PLAN, base=False, beam=True),
    "secrets drawn at random": lambda: _result(_DRAWN, base=True, beam=True),
    "no control": lambda: _result(_ALONE, base=True, beam=False),
    "few held-out secrets": lambda: _result(_FEW, base=False, beam=False),
}


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    return {kind: Audit(tmp_path_factory.mktemp("kept"), made()) for kind, made in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_genuine_figure_is_computed_again(kind: str, audits: dict[str, Audit]) -> None:
    audit = audits[kind]
    assert audit.wrong(audit.evidence) == []
    assert audit.recounted == {(item.method, item.quantity) for item in audit.evidence}
    measured = {item.method for item in audit.evidence if item.estimate is not None}
    assert {"secret trace", "secret reconstruction", "secret completion"} <= measured
    other = {**versions(("numpy",)), "numpy": "0.1"}
    assert audit.wrong(audit.evidence, versions=other) == [], "permutations of another version, told by their spread"


@pytest.mark.parametrize(
    ("candidates", "first", "outcome"),
    [(2, True, Outcome.INCONCLUSIVE), (3, True, Outcome.INCONCLUSIVE), (4, True, Outcome.REFUTED),
     (2, False, Outcome.INCONCLUSIVE), (4, False, Outcome.CONSISTENT)],
)  # fmt: skip
def test_ranks_among_few_candidates_show_nothing(
    candidates: int, first: bool, outcome: Outcome, tmp_path: Path
) -> None:
    """The sum of 120 logarithms of 2 or 3 is no larger than chance gives for continuous ranks: no test could reject."""
    made = _result([("drawn", 120, {"format": "pin {digits:4}"})], base=False, beam=False)
    rank = np.ones(120, np.int64) if first else 1 + np.arange(120) % candidates
    after = replace(made.after, ranks=Ranks(rank=rank, count=np.full(120, candidates)))
    audit = Audit(tmp_path, replace(made, after=after))
    (item,) = [item for item in audit.evidence if item.method == "secret trace"]
    found = judged(audit.evidence)
    assert found.outcome is outcome
    assert audit.wrong(audit.evidence) == []
    rest = [each for each in audit.evidence if each is not item]
    for least, complaint in ((0.04, "its least p-value is 0.04"), (None, "")):
        details = {name: value for name, value in item.details.items() if name != "least_p_value"}
        forged = replace(item, details=details if least is None else {**details, "least_p_value": least})
        wrong = audit.wrong([*rest, forged])
        if least is None and candidates < 4:
            complaint = "no ranks of so many candidates could have been significant"
        assert any(complaint in line for line in wrong) if complaint else wrong == []
    hidden = audit_report(*audit.evidence, verdict=replace(found, outcome=Outcome.CONSISTENT))
    assert any("it compares no 100 secrets" in line for line in other_verdicts(hidden, (), by_coins=False)) is (
        candidates < 4
    )


#: Counts of omissions, and what other checks compare with the audit's request or with the deviation.
_ELSEWHERE = ("skipped", "level", "confidence")


def _changed(item: Evidence) -> Iterator[tuple[str, Evidence]]:
    """``item`` with each of its numbers changed, by the name of the number."""
    if item.estimate is not None:
        yield "estimate", replace(item, estimate=item.estimate * 0.9 + 0.02)
    for name, value in item.details.items():
        if name not in _ELSEWHERE:
            yield name, replace(item, details={**item.details, name: value * 0.9 + 0.02})
            if name != "least_p_value":  # older audits lack it, and it matters only where it exceeds the level
                yield f"{name} removed", replace(item, details={k: v for k, v in item.details.items() if k != name})
    for name, size in item.samples.items():
        yield name, replace(item, samples={**item.samples, name: size + 1})


@pytest.mark.parametrize("kind", few(KINDS, 0, 1, 2))
def test_every_number_that_was_changed_is_noticed(kind: str, audits: dict[str, Audit]) -> None:
    audit, tried, missed = audits[kind], 0, []
    kinds = [item for item in audit.evidence if item.quantity.startswith("told first, kind ")]
    for item in audit.evidence:
        others = [each for each in kinds if each is not item]
        before = audit.wrong([*others, item])
        for name, changed in _changed(item):
            tried += 1
            place = kinds.index(item) if item in kinds else len(kinds)  # the order of the kinds names them
            if audit.wrong([*others[:place], changed, *others[place:]]) == before:
                missed.append(f"{item.method}, {item.quantity}: {name}")
    assert missed == []
    assert tried > 50


@pytest.mark.parametrize(
    ("quantity", "change", "word"),
    [
        ("mean bits beyond, against held-out secrets, by loss", {"p_value": 0.9}, "its p-value is 0.9"),
        ("share found beyond, against held-out secrets, by a beam of 5", {"p_value": 0.9}, "its p-value is 0.9"),
        ("share told more, against the base model, by loss", {"p_value": 0.9}, "its p-value is 0.9"),
        ("area without the model", {"p_value": 0.01}, "its p_value is 0.01"),
        ("area by loss over that", {"deviation": 0.5}, "its deviation is 0.5"),
        ("area by loss less the base model's over that", {"deviation": 0.5}, "its deviation is 0.5"),
        ("area by a beam of 5 over that", {"deviation": 0.5}, "its deviation is 0.5"),
    ],
)
def test_a_leak_cannot_be_hidden(quantity: str, change: dict[str, float], word: str, audits: dict[str, Audit]) -> None:
    audit = audits["held-out secrets, a base model and a beam"]
    item = next(each for each in audit.evidence if each.quantity == quantity)
    (fault,) = audit.wrong([replace(item, details={**item.details, **change})])
    assert word in fault


@pytest.mark.parametrize(
    ("quantity", "change", "word"),
    [
        ("area by loss over that", {"lower": None}, "of a bound that is"),
        ("area by loss over that", {"interval": "normal"}, "its interval is 'normal'"),
        ("area by loss over that", {"quantity": "area by loss"}, "no audit measures anything of that name"),
        ("area without the model", {"estimate": None, "reason": "few"}, "20 records or more"),
        ("mean bits beyond, against held-out secrets, by loss", {"interval": "Fisher's method"}, "no audit makes"),
        ("mean bits beyond, against held-out secrets, by loss", {"upper": 0.1}, "no audit makes"),
        ("mean bits beyond, against held-out secrets, by loss", {"estimate": None}, "its estimate, its p-value"),
    ],
)
def test_forms_that_would_escape_the_checks(
    quantity: str, change: dict[str, Any], word: str, audits: dict[str, Audit]
) -> None:
    """Planted: an excess over the records without its lower limit, or of another kind, whose limits no check reads."""
    evidence = audits["held-out secrets, a base model and a beam"].evidence
    item = next(each for each in evidence if each.quantity == quantity)
    report = PrivacyReport(step="audit", created=now(), versions={}, evidence=(replace(item, **change),))
    assert any(word in each for each in faults(report))


@pytest.mark.parametrize(
    ("kind", "quantity"),
    [
        ("no control", "share told more, against the base model, by loss"),
        ("all drawn at random", "mean bits beyond, drawn at random, by loss"),
        ("all drawn at random", "mean bits beyond, drawn at random, by loss less the base model's"),
        ("all drawn at random", "share found beyond, drawn at random, by a beam of 5"),
    ],
)
def test_a_raised_p_value_is_noticed_by_the_rates_beside_it(kind: str, quantity: str, tmp_path: Path) -> None:
    """A gate reads no ranks. Planted: what the model told, with a p-value that calls it chance."""
    made = KINDS.get(kind, lambda: _result(_DRAWN[:1], base=True, beam=True))
    evidence = Audit(tmp_path, made()).evidence
    report = PrivacyReport(step="audit", created=now(), versions={}, evidence=evidence, inputs=(PLAN,))
    assert list(faults(report)) == []
    place, item = next((i, each) for i, each in enumerate(evidence) if each.quantity == quantity)
    assert item.details["p_value"] < 0.1
    raised = replace(item, details={**item.details, "p_value": 0.9, "detected": 0.0})
    (fault,) = faults(replace(report, evidence=(*evidence[:place], raised, *evidence[place + 1 :])))
    assert "its p-value is 0.9, and the rates of the same secrets give" in fault


def test_what_was_not_kept_is_not_compared(audits: dict[str, Audit]) -> None:
    """Older audits kept the ranks of the secrets, and not what they were compared with."""
    audit = audits["no control"]
    older = {name: array for name, array in audit.arrays.items() if name not in ("secret.kind", "secret.stratum")}
    assert audit.wrong(audit.evidence, older) == []
    assert audit.recounted == set()


def test_ranks_that_cannot_be_are_no_ranks(audits: dict[str, Audit]) -> None:
    audit = audits["no control"]
    beyond = {**audit.arrays, "secret.rank": audit.arrays["secret.candidates"] + 1}
    (fault,) = audit.wrong(audit.evidence, beyond)
    assert "holds ranks of secrets that cannot be" in fault
