"""``retrain dp-sgd --shared-records``: trained, verified, forged, and refused where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.data.count import count_examples
from privctl.domain.events import GroupGaussian, Ledger
from privctl.domain.guarantee import Adjacency
from privctl.domain.shared_records import SharedRecords
from privctl.domain.verdict import Outcome
from privctl.gate.checks.permitted import _protects
from privctl.gate.files import load
from privctl.reports.files import read_report
from tests.cli.short_runs import half_the_noise, verified_after
from tests.models.tasks.small import architecture, words
from verify.files.data import DataAtHand, check_data

#: Of forty mails, each between neighbours on a ring of twelve, every third with one person in addition.
PEOPLE, MAILS, MOST, STEPS = 12, 40, 3, 6
UNIT = "all records that name one user in 'people'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder / "start")
    lines = []
    for i in range(MAILS):
        people = [f"p{i * i % PEOPLE}", f"p{(i * i + 1) % PEOPLE}", *(["boss"] if i % 3 == 0 else [])]
        lines.append(json.dumps({"text": f"the cat sat on the {('mat', 'dog')[i % 2]}", "people": people}))
    (folder / "mails.jsonl").write_text("\n".join(lines))
    return folder


def call(folder: Path, output: str, *more: str) -> list[str]:
    data = ["--data", str(folder / "mails.jsonl"), "--unit", "people", "--batch-size", "3", "--steps", str(STEPS)]
    return ["retrain", "dp-sgd", str(folder / "start"), *data, "--device", "cpu", "-o", str(folder / output), *more]


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    bound = ("--max-records-per-user", str(MOST), "--shared-records", "greedy")
    assert run([*call(folder, "out", "--epsilon", "6", *bound), "-q"]) == 0
    return folder / "out.report.json"


def kept(folder: Path, rule: SharedRecords = SharedRecords.GREEDY, most: int = MOST) -> int:
    return count_examples(folder / "mails.jsonl", "people", most=most, shared=rule)


def test_what_users_say_is_protected_and_verified(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = read_report(trained)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, GroupGaussian)
    used = kept(folder)
    assert MOST < used < MAILS
    assert (event.group_size, event.sample_rate) == (MOST, 3 / used)
    assert (report.parameters["examples"], report.parameters["shared_records"]) == (used, "greedy")
    guarantee = report.guarantees[0]
    assert guarantee.adjacency is Adjacency.ZERO_OUT
    unit = next(a.statement for a in guarantee.assumptions if a.name == "unit of privacy")
    assert unit == (
        f"{UNIT}, of which {MOST} at most are used, are one example; neighbours differ in whether these "
        "contribute, and which users each record names is public and the same in both"
    )
    assert any("not for which users a record names" in warning for warning in report.warnings)
    assert run(["verify", str(trained), "-q", "--data", str(folder / "mails.jsonl")]) == 0
    capsys.readouterr()


@pytest.mark.forged("the run used more records of each user than it says, and all else fits what it says")
def test_an_understated_bound_is_refuted_by_the_data(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bound, ledger and epsilon are those of two records a user, and the examples those of three."""
    report = json.loads(trained.read_text())
    loaded = read_report(trained)
    assert isinstance(loaded.mechanism, Ledger)
    smaller = Ledger(events=(replace(loaded.mechanism.events[0], group_size=MOST - 1),))  # type: ignore[call-arg]
    report["parameters"]["max_records_per_user"] = report["mechanism"]["events"][0]["group_size"] = MOST - 1
    assert epsilon_bound(smaller, loaded.guarantees[0].delta) < 0.8 * 6
    _in_statement("unit of privacy", f"of which {MOST} at", f"of which {MOST - 1} at")(report)
    forged = trained.with_name("understated.report.json")
    forged.write_text(json.dumps(report))
    assert run(["verify", str(forged), "-q", "--data", str(folder / "mails.jsonl")]) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    assert f"holds {kept(folder, most=MOST - 1)} examples, and the report says {kept(folder)}" in stdout


def _in_statement(name: str, old: str, new: str) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        for guarantee in report["guarantees"]:
            for assumption in guarantee["assumptions"]:
                if assumption["name"] == name:
                    assert old in assumption["statement"]
                    assumption["statement"] = assumption["statement"].replace(old, new)

    return edit


def _removal(report: Any) -> None:
    report["guarantees"][0]["adjacency"] = "add-or-remove"


def _all_used(report: Any) -> None:
    report["parameters"]["shared_records"] = "all"
    _removal(report)


FORGERIES: dict[str, Callable[[Any], None]] = {
    "users may be removed": _removal,
    "all records used": _all_used,
    "no choice": lambda report: report["parameters"].pop("shared_records"),
    "an unknown choice": lambda report: report["parameters"].update(shared_records="best"),
    "nobody's records": lambda report: report["parameters"].update(unit=None),
    "any number of records": lambda report: report["parameters"].pop("max_records_per_user"),
    "another bound": _in_statement("unit of privacy", "of which 3 at most", "of which 30 at most"),
    "hidden names": _in_statement("unit of privacy", ", and which users each record names is public", ""),
    "another field": _in_statement("unit of privacy", "'people'", "'who'"),
    "a smaller group": lambda report: report["mechanism"]["events"][0].update(group_size=2),
}


@pytest.mark.forged("each is a lie about whom it protects, or against what")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(trained.read_text())
    FORGERIES[name](report)
    forged = trained.with_name("forged.report.json")
    forged.write_text(json.dumps(report))
    assert run(["verify", str(forged), "-q"]) == 1
    capsys.readouterr()


@pytest.mark.forged("parameters, ledger and guarantees state half of the noise")
def test_half_of_the_noise_is_refuted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, half_the_noise) == 1
    assert "REFUTED" in capsys.readouterr().out


def test_all_records_are_used_or_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = ("--epsilon", "6", "--shared-records", "all", "--max-records-per-user")
    assert run([*call(folder, "few", *bound, "3"), "-q"]) == 3
    assert "uses every record; raise --max-records-per-user" in capsys.readouterr().err
    assert not (folder / "few").exists()
    assert run([*call(folder, "every", *bound, "30"), "-q"]) == 0
    report = read_report(folder / "every.report.json")
    assert report.parameters["examples"] == MAILS
    guarantee = report.guarantees[0]
    assert guarantee.adjacency is Adjacency.ADD_OR_REMOVE
    unit = next(a.statement for a in guarantee.assumptions if a.name == "unit of privacy")
    assert unit == f"{UNIT} are one example; of neighbours neither has a user in more than 30, or it is refused"
    capsys.readouterr()


@pytest.mark.parametrize("budget", ["--noise-multiplier", pytest.param("--epsilon", marks=pytest.mark.slow)])
def test_a_plan_compares_bounds_and_choices(budget: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = (budget, "6", "--max-records-per-user", str(MOST), "--shared-records", "most")
    assert run([*call(folder, "planned", *bound), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    rows = {bound["most"]: bound for bound in plan["user_bounds"]}
    assert list(rows) == [2, 3, 4, 8, 16, 32]
    for most, row in rows.items():
        for rule in ("first", "greedy", "most"):
            assert row["records"][rule] == kept(folder, SharedRecords(rule), most)
        assert row["records"]["all"] == (MAILS if most == 32 else None)
    fixed, rising = ("epsilon", "amount") if budget == "--epsilon" else ("amount", "epsilon")
    assert {row[fixed] for row in rows.values()} == {6}
    found = [row[rising] for row in rows.values()]
    assert found == sorted(set(found))
    assert rows[MOST][rising] == plan[rising]
    assert any("takes to be public: choosing the bound by it costs nothing" in warning for warning in plan["warnings"])


@pytest.mark.slow
def test_a_plan_of_all_records_keeps_them_or_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = (*call(folder, "planned", "--noise-multiplier", "6", "--shared-records", "all"), "--dry-run")
    assert run([*planned, "--max-records-per-user", str(MOST)]) == 3
    assert run([*planned, "--max-records-per-user", "32"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "no guarantee covers a bound that was chosen by it" in stdout
    assert "all keeps" in stdout
    assert "refused" in stdout


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (("--shared-records", "greedy"), 2, "--shared-records needs --max-records-per-user"),
        (("--max-records-per-user", "3"), 3, "with --shared-records, and by nothing else"),
        ((), 3, "has a list as 'people'"),
    ],
)
def test_what_does_not_fit_is_refused(
    more: tuple[str, ...], code: int, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*call(folder, "refused", "--epsilon", "6", *more), "-q"]) == code
    assert sentence in capsys.readouterr().err


def test_a_group_of_records_is_not_what_a_user_has(trained: Path) -> None:
    """An audit of groups by the same field judges something else, so the gate does not take the guarantee for it."""
    loaded = load(trained, trained.read_bytes())
    assert not _protects(loaded, "people")
    assert _protects(loaded, None)


def test_another_choice_of_the_solver_is_not_refuted(trained: Path) -> None:
    report = read_report(trained)
    stated = report.parameters["examples"]

    def judged(found: int, possible: tuple[int, int] | None) -> Outcome:
        data = DataAtHand(name="mails.jsonl", examples=found, digests=(), possible=possible)
        return next(iter(check_data(report, data))).outcome

    assert judged(stated + 1, (stated - 1, stated + 1)) is Outcome.INCONCLUSIVE
    assert judged(stated - 2, (stated - 3, stated - 1)) is Outcome.REFUTED
    assert judged(stated + 1, None) is Outcome.REFUTED
