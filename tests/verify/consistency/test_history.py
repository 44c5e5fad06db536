"""What a training measured after each epoch is stated twice: an edit of either is refuted."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode, InputError
from privctl.reports.codec import decode
from privctl.reports.files import read_report
from tests.cli.public_files import mixed, prepared_publicly
from tests.cli.short_runs import texts
from verify.consistency.history import faults
from verify.run import read, verify
from verify.stated import method_of, training_of

Report = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two epochs with public and held-out records."""
    folder = prepared_publicly(tmp_path_factory.mktemp("history"))
    texts(folder / "held-out.jsonl", 8, "dog")
    held_out = ["--held-out", str(folder / "held-out.jsonl"), "--public-batch-size", "4"]
    assert run(mixed(folder, folder / "out", *held_out)) == 0
    return folder / "out.report.json"


def found(report: Report) -> list[str]:
    read = decode(json.dumps(report), "report")
    return list(faults(read, training_of(read), method_of(read)))


def leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*place, key))
    else:
        yield place, value


def others(value: Any) -> list[Any]:
    if value is None:
        return [1.0]
    if isinstance(value, str):
        return ["another", "held-out loss, nats" if value != "held-out loss, nats" else "held-out perplexity", "lower"]
    return [each for each in (value / 2, 2 * value, type(value)(0), -value, 1.02 * value) if each != value]


def test_every_edit_of_evidence_or_history_is_noticed(trained: Path) -> None:
    genuine = json.loads(trained.read_text())
    assert [item["quantity"] for item in genuine["evidence"]] == [
        "loss of public records, nats", "held-out loss, nats", "held-out perplexity",
    ]  # fmt: skip
    assert found(genuine) == []
    tried, missed = 0, []
    for table, name in ((genuine, "evidence"), (genuine["parameters"], "history")):
        for place, value in leaves(table[name]):
            for other in others(value):
                mutant = copy.deepcopy(genuine)
                entry = mutant if name == "evidence" else mutant["parameters"]
                for key in (name, *place[:-1]):
                    entry = entry[key]
                entry[place[-1]] = round(other) if isinstance(value, int) else other
                if entry[place[-1]] == value:
                    continue
                tried += 1
                try:
                    missed += [] if found(mutant) else [(name, *place, other)]
                except InputError:
                    continue  # it is not read at all
    assert missed == []
    assert tried > 100


def test_what_is_added_or_left_out_is_noticed(trained: Path) -> None:
    genuine = json.loads(trained.read_text())
    for index in range(3):
        for change in ("pop", "append"):
            mutant = copy.deepcopy(genuine)
            items = mutant["evidence"]
            items.pop(index) if change == "pop" else items.append(items[index])
            assert found(mutant), (index, change)
    for entry, value in (("training_loss", 0.1), ("words", 3.0)):
        mutant = copy.deepcopy(genuine)
        mutant["parameters"]["history"][0][entry] = value
        assert any("which no such training does" in fault for fault in found(mutant))
    for role in ("held-out", "public"):
        mutant = copy.deepcopy(genuine)
        mutant["inputs"] = [item for item in mutant["inputs"] if item["role"] != role]
        assert f"its history has measures of {role} records, and it names no {role} file among its inputs" in found(
            mutant
        )


def test_a_better_figure_does_not_pass_verify(trained: Path) -> None:
    assert verify(trained, read_report(trained)).exit_code is ExitCode.OK
    report = json.loads(trained.read_text())
    report["evidence"][1]["estimate"] /= 2
    forged = trained.with_name("forged.report.json")
    forged.write_text(json.dumps(report))
    result = verify(forged, read(forged))
    assert result.exit_code is ExitCode.REFUTED
    assert any("the estimate of evidence of 'held-out loss, nats' is" in each.reason for each in result.verdicts)
