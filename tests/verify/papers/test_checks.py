"""Claims by flags: proved, refuted with something to check, or neither, and never a hang."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.verdict import Outcome
from verify.papers.checks import check_ferret, check_gaussian, check_laplace, check_secret
from verify.prove.prover import Prover

PROVED, REFUTED, OPEN = Outcome.PROVED, Outcome.REFUTED, Outcome.INCONCLUSIVE


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with Prover() as prover:
        yield prover


def numbers(**texts: Any) -> dict[str, Any]:
    return {name: Fraction(value) if isinstance(value, str) else value for name, value in texts.items()}


@pytest.mark.parametrize(
    ("epsilon", "delta", "noise", "steps", "rate", "outcome"),
    [
        ("1", "1e-6", "4.225", 1, "1", PROVED),
        ("1", "1e-6", "4.224", 1, "1", REFUTED),
        ("50", "1e-5", "5", 1000, "1", PROVED),
        ("8", "1e-5", "5", 1000, "1", REFUTED),
        ("0", "0.39", "1", 1, "1", PROVED),
        ("0", "0.38", "1", 1, "1", REFUTED),
        ("5", "0", "1", 1, "1", REFUTED),
        ("0", "0", "1", 1, "0", PROVED),
        ("1000", "1e-6", "0.00001", 1000000, "1", REFUTED),
        # The truth lies between 1.8200 and 1.8283.
        ("2.11", "1e-5", "1", 1000, "0.01", PROVED),
        pytest.param("1.825", "1e-5", "1", 1000, "0.01", OPEN, marks=pytest.mark.slow),
        pytest.param("1.81", "1e-5", "1", 1000, "0.01", REFUTED, marks=pytest.mark.slow),
        # Far out, where floats overflow.
        pytest.param("1", "1e-6", "0.01", 1000000, "0.000001", REFUTED, marks=pytest.mark.slow),
        ("1", "1e-6", "1000000", 1000000, "0.000001", PROVED),
        ("1", "1e-6", "0.3", 10, "0.99999999999999999", REFUTED),
    ],
)
def test_gaussian_claims_are_judged(
    prover: Prover, epsilon: str, delta: str, noise: str, steps: int, rate: str, outcome: Outcome
) -> None:
    arguments = numbers(epsilon=epsilon, delta=delta, noise_multiplier=noise, steps=steps, sample_rate=rate)
    found = check_gaussian(prover, **arguments)
    assert found.outcome is outcome, found.reason
    assert found.reason


@pytest.mark.parametrize(
    ("epsilon", "delta", "scale", "steps", "rate", "outcome"),
    [
        ("1", "0", "1", 1, "1", PROVED),
        ("0.999999", "0", "1", 1, "1", REFUTED),
        # One use needs delta 1 - e^((0.9 - 1)/2) = 0.0487705755 at epsilon 0.9.
        ("0.9", "0.0487705755", "1", 1, "1", PROVED),
        ("0.9", "0.0487705754", "1", 1, "1", REFUTED),
        ("10", "1e-5", "1", 10, "1", PROVED),
        ("9.9", "1e-5", "1", 10, "1", REFUTED),
        ("9.995", "1e-5", "1", 10, "1", OPEN),
        ("0.4", "1e-5", "3", 100, "0.01", PROVED),
        ("0.2", "1e-5", "3", 100, "0.01", PROVED),
        ("0.05", "1e-5", "3", 100, "0.01", REFUTED),
        ("0.00001", "0", "3", 100, "0", PROVED),
        ("1", "1e-5", "0.001", 1, "0.5", REFUTED),
    ],
)
def test_laplace_claims_are_judged(
    prover: Prover, epsilon: str, delta: str, scale: str, steps: int, rate: str, outcome: Outcome
) -> None:
    found = check_laplace(prover, **numbers(epsilon=epsilon, delta=delta, scale=scale, steps=steps, sample_rate=rate))
    assert found.outcome is outcome, found.reason


@pytest.mark.parametrize(
    ("claimed", "outcome"),
    [
        ({"nats": "0.5"}, PROVED),
        ({"nats": "0.4997591172"}, PROVED),
        ({"nats": "0.4997591171"}, OPEN),
        ({"nats": "0.22"}, REFUTED),
        ({"delta": "1e-5"}, REFUTED),
        ({"delta": "0.5010"}, REFUTED),
        ({"delta": "0.5011"}, OPEN),
    ],
)
def test_ferret_claims_are_judged(prover: Prover, claimed: dict[str, str], outcome: Outcome) -> None:
    arguments = numbers(groups=2, steps=1000, sample_rate="0.005", fire_probability="0.0721", **claimed)
    assert check_ferret(prover, **arguments).outcome is outcome


def test_ferret_that_never_fires(prover: Prover) -> None:
    arguments = numbers(groups=2, steps=1000, sample_rate="0.005", fire_probability="0")
    assert check_ferret(prover, **arguments, nats=Fraction(0)).outcome is PROVED
    assert check_ferret(prover, **arguments, delta=Fraction(0)).outcome is PROVED
    always = numbers(groups=1, steps=1, sample_rate="1", fire_probability="1")
    assert check_ferret(prover, **always, nats=Fraction("0.7")).outcome is PROVED
    assert check_ferret(prover, **always, nats=Fraction("0.6")).outcome is REFUTED


@pytest.mark.parametrize(
    ("chances", "noise", "steps", "prior", "posterior", "outcome"),
    [
        (["0.005"] * 10, "1.3780", 500, "0.01", "0.2", PROVED),
        (["0.005"] * 10, "1.3779", 500, "0.01", "0.2", OPEN),
        (["1"], "1", 1, "0.5", "0.96", PROVED),
        (["1"], "1", 1, "0.5", "0.9", OPEN),
        (["1"], "1", 1, "0.5", "0.8413", REFUTED),
        (["1"], "0.1", 1, "0.1", "0.19", REFUTED),
        (["1"], "1", 1, "0.5", "0.4", REFUTED),
        (["1"], "1", 1, "0.5", "0.5", OPEN),
        (["1"], "1", 1, "0.5", "1", PROVED),
        (["0.5"] * 100, "1", 1000, "0.5", "0.9", OPEN),
    ],
)
def test_secret_claims_are_judged(
    prover: Prover, chances: list[str], noise: str, steps: int, prior: str, posterior: str, outcome: Outcome
) -> None:
    found = check_secret(
        prover,
        chances=[Fraction(chance) for chance in chances],
        **numbers(noise_multiplier=noise, steps=steps, prior=prior, posterior=posterior),
    )
    assert found.outcome is outcome, found.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": "-1"}, "--epsilon is -1"),
        ({"epsilon": "1e9"}, "--epsilon is 1000000000"),
        ({"delta": "1.5"}, "--delta is 1.5"),
        ({"delta": "1e-200"}, "--delta is 1e-200; it must be 0 or at least 1e-90"),
        ({"noise_multiplier": "0"}, "--noise-multiplier is 0"),
        ({"steps": 0}, "--steps is 0"),
        ({"sample_rate": "2"}, "--sample-rate is 2"),
    ],
)
def test_numbers_out_of_range_are_named(prover: Prover, change: dict[str, Any], says: str) -> None:
    arguments = {"epsilon": "1", "delta": "1e-6", "noise_multiplier": "1", "steps": 1, "sample_rate": "1", **change}
    with pytest.raises(CommandError, match=says):
        check_gaussian(prover, **numbers(**arguments))
