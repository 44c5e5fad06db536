"""Which computations are tested, and what is trained where a test asks for padding."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from privctl.models.tasks.corpus import CorpusTask
from privctl.train.contribution.findings import Dependence, DependentRecordsError
from privctl.train.contribution.probes import BatchLimits
from privctl.train.steps import contribution
from tests.train.preparation.test_job import job

CPU = torch.device("cpu")


@pytest.mark.parametrize(("bf16", "names"), [(False, ["float32"]), (True, ["float32", "bfloat16"])])
def test_gradients_are_tested_in_the_precision_they_are_computed_in(bf16: bool, names: list[str]) -> None:
    asked = job("dp-sgd", 1.0)
    asked = replace(asked, recipe=replace(asked.recipe, bf16=bf16))
    stages = contribution.gradient_stages(asked, nn.Linear(2, 2), CPU)
    assert [stage.name for stage in stages] == names
    assert [stage.reduced for stage in stages] == [False, True][: len(names)]
    assert contribution.gradient_stages(job("plain", 0.0), nn.Linear(2, 2), CPU) == []


def test_texts_are_padded_to_the_public_length_where_a_record_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[int | None] = []

    def examine(network: object, task: Any, *_: object) -> Any:
        examined.append(task.padding)
        if task.padding is None:
            raise DependentRecordsError(Dependence.PADDED_LENGTH, "it moved")
        return SimpleNamespace(promoted=(), promoted_share=0.0)

    unread: Any = None
    corpus = CorpusTask(corpus=unread, facts=unread)
    asked = replace(job("dp-sgd", 1.0), task=corpus, held_out=corpus)
    limits: dict[str, Any] = {"rows": 2, "tokens": 64, "classes": 0}
    monkeypatch.setattr(contribution, "examine", examine)
    monkeypatch.setattr(contribution, "limits_of", lambda _: BatchLimits(length=12, **limits))
    messages: list[str] = []
    found: Any = contribution._tested(asked, nn.Linear(2, 2), CPU, [], messages.append)
    assert (examined, found.task.padding, found.held_out.padding) == ([None, 12], 12, 12)
    assert "every text is padded to 12 tokens" in messages[0]
    monkeypatch.setattr(contribution, "limits_of", lambda _: BatchLimits(length=None, **limits))
    with pytest.raises(DependentRecordsError):
        contribution._tested(asked, nn.Linear(2, 2), CPU, [], messages.append)
