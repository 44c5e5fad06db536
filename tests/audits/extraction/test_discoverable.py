from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from audits.extraction.discoverable import least_queries, log_queries, log_success
from audits.extraction.law import SamplingLaw, law_scores
from privctl.domain.errors import CommandError

TOY = torch.tensor([0.5, 0.3, 0.15, 0.05])


def drawn(law: SamplingLaw, logits: torch.Tensor) -> torch.Tensor:
    """The whole distribution, one target at a time."""
    targets = torch.arange(len(logits))
    return law_scores(logits.expand(len(logits), -1).clone(), targets, law).exp()


def test_known_numbers() -> None:
    assert least_queries(math.log(0.01), 0.5) == 69
    assert math.exp(log_queries(np.log(0.01), 0.5)) == pytest.approx(68.968, abs=1e-3)
    assert math.exp(log_success(np.log(0.01), 100)) == pytest.approx(0.633968, abs=1e-6)
    assert least_queries(-20, 0.5) == 336_290_887
    assert math.exp(log_success(np.array(-20), 100)) == pytest.approx(2.0612e-7, rel=1e-4)
    assert float(log_queries(np.array(-50), 0.5)) == pytest.approx(49.633487, abs=1e-6)


def test_nothing_underflows() -> None:
    logp = np.array([-1e4, -800.0, -40.0001, -39.9999])
    success = log_success(logp, 100)
    assert success == pytest.approx(logp + math.log(100), rel=1e-12)
    assert log_queries(logp, 0.5) == pytest.approx(math.log(math.log(2)) - logp, rel=1e-12)
    assert least_queries(-800, 0.5) is None
    assert np.exp(log_success(np.array([0.0, -np.inf]), 10)).tolist() == [1, 0]
    assert (least_queries(0, 0.9), least_queries(-math.inf, 0.9)) == (1, None)


@pytest.mark.parametrize("logp", [-1e-9, -0.1, math.log(0.5), -3.0, -12.0])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.75, 0.999])
def test_the_least_number_is_enough_and_one_less_is_not(logp: float, probability: float) -> None:
    n = least_queries(logp, probability)
    assert n is not None
    assert math.exp(log_success(np.array(logp), n)) >= probability - 1e-12
    assert n == 1 or math.exp(log_success(np.array(logp), n - 1)) < probability


def test_a_whole_number_of_queries_is_not_rounded_up() -> None:
    assert [least_queries(math.log(0.5), 1 - 0.5**n) for n in range(1, 30)] == list(range(1, 30))


def test_laws_of_the_toy() -> None:
    logits = TOY.log() + 3
    assert drawn(SamplingLaw(), logits) == pytest.approx(TOY, abs=1e-6)
    assert drawn(SamplingLaw(top_k=2), logits) == pytest.approx(torch.tensor([0.625, 0.375, 0, 0]), abs=1e-6)
    squared = torch.tensor([0.684932, 0.246575, 0.061644, 0.006849])
    assert drawn(SamplingLaw(temperature=0.5), logits) == pytest.approx(squared, abs=1e-6)
    assert drawn(SamplingLaw(top_p=0.5), logits).tolist() == [1, 0, 0, 0]
    assert drawn(SamplingLaw(top_p=0.6), logits) == pytest.approx(torch.tensor([0.625, 0.375, 0, 0]), abs=1e-6)


@pytest.mark.parametrize(
    "law",
    [
        SamplingLaw(temperature=0.7),
        SamplingLaw(top_k=5),
        SamplingLaw(top_p=0.8),
        SamplingLaw(top_p=1e-6),
        SamplingLaw(top_k=500),
        SamplingLaw(temperature=1.3, top_k=20, top_p=0.6),
    ],
)
def test_laws_are_those_of_transformers(law: SamplingLaw) -> None:
    logits = 3 * torch.randn(40, 50, generator=torch.manual_seed(0))
    targets = torch.randint(50, (40,), generator=torch.manual_seed(1))
    targets[:20] = logits[:20].argmax(dim=1)
    warped = TemperatureLogitsWarper(law.temperature)(None, logits)
    warped = warped if law.top_k is None else TopKLogitsWarper(law.top_k)(None, warped)
    warped = warped if law.top_p is None else TopPLogitsWarper(law.top_p)(None, warped)
    expected = warped.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    assert law_scores(logits, targets, law) == pytest.approx(expected, abs=1e-5)


def test_equal_logits_at_the_cut_stay_in() -> None:
    assert drawn(SamplingLaw(top_k=2), torch.zeros(4)) == pytest.approx(torch.full((4,), 0.25))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"temperature": 0}, "--temperature is 0"),
        ({"temperature": 1e-320}, "--temperature is 9.99989e-321"),
        ({"top_k": 0}, "--top-k is 0"),
        ({"top_p": 1.5}, "--top-p is 1.5"),
    ],
)
def test_impossible_laws_are_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        SamplingLaw(**settings)
