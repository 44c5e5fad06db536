"""One entry of a genuine report changed at a time: none that makes a promise look better passes verify or a gate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.gate import GateOutcome
from privctl.domain.verdict import Outcome
from tests import remembered
from tests.few import few
from tests.verify.kinds import EVENTS, NAMES, Gate, Kind, Kinds, one_further, verdicts, verified
from tests.verify.mutants import HARMLESS, HARMLESS_OF, at, better, harmless, mutants
from verify.run import Verification, read, verify

#: In the quick tests every so many-th mutant of a kind.
_QUICK, _SLOW_KINDS = 61, ("plan", "plan of fixed batches", "ledger", "noise, several candidates")
#: Kinds of which fewer than fifty changes must be refused.
_FEW_CHANGES = {"verify": 5, "book of secrets": 10}


@pytest.fixture(scope="module", autouse=True)
def _remembered() -> Iterator[None]:
    """Most changes leave the ledger as it was."""
    with remembered.bounds(remembered.FEW_DRAWS):
        yield


def no_log() -> AbstractContextManager[object]:
    """Without the log of an audit, which holds the digest of its report, so that every change is refuted."""
    return mock.patch("verify.run.check_log", return_value=([], []))


@pytest.fixture
def _no_log() -> Iterator[None]:
    with no_log():
        yield


def true_all_the_same(found: Verification, place: tuple[Any, ...]) -> bool:
    """A changed number of a guarantee that was proved as it stands: another claim, and a true one."""
    if place[0] != "guarantees" or len(place) < 3 or not isinstance(place[1], int):
        return False
    numbers = {"epsilon", "delta", "follows", "floor", "bound"}
    return place[-1] in numbers and found.guarantees[place[1]].verdict.outcome is Outcome.PROVED


def weaker(place: tuple[Any, ...], genuine: dict[str, Any], mutant: dict[str, Any], name: str) -> bool:
    """Whether a change can only make a promise look worse."""
    return not name.endswith("left out") and "*" not in place and not better(
        place, at(genuine, place), at(mutant, place), genuine
    )  # fmt: skip


def passing(kind: Kind, every: int) -> Iterator[tuple[str, str]]:
    """What becomes of each mutant under verify and, where a gate judges the kind, under a gate."""
    genuine = json.loads(kind.path.read_text())
    gate = None if kind.policy is None else Gate(kind)
    report_path = kind.path.with_name("mutant.report.json")
    for name, where, mutant in mutants(genuine, every):
        if weaker(where, genuine, mutant, name):
            yield "no better", name
            continue
        left_out = name.endswith("left out")
        excused = [harmless(where, genuine, gate=gated, left_out=left_out) for gated in (False, True)]
        report_path.write_text(json.dumps(mutant))
        if excused[0] is None:
            with nullcontext() if where[0] == "log" else no_log():
                found = verified(report_path)
            if found is None or found.exit_code is not ExitCode.OK:
                yield "refused by verify", name
            else:
                yield "true" if true_all_the_same(found, where) else "passed verify", name
                if true_all_the_same(found, where):
                    continue
        if gate is not None and excused[1] is None:
            outcome = gate.judged(report_path).outcome
            yield "passed the gate" if outcome is GateOutcome.PASS else "refused by the gate", name
        elif excused[1] is not None:
            yield "harmless", name
    report_path.unlink(missing_ok=True)


def check(kind: Kind, every: int) -> Counter[str]:
    found = list(passing(kind, every))
    assert [(name, what) for what, name in found if what.startswith("passed")] == []
    return Counter(what for what, _ in found)


@pytest.mark.parametrize(("every", "count"), few([(False, 26), (True, 36)], 0))
def test_genuine_reports_of_every_kind_pass(kinds: Kinds, every: bool, count: int) -> None:
    found = {name: verdicts(kind, kind.path) for name, kind in (kinds if every else kinds.quick).items()}
    assert {name: code for name, (code, _) in found.items() if code is not ExitCode.OK} == {}
    assert {outcome for _, outcome in found.values()} == {"pass", "no gate"}
    assert len(found) == count


def test_a_sample_of_changes_of_every_kind_does_not_pass(kinds: Kinds) -> None:
    whole: Counter[str] = Counter()
    for name, kind in kinds.quick.items():
        if name not in _SLOW_KINDS:
            whole += check(kind, 11 * _QUICK if name in ("audit", "planned", "dpquant") else 2 * _QUICK)
    assert whole["refused by verify"] >= 40
    assert whole["refused by the gate"] >= 20


def test_every_kind_has_its_name(kinds: Kinds) -> None:
    assert {*kinds} == {*NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_change_for_the_better_passes(kinds: Kinds, name: str) -> None:
    kind, least = kinds[name], _FEW_CHANGES.get(name, 50)
    counts = check(kind, 1)
    assert counts["refused by verify"] >= least
    audits = name.startswith(("audit", "extraction"))  # whose figures are beyond a gate
    assert kind.policy is None or audits or counts["refused by the gate"] >= least


@pytest.mark.slow
def test_no_change_for_the_better_passes_in_a_search(tmp_path: Path) -> None:
    counts = check(one_further(tmp_path, "search"), 5)
    assert counts["refused by verify"] >= 40
    assert counts["refused by the gate"] >= 20


def test_every_reason_is_one() -> None:
    reasons = [*HARMLESS.values(), *(reason for rows in HARMLESS_OF.values() for reason in rows.values())]
    assert all(len(reason) > 4 for reason in reasons)


def test_a_ledger_file_is_an_input(tmp_path: Path) -> None:
    file, report = tmp_path / "events.json", tmp_path / "plan.report.json"
    file.write_text(json.dumps(EVENTS[1:]))
    assert run(["account", "--delta", "1e-5", "--ledger", str(file), "--json", "-q", "-o", str(report)]) == 0
    (source,) = read(report).inputs
    assert (source.role, source.path, source.bytes) == ("ledger", "events.json", file.stat().st_size)
    data = json.loads(report.read_text())
    laplace, responses = data["mechanism"]["events"]
    # Fewer events, or weaker ones, make every claim look generous.
    for events in ([laplace], [laplace, {**responses, "epsilon": 0.1}]):
        data["mechanism"]["events"] = events
        report.write_text(json.dumps(data))
        assert verify(report, read(report)).exit_code is ExitCode.REFUTED
    data["inputs"] = []
    report.write_text(json.dumps(data))
    found = verify(report, read(report))
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any("has no digest of each" in verdict.reason for verdict in found.verdicts)


def _changed(kind: Kind, **parameters: object) -> Verification:
    """The verification of a kind's report with other parameters."""
    data = json.loads(kind.path.read_text())
    data["parameters"] |= parameters
    report_path = kind.path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(data))
    found = verify(report_path, read(report_path))
    report_path.unlink()
    return found


@pytest.mark.parametrize(
    ("name", "changed", "word"),
    [
        ("dp-sgd", {"steps": 20}, "parameter steps"),
        ("dp-sgd", {"data": "imagenet"}, "the data is called imagenet"),
        ("dp-sgd", {"bf16": True}, "parameter bf16"),
        ("dp-sgd", {"released_numbers": 86_721}, "released_numbers"),
        ("dp-sgd", {"epsilon": 1.5}, "parameter epsilon"),
        ("noise", {"exclude": ["second"]}, "tensor 'second' was not left out"),
        ("noise", {"include": ["first", "third"]}, "tensor 'second' was not left out"),
        ("noise", {"exclude": ["embedding.*"]}, "matches none of its tensors"),
    ],
)
def test_bookkeeping_that_follows_from_something_else_is_checked(
    kinds: Kinds, name: str, changed: dict[str, object], word: str
) -> None:
    found = _changed(kinds[name], **changed)
    assert found.exit_code is ExitCode.REFUTED
    (reason,) = [v.reason for v in found.verdicts if v.subject == "parameters"]
    assert reason.startswith(word) or word in reason


@pytest.mark.parametrize(
    ("name", "changed", "place"),
    [
        ("opacus", {"accountant_history": [[1.0, 0.1]]}, "accountant_history[0]"),
        ("audit", {"asked": {"claims": [[1.0]]}}, "asked.claims[0]"),
        ("audit of canaries", {"canary_curve": [[0.5, 1.0, 2.0]]}, "canary_curve[0]"),
    ],
)
def test_a_list_of_the_wrong_length_is_refused_by_its_place(
    kinds: Kinds, name: str, changed: dict[str, object], place: str
) -> None:
    found = _changed(kinds[name], **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(f"parameters.{place} is " in v.reason for v in found.verdicts if v.subject == "parameters")


@pytest.mark.parametrize(
    ("name", "more"),
    [("dp-sgd", {"clipping", "learning_rate"}), ("dp-zo", {"perturbation (but for its power of two)"})],
)
def test_verify_names_every_parameter_that_no_check_rests_on(kinds: Kinds, name: str, more: set[str]) -> None:
    """Each parameter of a private training is edited: those that pass are in the line."""
    kind, passed = kinds[name], set()
    parameters = json.loads(kind.path.read_text())["parameters"]
    other = {
        "clipping": "per-layer",
        "schedule": "linear",
        "trained": ["x"],
        "fresh_tensors": ["x"],
        "momentum": 0.5,
        "beta1": 0.95,
        "beta2": 0.95,
        "collected_from_data": ["x"],
        "history": [{}],
        "warmup_steps": 2,
        "clip_norm": parameters["clip_norm"] / 2,  # a power of two, so that numbers on a grid stay on it
    }
    for entry, value in parameters.items():
        if isinstance(value, str | bool):
            other.setdefault(entry, not value if isinstance(value, bool) else f"{value}x")
        elif isinstance(value, int | float):
            other.setdefault(entry, 2 * value or 1)
    for entry, value in other.items():
        if _changed(kind, **{entry: value}).exit_code is ExitCode.OK:
            passed.add(entry)
    (line,) = [o.reason for o in _changed(kind).omissions if o.what == "bookkeeping"]
    named = line.split("the parameters ")[1].split(":")[0]
    assert line.startswith("no check rests on library versions")
    assert passed <= set(named.split(", "))
    assert {*named.split(", ")} >= more
    assert passed >= {"clip_norm", "micro_examples", "micro_tokens", "fresh_tensors", "history", "epsilon"}


_SELECTED = (
    "how many runs there were, and how long they took, stays with whoever made them; the operating system's coins drew "
    "that number and the candidate of each run before the first; of the runs the best on held-out examples, which are "
    "taken to be public, is released alone"
)
_MEASURED = (
    "the records on which it is measured how much quantizing a layer hurts are public: none depends on a private one"
)


@pytest.mark.parametrize(
    ("name", "premise", "statement", "word"),
    [
        ("dp-zo", "selection", _SELECTED, "no program can enforce it"),
        ("dpquant", "public measurements", _MEASURED, "no program can enforce it"),
        ("dp-zo", "public directions", ", which was given", "the seed was given"),
        ("dpquant", "public rounding", ", which was given", "the seed was given"),
        ("dp-sgd", "vocabulary", "", "2 times"),
    ],
)
def test_what_nothing_enforces_is_not_enforced(
    kinds: Kinds, name: str, premise: str, statement: str, word: str
) -> None:
    kind = kinds[name]
    data = json.loads(kind.path.read_text())
    stated = data["guarantees"][0]["assumptions"]
    here = next((each for each in stated if each["name"] == premise), None)
    if here is None:
        stated.append({"name": premise, "statement": statement, "state": "enforced"})
    elif statement:
        assert here["state"] == "enforced"
        here["statement"] = here["statement"].partition(", which the operating system drew")[0] + statement
    else:  # the first of two counts for none where the last is read
        stated.insert(0, {**here, "state": "enforced"})
    report_path = kind.path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(data))
    found = verify(report_path, read(report_path))
    report_path.unlink()
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts) or any(
        word in guarantee.verdict.reason for guarantee in found.guarantees
    )


@pytest.mark.usefixtures("_no_log")
@pytest.mark.parametrize(
    ("name", "entry", "value"),
    [
        ("audit", "held_out_texts", None),
        ("audit", "held_out_extracted", None),
        ("audit of canaries", "sets", 1e300),
        ("audit of canaries", "guesses 1", None),
    ],
)
def test_an_audit_without_an_entry_is_refuted(kinds: Kinds, name: str, entry: str, value: float | None) -> None:
    kind = kinds[name]
    genuine = json.loads(kind.path.read_text())
    places = [i for i, item in enumerate(genuine["evidence"]) if entry in item["details"]]
    assert places
    report_path = kind.path.with_name("mutant.report.json")
    for i in places:
        data = json.loads(kind.path.read_text())
        if value is None:
            del data["evidence"][i]["details"][entry]
        else:
            data["evidence"][i]["details"][entry] = value
        report_path.write_text(json.dumps(data))
        assert verify(report_path, read(report_path)).exit_code is ExitCode.REFUTED
        assert Gate(kind).judged(report_path).outcome is not GateOutcome.PASS
    report_path.unlink()


@pytest.mark.parametrize("name", ["audit", "audit of canaries", "dp-sgd", "dp-zo"])
def test_a_name_too_long_for_a_file_is_that_of_no_file(kinds: Kinds, name: str) -> None:
    kind, report_path = kinds[name], kinds[name].path.with_name("mutant.report.json")
    genuine = json.loads(kind.path.read_text())
    for entry, role in {(side, item["role"]) for side in ("inputs", "outputs") for item in genuine[side]}:
        data = json.loads(kind.path.read_text())
        for item in data[entry]:
            item["path"] = "a" * 5000 if item["role"] == role else item["path"]
        report_path.write_text(json.dumps(data))
        found = verify(report_path, read(report_path))
        said = {*(verdict.subject for verdict in found.verdicts), *(omission.what for omission in found.omissions)}
        assert any("aaaa" in words for words in said) or found.exit_code is not ExitCode.OK
        Gate(kind).judged(report_path)
    report_path.unlink()


def spoilt(genuine: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """An audit with one number, attack, baseline, verdict or input changed or left out, each with a word for it."""

    def mutant(name: str, index: int, **changed: Any) -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(genuine))
        if changed:
            copy[name][index].update(changed)
        else:
            del copy[name][index]
        return copy

    for index, item in enumerate(genuine["evidence"]):
        exact = item["quantity"].startswith(("rate on", "training text found")) and item["details"].get("texts")
        for key in ("estimate", "lower", "upper", "confidence"):
            if (item["quantity"] == "AUC" or exact) and item[key]:
                yield f"{item['method']} {item['quantity']} {key}", mutant("evidence", index, **{key: 0.9 * item[key]})
        if item["quantity"] == "AUC":
            yield f"{item['method']} interval", mutant("evidence", index, interval="another")
        if item["quantity"] == "AUC" and item["method"].endswith("baseline"):
            yield f"no {item['method']}", mutant("evidence", index)
    for index in range(len(genuine["verdicts"])):
        yield f"no verdict {index}", mutant("verdicts", index)


@pytest.mark.usefixtures("_no_log")
def test_a_number_of_an_audit_that_is_changed_by_itself_is_noticed(kinds: Kinds) -> None:
    """What an audit measured is not repeated; but its intervals, counts, baselines and verdicts hang together."""
    kind = kinds["audit"]
    gate, report_path = Gate(kind), kind.path.with_name("mutant.report.json")
    tried, missed = 0, []
    for name, changed in spoilt(json.loads(kind.path.read_text())):
        report_path.write_text(json.dumps(changed))
        tried += 1
        found, judged = verified(report_path), gate.judged(report_path)
        if (found is not None and found.exit_code is ExitCode.OK) or judged.outcome is GateOutcome.PASS:
            missed.append(name)
    report_path.unlink()
    assert missed == []
    assert tried >= 25


@pytest.mark.usefixtures("_no_log")
@pytest.mark.parametrize("name", ["audit", "audit of canaries"])
def test_an_audit_that_states_another_confidence_is_refuted(kinds: Kinds, name: str) -> None:
    """Each interval may hold with less, and a test err more often, where the whole audit does; without any, all may."""
    kind, report_path = kinds[name], kinds[name].path.with_name("mutant.report.json")
    for stated in (0.9, 0.99, None):
        data = json.loads(kind.path.read_text())
        data["parameters"]["confidence"] = stated
        report_path.write_text(json.dumps(data))
        assert verify(report_path, read(report_path)).exit_code is ExitCode.REFUTED
        assert Gate(kind).judged(report_path).outcome is GateOutcome.FAIL
    report_path.unlink()
