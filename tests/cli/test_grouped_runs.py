"""``retrain dp-sgd --max-records-per-user``: trained, verified, forged, and refused where it does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.data.bounded import bounded
from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.domain.events import Batches, GroupGaussian, LaplaceNoise, Ledger, SampledGaussian
from privctl.domain.groups import of_group
from privctl.domain.guarantee import AssumptionState
from privctl.reports.files import read_report
from tests.few import few
from tests.models.tasks.small import architecture, words

#: Records of each of ten users, of whom one has more than three.
HAS = [1, 2, 3, 1, 2, 3, 1, 2, 3, 9]
MOST, KEPT, STEPS = 3, 21, 6
OPTIONS = ["--batch-size", "3", "--steps", str(STEPS), "--micro-tokens", "160", "--device", "cpu", "--unit", "who"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouped")
    architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder / "start")
    owners = [who for turn in range(max(HAS)) for who, count in enumerate(HAS) if turn < count]
    lines = [
        json.dumps({"text": f"the cat sat on the {('mat', 'dog')[i % 2]}", "who": w}) for i, w in enumerate(owners)
    ]
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder


def call(start: Path, output: Path, *more: str) -> list[str]:
    data = str(start / "train.jsonl")
    return ["retrain", "dp-sgd", str(start / "start"), "--data", data, "-o", str(output), *OPTIONS, *more]


@pytest.fixture(scope="module")
def trained(start: Path) -> Path:
    assert run([*call(start, start / "out", "--epsilon", "6", "--max-records-per-user", str(MOST)), "-q"]) == 0
    return start / "out.report.json"


def test_the_first_records_of_each_user_are_kept_whoever_else_is_there() -> None:
    records = [TextRecord(stretch=Stretch("a"), text=f"{i}", unit=who) for i, who in enumerate("abacabad")]
    kept = [record.text for record in bounded(records, 2)]
    assert kept == ["0", "1", "2", "3", "5", "7"]
    assert all(record.unit is None for record in bounded(records, 2))
    without = [record for record in records if record.unit != "a"]
    assert {record.text for record in bounded(without, 2)} == set(kept) - {"0", "2"}


def test_a_run_protects_users_and_is_verified(trained: Path, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = read_report(trained)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, GroupGaussian)
    assert (event.group_size, event.sample_rate, event.steps) == (MOST, 3 / KEPT, STEPS)
    assert (report.parameters["examples"], report.parameters["max_records_per_user"]) == (KEPT, MOST)
    guarantee = report.guarantees[0]
    assert guarantee.epsilon is not None
    assert 5.9 < guarantee.epsilon <= 6
    # More noise than one record needs, less than for three that always come together.
    by_itself = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=STEPS)
    together = SampledGaussian(noise_multiplier=event.noise_multiplier / MOST, sample_rate=3 / KEPT, steps=STEPS)
    bounds = [epsilon_bound(Ledger(events=(e,)), guarantee.delta) for e in (by_itself, together)]
    assert bounds[0] < 0.6 * guarantee.epsilon < guarantee.epsilon < 0.6 * bounds[1]
    unit = next(a.statement for a in guarantee.assumptions if a.name == "unit of privacy")
    assert unit == "all records with one value of 'who', of which 3 at most are used, are one example"
    assert run(["verify", str(trained), "-q", "--data", str(start / "train.jsonl")]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_the_price_beside_clipping_all_of_a_user_as_one_is_told(
    start: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*call(start, tmp_path / "a", "--epsilon", "6", "--max-records-per-user", "3"), "--dry-run"]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    stated = re.search(r"epsilon ([\d.]+) takes a noise multiplier of ([\d.]+); .* takes ([\d.]+) at", printed)
    assert stated is not None
    epsilon, noise, alone = map(float, stated.groups())
    report = read_report(trained)
    assert epsilon == pytest.approx(6, rel=0.02)
    assert noise == pytest.approx(report.parameters["noise_multiplier"], rel=1e-3)
    one = SampledGaussian(noise_multiplier=alone, sample_rate=3 / KEPT, steps=STEPS)
    assert epsilon_bound(Ledger(events=(one,)), report.guarantees[0].delta) == pytest.approx(epsilon, rel=0.02)


def _half_the_noise(report: Any) -> None:
    for holder in (report["parameters"], report["mechanism"]["events"][0]):
        holder["noise_multiplier"] /= 2
    for guarantee in report["guarantees"]:
        guarantee["noise_multiplier"] /= 2


def _of_one_record(report: Any) -> None:
    event = report["mechanism"]["events"][0]
    event["type"] = "sampled-gaussian"
    event["batches"] = "poisson"
    del event["group_size"]


def _smaller_group(report: Any) -> None:
    report["mechanism"]["events"][0]["group_size"] = 2


def _another_kind(report: Any) -> None:
    _of_one_record(report)
    event = report["mechanism"]["events"][0]
    del event["batches"]
    event["type"] = "laplace"
    event["scale"] = event.pop("noise_multiplier")
    del report["parameters"]["max_records_per_user"]


def _in_statement(name: str, old: str, new: str) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        for guarantee in report["guarantees"]:
            for assumption in guarantee["assumptions"]:
                if assumption["name"] == name:
                    assert old in assumption["statement"]
                    assumption["statement"] = assumption["statement"].replace(old, new)

    return edit


def _bands_of_one(report: Any) -> None:
    """A ledger that knows nothing of groups, and costs a third."""
    _of_one_record(report)
    event = report["mechanism"]["events"][0]
    del event["batches"]
    event |= {"type": "banded-gaussian", "coefficients": [1.0]}
    report["parameters"] |= {"coefficients": [1.0], "batches": "cyclic-poisson"}


FORGERIES: dict[str, Callable[[Any], None]] = {
    "half of the noise": _half_the_noise,
    "steps for one record": _of_one_record,
    "a smaller group": _smaller_group,
    "no number of records": lambda report: report["parameters"].pop("max_records_per_user"),
    "nobody's records": lambda report: report["parameters"].update(unit=None),
    "another kind of step": _another_kind,
    "correlated noise beside": _bands_of_one,
    "a clip norm that changes": lambda report: report["parameters"].update(target_unclipped_quantile=0.5),
    "users with more records": _in_statement("unit of privacy", "which 3 at most", "which 30 at most"),
    "users with any number of records": _in_statement("unit of privacy", ", of which 3 at most are used,", ""),
    "users by another field": _in_statement("unit of privacy", "'who'", "'family'"),
    "another field in the parameters": lambda report: report["parameters"].update(unit="family"),
    "more examples": _in_statement("number of examples", "are 21", "are 2100"),
}


@pytest.mark.forged("each is a lie about the noise or about whom it protects")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(trained.read_text())
    FORGERIES[name](report)
    report_path = trained.with_name("forged.report.json")
    report_path.write_text(json.dumps(report))
    assert run(["verify", str(report_path), "-q"]) == 1
    capsys.readouterr()


@pytest.fixture(scope="module")
def spelled(start: Path) -> Path:
    """A run whose users 0 and 1 are called Ann and ann."""
    data = start / "spelled.jsonl"
    records = [json.loads(line) for line in (start / "train.jsonl").read_text().splitlines()]
    for record in records:
        record["who"] = {0: "Ann", 1: "ann"}.get(record["who"], f"user {record['who']}")
    data.write_text("\n".join(map(json.dumps, records)))
    options = [*OPTIONS, "--noise-multiplier", "1", "-q"]
    model, output = str(start / "start"), str(start / "alike")
    assert run(["retrain", "dp-sgd", model, "--data", str(data), "-o", output, *options]) == 0
    return start / "alike.report.json"


def test_users_spelled_alike_are_told_and_assumed(spelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, data = read_report(spelled), str(spelled.with_name("spelled.jsonl"))
    assert (report.parameters["examples"], report.parameters["similar_names"]) == (10, 2)
    assert any("say so by fold(who) in place of who" in warning for warning in report.warnings)
    guarantee = report.guarantees[0]
    (names,) = (a for a in guarantee.assumptions if a.name == "names of users")
    assert names.state is AssumptionState.ASSERTED
    assert names.statement.startswith("2 names in 'who' that differ from another's only in case")
    assert run(["verify", str(spelled), "-q", "--data", data]) == 0
    folded = [*OPTIONS[:-1], "fold(who)", "--noise-multiplier", "1", "-q"]
    model, output = str(spelled.with_name("start")), spelled.with_name("one")
    assert run(["retrain", "dp-sgd", model, "--data", data, "-o", str(output), *folded]) == 0
    one = read_report(spelled.with_name("one.report.json"))
    assert (one.parameters["examples"], one.parameters["similar_names"]) == (9, 0)
    assert "names of users" not in {a.name for a in one.guarantees[0].assumptions}
    assert run(["verify", str(spelled.with_name("one.report.json")), "-q", "--data", data]) == 0
    capsys.readouterr()


def _without_assumption(report: Any) -> None:
    for guarantee in report["guarantees"]:
        guarantee["assumptions"] = [a for a in guarantee["assumptions"] if a["name"] != "names of users"]


def _no_names(report: Any, number: int | None) -> None:
    _without_assumption(report)
    report["parameters"]["similar_names"] = number
    if number is None:
        del report["parameters"]["similar_names"]


def _enforced(report: Any) -> None:
    for assumption in report["guarantees"][0]["assumptions"]:
        if assumption["name"] == "names of users":
            assumption["state"] = "enforced"


@pytest.mark.forged("users who may be the same are hidden")
@pytest.mark.parametrize(
    ("edit", "code", "with_data"),
    [
        (_without_assumption, 1, 1),
        (_enforced, 1, 1),
        (_in_statement("names of users", "2 names", "0 names"), 1, 1),
        (lambda report: report["parameters"].update(similar_names=1), 1, 1),
        (
            lambda report: _no_names(report, 0),
            1,
            1,
        ),  # consistent with itself: only the data show it, which are available
        (lambda report: _no_names(report, None), 0, 3),  # as older versions wrote
    ],
)
def test_hidden_spellings_are_found(
    spelled: Path, edit: Callable[[Any], None], code: int, with_data: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(spelled.read_text())
    edit(report)
    report_path = spelled.with_name("forged.report.json")
    report_path.write_text(json.dumps(report))
    assert run(["verify", str(report_path), "-q"]) == code
    assert run(["verify", str(report_path), "-q", "--data", str(spelled.with_name("spelled.jsonl"))]) == with_data
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--bands", "2"), "remove it, or --bands"),
        (("--batches", "balls-and-bins"), "remove it, or --batches balls-and-bins"),
        (("--target-unclipped-quantile", "0.5"), "remove it, or --target-unclipped-quantile"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    more: tuple[str, ...], sentence: str, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--epsilon", "6", "--max-records-per-user", "3", *more)
    assert run([*call(start, tmp_path / "a", *asked), "-q"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("more", "sampled"), few([((), "examples"), (("--max-records-per-user", "3"), "records")], 1))
def test_a_plan_says_whether_users_or_records_are_counted(
    more: tuple[str, ...], sampled: str, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*call(start, tmp_path / "a", "--epsilon", "6", "--dry-run", *more), "-q"]) == 0
    rows = {line[:20].strip(): line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows[sampled] == str(KEPT if more else len(HAS))
    assert f"{sampled} per step" in rows
    assert ("one example" in rows) is not bool(more)


def test_without_a_field_of_users_it_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [a for a in call(start, tmp_path / "a", "--epsilon", "6", "--max-records-per-user", "3") if a != "--unit"]
    asked.remove("who")
    assert run([*asked, "-q"]) == 2
    assert "--max-records-per-user needs --unit" in capsys.readouterr().err


def test_a_guarantee_for_one_example_is_told_for_several(
    trained: Path,
    start: Path,
    tmp_path: Path,
    write_model: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two users of three records are six records."""
    report = read_report(trained)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, GroupGaussian)
    wanted = epsilon_bound(Ledger(events=(replace(event, group_size=6),)), report.guarantees[0].delta)
    model = str(start / "out")
    assert run(["inspect", model, "--group-size", "2", "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert f"2 examples added or removed together: epsilon {wanted:.6g}"[:-2] in stdout
    assert run(["inspect", model, "--group-size", "2", "--json", "-q"]) == 0
    group = json.loads(capsys.readouterr().out)["parameters"]["group"]
    assert group["epsilon"] == pytest.approx(wanted)
    assert group["epsilon_of_one"] == report.guarantees[0].epsilon
    bare = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)})
    assert run(["inspect", str(bare), "--group-size", "2", "-q"]) == 2
    assert (
        "needs a report with its ledger and a proved or conditional guarantee for one example"
        in capsys.readouterr().err
    )


def test_groups_are_of_gaussian_steps_on_poisson_batches() -> None:
    plain = SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=5)
    group = GroupGaussian(noise_multiplier=2, sample_rate=0.1, steps=5, group_size=4)
    assert of_group(Ledger(events=(plain,)), 4) == Ledger(events=(group,))
    assert of_group(Ledger(events=(group,)), 2) == Ledger(events=(replace(group, group_size=8),))
    for other in (LaplaceNoise(scale=3), replace(plain, batches=Batches.SHUFFLED)):
        with pytest.raises(ValueError, match="for groups no bound is derived here on"):
            of_group(Ledger(events=(plain, other)), 4)
