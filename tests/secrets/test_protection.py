import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.domain.errors import InputError
from privctl.secrets.protection import Form, PlanFacts, Protection, read_protection, staged_protection
from privctl.storage.arrays import write_arrays

FACTS = PlanFacts(
    data="blake3:00",
    data_name="train.jsonl",
    examples=4,
    secrets="blake3:11",
    steps=100,
    batch_size=2.0,
    noise_multiplier=1.5,
    form=Form.REFERENCE,
    cap=5.0,
)


def plan(**changes: Any) -> Protection:
    protection = Protection(
        facts=FACTS,
        ids=("a", "b"),
        kinds=("word", "ä"),
        weights=np.array([1, 0.5, 0.5, 0]),
        probabilities=np.array([1, 0.5, 0.5, 0]),
        starts=np.array([0, 1, 3]),
        records=np.array([3, 0, 1]),
        priors=np.array([0.001, 0.01]),
        posteriors=np.array([0.1, 0.1]),
        budgets=np.array([0.3, 0.2]),
        information=np.array([0.1, 0.2]),
        posterior_bounds=np.array([0.05, 0.1]),
        curve_bounds=np.array([np.nan, 0.02]),
    )
    return dataclasses.replace(protection, **changes)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    with staged_protection(path, plan(), tmp_path / "plan.report.json") as pending:
        pending.commit()
    found = read_protection(path)
    assert found.facts == FACTS
    assert (found.ids, found.kinds) == (("a", "b"), ("word", "ä"))
    for field in dataclasses.fields(Protection):
        if isinstance(getattr(found, field.name), np.ndarray):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(plan(), field.name))
    assert found.of_secret(1).tolist() == [1, 0.5]
    assert found.largest_probability == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones(3)},
        {"probabilities": np.array([1, 0.5, 0.5, 1.01])},
        {"probabilities": np.array([1, 0.5, 0.5, np.nan])},
        {"probabilities": np.zeros(4)},
        {"starts": np.array([0, 3, 1])},
        {"starts": np.array([0, 1, 2])},
        {"records": np.array([3, 0, 4])},
        {"priors": np.array([0.1])},
        {"priors": np.array([0.001, 0])},
        {"posteriors": np.array([0.1, 0.01])},
        {"posteriors": np.array([0.1, 1])},
        {"budgets": np.array([0.3, np.inf])},
        {"information": np.array([0.1, -1])},
        {"ids": ("a",)},
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "plan.safetensors"
    with staged_protection(path, plan(**changes), tmp_path / "plan.report.json") as pending:
        pending.commit()
    with pytest.raises(InputError, match="contradicts itself"):
        read_protection(path)


def test_what_is_no_plan_is_told_as_that(tmp_path: Path) -> None:
    book = tmp_path / "book.jsonl"
    book.write_text('{"id": "email-1"}\n')
    with pytest.raises(
        InputError, match="is not a plan of protection; give the .safetensors file that privctl secrets"
    ):
        read_protection(book)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    write_arrays(path, {"weights": np.ones(3)}, {})
    with pytest.raises(InputError, match="does not hold a plan of protection"):
        read_protection(path)


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    with staged_protection(path, plan(), tmp_path / "plan.report.json") as pending:
        pending.commit()
    path.write_bytes(path.read_bytes().replace(b'\\"version\\": 1', b'\\"version\\": 2'))
    with pytest.raises(InputError, match="version is 2"):
        read_protection(path)
