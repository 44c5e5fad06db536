"""Signs of differences are looked at while a run goes on, few of them, and nothing else notices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import RunInterruptedError
from privctl.train.directional import Derivatives
from privctl.train.methods.ferret import compare
from privctl.train.methods.ferret.amounts import DerivativeStats, PrivateExamples
from privctl.train.methods.ferret.compare import EXAMPLES, SIGNS, ComparisonCount, SignComparison
from privctl.train.methods.ferret.trainer import FerretTrainer
from privctl.train.settings.choices import DerivativeMethod
from privctl.train.state.run_folder import RunFolder
from tests.train.methods.ferret.support import BATCH, Points, rows, stopping, trainer, weights


def compared(method: str = "difference", steps: int = 40, *, look: bool = True, **changes: Any) -> FerretTrainer:
    training = trainer(steps, chance=changes.pop("chance", 0.3), **changes)
    assert isinstance(training.source, PrivateExamples)
    training.source.engine = engine = Derivatives(training.network, method)
    training.source.compare = SignComparison(derivatives=engine, per_example=False) if look else None
    return training


def looked(training: FerretTrainer) -> ComparisonCount:
    assert isinstance(training.source, PrivateExamples)
    return training.source.statistics.compared


def test_some_signs_are_compared_and_then_no_more() -> None:
    training, without = compared(task=Points(rows())), compared(task=Points(rows()), look=False)
    outcome, expected = training.run(), without.run()
    found = looked(training)
    assert (found.tried, found.agreement.count) == (SIGNS, SIGNS)
    assert found.agreement.share_above == 1.0
    assert found.agreement.above > 0
    # Nothing that is published or trained knows of it.
    assert torch.equal(outcome.amounts, expected.amounts)
    assert torch.equal(weights(training), weights(without))
    assert isinstance(training.source, PrivateExamples)
    assert isinstance(without.source, PrivateExamples)
    more = training.source.task.passes - without.source.task.passes  # type: ignore[attr-defined]
    assert more == 6 * SIGNS  # two for the difference, one with a backward pass, three for the noise


def test_only_few_examples_and_few_groups_a_step_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    counts: list[int] = []

    class Few(Points):
        def batch(self, examples: Any, device: torch.device, step: int) -> dict[str, Tensor]:
            asked.append(len(examples))
            return super().batch(examples, device, step)

    right = compare.agreement

    def noted(*args: Any) -> Any:
        counts.append(len(args[2]))
        return right(*args)

    monkeypatch.setattr(compare, "agreement", noted)
    training = compared(steps=4, chance=1.0, task=Few(rows()))
    training.run()
    assert counts == [1] * SIGNS
    assert asked == [BATCH, EXAMPLES] * 3 + [BATCH]


@pytest.mark.parametrize("method", [DerivativeMethod.PARTIAL, DerivativeMethod.BACKWARD])
def test_exact_derivatives_are_compared_with_nothing(method: DerivativeMethod) -> None:
    training = compared(method)
    training.run()
    assert looked(training) == ComparisonCount()


def test_dropout_falls_as_it_would_have() -> None:
    class Dropping(Points):
        def losses(self, network: nn.Module, batch: Any) -> Tensor:
            return nn.functional.dropout(super().losses(network, batch), 0.5)

    found = []
    for look in (True, False):
        torch.manual_seed(5)
        training = compared(task=Dropping(rows()), look=look)
        training.run()
        found.append((weights(training), torch.get_rng_state()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_wrong_signs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Derivatives.batch

    def wrong(self: Derivatives, *asked: Any) -> Tensor:
        found = right(self, *asked)
        return -found if self.method is DerivativeMethod.DIFFERENCE else found

    monkeypatch.setattr(Derivatives, "batch", wrong)
    training = compared()
    training.run()
    assert looked(training).agreement.share_above == 0


class Forwards(torch.autograd.Function):
    """An operation that nobody differentiates."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("no backward pass here")


def test_where_there_is_no_backward_pass_the_run_goes_on() -> None:
    class OneWay(Points):
        def losses(self, network: nn.Module, batch: Any) -> Tensor:
            found: Tensor = Forwards.apply(nn.functional.dropout(super().losses(network, batch), 0.5))
            return found

    found = []
    for look in (True, False):
        torch.manual_seed(5)
        training = compared(task=OneWay(rows()), look=look)
        training.run()
        found.append((weights(training), torch.get_rng_state()))
        assert looked(training) == (ComparisonCount(tried=SIGNS) if look else ComparisonCount())
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_what_is_no_number_counts_for_nothing_and_is_not_tried_for_ever() -> None:
    spoiled = rows()
    spoiled[:] = math.nan
    training = compared(task=Points(spoiled))
    training.run()
    assert looked(training).tried == SIGNS
    assert looked(training).agreement.count == 0


def test_it_is_remembered_over_an_interruption(tmp_path: Path) -> None:
    whole = compared(chance=0.05, steps=60)
    whole.run()
    with RunFolder.begin(tmp_path / "run", {}) as folder, pytest.raises(RunInterruptedError):
        compared(chance=0.05, steps=60, folder=folder).run(stop=stopping(7))
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    before = DerivativeStats.restored(saved.tensors).compared
    assert 0 < before.tried < SIGNS
    rest = compared(chance=0.05, steps=60, folder=folder)
    with folder:
        rest.run(saved)
    assert looked(rest) == looked(whole)
    assert torch.equal(weights(rest), weights(whole))
