"""``retrain dp-sgd --records-per-draw``: what a step uses of a user, trained, resumed, verified, forged and refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.events import Ledger, SampledGaussian
from privctl.reports.files import read_report
from privctl.train.clipping import ClippedBatch, PerExample
from tests.cli.short_runs import dp_sgd, half_the_noise, prepared, verified_after
from tests.few import few

#: Records of each of eight users.
HAS = [1, 2, 3, 4, 5, 6, 1, 2]
MOST, STEPS = 3, 6
OPTIONS = ["--batch-size", "4", "--steps", str(STEPS), "--device", "cpu", "--unit", "who"]
SEVERAL = ["--records-per-draw", str(MOST)]


def records(path: Path) -> None:
    lines = [
        json.dumps({"text": f"the {('cat', 'dog')[(i + who) % 2]} sat on the mat", "who": who})
        for who in range(len(HAS))
        for i in range(HAS[who])
    ]
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("drawn"), 1)
    records(folder / "train.jsonl")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[Path, list[tuple[int, int]]]:
    """The report, and how many users and records of each the engine clipped together, pass by pass."""
    seen: list[tuple[int, int]] = []
    real = PerExample.accumulate

    def watched(self: PerExample, losses_of: Any, **named: Any) -> ClippedBatch:
        found = real(self, losses_of, **named)
        seen.append((len(found.norms), named.get("run", 1)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PerExample, "accumulate", watched)
        assert run([*dp_sgd(folder, folder / "out", *OPTIONS, *SEVERAL), "--noise-multiplier", "1", "-q"]) == 0
    return folder / "out.report.json", seen


def test_users_are_protected_and_several_records_of_each_are_used(
    trained: tuple[Path, list[tuple[int, int]]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, records_drawn = trained
    report = read_report(path)
    assert report.mechanism == Ledger(
        events=(SampledGaussian(noise_multiplier=1, sample_rate=4 / len(HAS), steps=STEPS),)
    )
    assert (report.parameters["examples"], report.parameters["records_per_draw"]) == (len(HAS), MOST)
    unit = next(a.statement for a in report.guarantees[0].assumptions if a.name == "unit of privacy")
    assert unit == (
        "all records with one value of 'who' are one example, and of up to 3 that a step draws the mean gradient is "
        "clipped"
    )
    assert {each for _, each in records_drawn} == {1, 2, 3}
    assert run(["verify", str(path), "-q", "--data", str(folder / "train.jsonl")]) == 0
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", few([["--clipping-passes", "2"], ["--target-unclipped-quantile", "0.5", "--micro-examples", "2"]], 1)
)
def test_it_goes_with_other_ways_to_clip(
    more: Sequence[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*dp_sgd(folder, tmp_path / "a", *OPTIONS, *SEVERAL), "--noise-multiplier", "1", "-q", *more]
    assert run(call) == 0
    assert run(["verify", str(tmp_path / "a.report.json"), "-q"]) == 0
    capsys.readouterr()


def _in_statement(report: Any, old: str, new: str) -> None:
    for assumption in report["guarantees"][0]["assumptions"]:
        if assumption["name"] == "unit of privacy":
            assert old in assumption["statement"]
            assumption["statement"] = assumption["statement"].replace(old, new)


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "no number of records": lambda report: report["parameters"].pop("records_per_draw"),
    "another number": lambda report: report["parameters"].update(records_per_draw=4),
    "one record": lambda report: report["parameters"].update(records_per_draw=1),
    "nobody's records": lambda report: report["parameters"].update(unit=None),
    "each clipped by itself": lambda report: report["parameters"].update(max_records_per_user=3),
    "another statement": lambda report: _in_statement(report, "up to 3", "up to 30"),
    "half of the noise": half_the_noise,
    "not the mean": lambda report: _in_statement(report, "the mean gradient", "the sum of gradients"),
}


@pytest.mark.forged("each is a lie about what is clipped together")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(
    trained: tuple[Path, list[tuple[int, int]]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified_after(trained[0], FORGERIES[name]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--unit", "who", "--max-records-per-user", "3"], "clips every record by itself; remove one"),
        ([], "--records-per-draw needs --unit"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    options: list[str], sentence: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*dp_sgd(folder, tmp_path / "a", *OPTIONS[:-2], *SEVERAL, *options), "--epsilon", "8", "-q"]
    assert run(call) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
