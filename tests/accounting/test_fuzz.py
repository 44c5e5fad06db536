"""Random ledgers beside dp-accounting, Renyi DP, mpmath and verify; and the cases where a peer is known to be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath
import pytest

from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.renyi import renyi
from privctl.domain.events import Ledger, RandomizedResponse, SampledGaussian
from tests.accounting.ledgers import Case, cases, judge
from tests.few import few
from verify.recompute.ledger import epsilon_of

pytestmark = pytest.mark.filterwarnings("ignore")

#: How far above dp-accounting's own bound ours may be, relatively: what our grid may add.
_GRID = 5e-5


def check(count: int, seed: int) -> None:
    judged = [judge(case) for case in cases(count, seed)]
    assert [(found.case, found.faults) for found in judged if found.faults] == []
    assert [(found.case, found.looser) for found in judged if found.looser > _GRID] == []
    assert sum(found.width > 0.01 for found in judged) <= 0.15 * count


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_random_ledgers_are_enclosed(count: int) -> None:
    check(count, 7)


@pytest.mark.slow
def test_five_hundred_ledgers() -> None:
    check(500, 16)


@pytest.mark.parametrize("factor", [0.99, pytest.param(1.01, marks=pytest.mark.slow)])
def test_a_number_that_is_one_percent_off_is_noticed(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A bound too low, and a floor too high."""
    name = "epsilon_bound" if factor < 1 else "epsilon_floor"
    right = epsilon_bound if factor < 1 else epsilon_floor
    monkeypatch.setattr(f"tests.accounting.ledgers.{name}", lambda book, delta: factor * right(book, delta))
    case = Case(kind="once", events=(SampledGaussian(noise_multiplier=1.0, sample_rate=1e-3),), delta=1e-5)
    (fault,) = {text.split(" ")[0] for text in judge(case).faults}
    assert fault == ("bound" if factor < 1 else "floor")


KNOWN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "peers.json").read_text(encoding="utf-8"))
_TYPES = {"sampled-gaussian": SampledGaussian, "randomized-response": RandomizedResponse}


@pytest.mark.parametrize("known", few(KNOWN, 1, 3), ids=lambda known: str(known["fault"])[:30])
def test_where_a_peer_is_wrong_ours_is_not(known: dict[str, Any]) -> None:
    facts = dict(known["mechanism"])
    event = _TYPES[facts.pop("type")](**facts)
    low, high = known["certified"]
    assert not low <= known["printed"] <= high
    if "order" in known:
        (found,) = renyi(event, [known["order"]])
        assert low * (1 - 1e-11) <= found <= high * (1 + 1e-11)
        return
    book = Ledger(events=(event,))
    assert epsilon_bound(book, known["delta"]) >= low
    assert epsilon_floor(book, known["delta"]) <= high
    again = epsilon_of(book, known["delta"])
    assert again.lower <= high
    assert again.upper >= low


@pytest.mark.parametrize("known", [k for k in KNOWN if k["mechanism"]["type"] == "randomized-response"])
def test_brackets_of_randomized_response_are_those_of_mpmath(known: dict[str, Any]) -> None:
    bit, steps = known["mechanism"]["epsilon"], known["mechanism"]["steps"]
    with mpmath.workdps(50):
        kept = 1 / (1 + mpmath.exp(-mpmath.mpf(bit)))

        def delta(epsilon: float) -> mpmath.mpf:
            return sum(
                mpmath.binomial(steps, k) * kept**k * (1 - kept) ** (steps - k) * -mpmath.expm1(epsilon - loss)
                for k in range(steps + 1)
                if (loss := (2 * k - steps) * mpmath.mpf(bit)) > epsilon
            )

        low, high = known["certified"]
        assert delta(low) > known["delta"] > delta(high)
