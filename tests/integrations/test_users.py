"""Users of a loop of one's own: drawn as users, their records clipped together, and said so in the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import privctl
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport
from privctl.integrations.users import users_of
from privctl.reports.files import write_report
from tests.integrations.loops import EXAMPLES, Loop

#: One user with most of the records, and five with two each.
HEAVY = ["heavy"] * 50 + [f"light {row // 2}" for row in range(10)]
CLIP, RATE = 0.3, 0.1
TOGETHER = 8


def all_drawn(per_draw: int) -> Loop:
    """A loop in which every step draws all six users, with next to no noise."""
    return Loop(noise_multiplier=1e-9, clip_norm=CLIP, batch=6, users=HEAVY, records_per_draw=per_draw)


def moved(loop: Loop, tampered: Callable[[Loop], None] = lambda _: None) -> float:
    """How far one step moves the sum of clipped gradients where all losses are of the heavy user's records."""
    before = torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()]).clone()
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)
    heavy = (inputs[:, None] == loop.data.tensors[0][:50][None]).all(-1).any(1)
    tampered(loop)
    loop.private.backward(lambda: loop.losses(inputs, labels)() * heavy)
    loop.optimizer.step()
    after = torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()])
    return float((after - before).norm()) * 6 / RATE


def clip_each_record(loop: Loop) -> None:
    loop.private._users = replace(loop.private._users, per_draw=1)


def test_a_user_with_many_records_adds_one_clip_norm_at_most() -> None:
    assert moved(all_drawn(1)) <= CLIP * (1 + 1e-6)
    assert moved(all_drawn(TOGETHER)) == pytest.approx(CLIP, rel=0.01)
    # Records that are clipped by themselves add up to more, which the same measure sees.
    assert moved(all_drawn(TOGETHER), clip_each_record) > 2 * CLIP


def test_what_a_user_adds_is_the_clipped_mean_of_the_gradients_of_records() -> None:
    loop = all_drawn(3)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)
    wanted = [torch.zeros_like(parameter) for parameter in before]
    for start in range(0, 18, 3):
        loss = F.cross_entropy(loop.model(inputs[start : start + 3]), labels[start : start + 3])
        gradients = torch.autograd.grad(loss, list(loop.model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for total, gradient in zip(wanted, gradients, strict=True):
            total += gradient * min(1, CLIP / norm)
    found = loop.private.backward(loop.losses(inputs, labels))
    assert found.losses.shape == (6,)
    loop.optimizer.step()
    for old, new, total in zip(before, loop.model.parameters(), wanted, strict=True):
        assert torch.allclose(old - new, RATE * total / 6, rtol=2e-3, atol=1e-6)


def test_each_drawn_user_has_as_many_records_which_differ_while_there_are_others() -> None:
    users = users_of(["a"] * 9 + ["b", "c", "c"], 12, "user", 4)
    rows_of_user: Counter[int] = Counter()
    for step in range(50):
        rows = users.records_of([0, 1, 2], step)
        assert [len(rows), len(set(rows[:4])), set(rows[4:8])] == [12, 4, {9}]
        assert Counter(rows[8:]) == {10: 2, 11: 2}
        rows_of_user.update(rows[:4])
    # 200 draws of 9 records: 22.2 each, five standard deviations of 3.5 either way
    assert all(abs(rows_of_user[row] - 200 / 9) < 18 for row in range(9))
    assert users.records_of([2], 7) == users.records_of([0, 1, 2], 7)[8:]


def test_steps_draw_users_and_the_report_says_so(tmp_path: Path) -> None:
    names = [row % 20 for row in range(EXAMPLES)]
    loop = Loop(batch=4, users=np.array(names), unit="patient", records_per_draw=2)
    drawn = []
    for inputs, labels in loop.private.loader:
        drawn.append(len(labels))
        loop.private.backward(loop.losses(inputs, labels))
        loop.optimizer.step()
    assert loop.private.steps_begun == 5
    assert not any(size % 2 for size in drawn)
    path = loop.save(tmp_path / "model.safetensors")
    report = loop.private.report(path)
    assert isinstance(report.mechanism, Ledger)
    assert report.mechanism.events == (SampledGaussian(noise_multiplier=1.0, sample_rate=0.2, steps=5),)
    stated = {name: report.parameters[name] for name in ("unit", "examples", "records", "records_per_draw")}
    assert stated == {"unit": "patient", "examples": 20, "records": EXAMPLES, "records_per_draw": 2}
    assert report.guarantees[0].delta == pytest.approx(min(1e-5, 20**-1.1))
    assert privctl.verify(path).exit_code is ExitCode.OK


def test_names_that_are_spelled_alike_are_told(tmp_path: Path) -> None:
    loop = Loop(batch=2, users=[("Ann", "ann", "bob")[row % 3] for row in range(EXAMPLES)])
    loop.train()
    path = loop.save(tmp_path / "model.safetensors")
    report = loop.private.report(path)
    assert "names of users" in {assumption.name for assumption in report.guarantees[0].assumptions}
    assert any("differ from another's only in case" in line for line in report.warnings)
    assert privctl.verify(path).exit_code is ExitCode.OK


def _with_unit(guarantee: Guarantee, statement: str) -> tuple[Guarantee, ...]:
    changed = tuple(
        replace(assumption, statement=statement) if assumption.name == "unit of privacy" else assumption
        for assumption in guarantee.assumptions
    )
    return (replace(guarantee, assumptions=changed),)


FORGED: dict[str, tuple[Callable[[PrivacyReport], PrivacyReport], str]] = {
    "whom": (
        lambda r: replace(
            r, guarantees=_with_unit(r.guarantees[0], "all records with one value of 'clinic' are one example")
        ),
        "by its parameters all records with one value of 'user' are one example",
    ),
    "no users": (
        lambda r: replace(r, parameters={**r.parameters, "unit": None}),
        "do not say all that a loop of privctl's own steps says",
    ),
    "records": (lambda r: replace(r, parameters={**r.parameters, "records": 3}), "fewer than one each"),
    "names": (lambda r: replace(r, parameters={**r.parameters, "similar_names": 2}), "'names of users'"),
    "together": (
        lambda r: replace(r, parameters={**r.parameters, "records_per_draw": 1}),
        "would not be clipped together",
    ),
}


@pytest.mark.forged("what a report says of its users is changed")
@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_names_others_does_not_verify(name: str, tmp_path: Path) -> None:
    loop = Loop(batch=2, users=[row % 6 for row in range(EXAMPLES)])
    loop.train()
    path = loop.save(tmp_path / "model.safetensors")
    forge, says = FORGED[name]
    write_report(tmp_path / "model.report.json", forge(loop.private.report(path)))
    found = privctl.verify(path)
    assert found.exit_code is not ExitCode.OK
    assert any(says in v.reason for v in found.verdicts), [v.reason for v in found.verdicts]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"users": ["a"] * 59}, CommandError, "users is 59 names, and there are 60 records"),
        ({"users": "a" * EXAMPLES}, CommandError, "users is one string"),
        ({"users": ["a"] * 59 + [None]}, InputError, r"users\[59\] is None"),
        ({"users": ["a"] * 59 + [" "]}, InputError, r"users\[59\]"),
        ({"users": ["a"] * 59 + [0.5]}, InputError, r"users\[59\] is 0.5"),
        ({"users": ["a"] * EXAMPLES}, CommandError, "there are 1 values of 'user'"),
        ({"users": list(range(EXAMPLES)), "unit": ""}, CommandError, "unit is ''"),
        ({"users": list(range(EXAMPLES)), "records_per_draw": 0}, CommandError, "records_per_draw is 0"),
        ({"records_per_draw": 2}, CommandError, "give users too"),
    ],
)
def test_users_that_do_not_fit_are_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Loop(**options)


def test_a_batch_of_users_is_neither_cut_nor_extended() -> None:
    loop = all_drawn(2)
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)
    with pytest.raises(CommandError, match="12 rows were drawn and 10 losses came back"):
        loop.private.backward(loop.losses(inputs[:10], labels[:10]))


def test_as_many_passes_as_epsilon_was_for_can_be_made() -> None:
    """Also where a pass is no whole number of batches: 60 examples in batches of 7 are 9 steps a pass."""
    loop = Loop(noise_multiplier=None, batch=7, epsilon=5.0, epochs=3)
    loop.train(epochs=3)
    assert loop.private.steps_begun == 27
    assert loop.private.guarantee().epsilon == pytest.approx(5.0, rel=1e-3)
