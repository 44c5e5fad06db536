"""The table of methods: which are bounds, for which batches, and that both directions of each agree."""

import math
from dataclasses import replace

import pytest

from privctl.accounting.ledger import epsilon_floor
from privctl.accounting.methods import METHODS, TIGHT, AccountingMethod, adjacency_for, least_noise, methods_for
from privctl.domain.events import SAMPLED_BATCHES, Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Adjacency
from tests.few import few

#: The rows that are theorems, and for which batches.
SOUND = {
    "naive": {Batches.POISSON, Batches.FIXED_SIZE},
    "advanced": {Batches.POISSON, Batches.FIXED_SIZE},
    "optimal": {Batches.POISSON, Batches.FIXED_SIZE},
    "rdp": {Batches.POISSON},
    "pld": {Batches.POISSON},
    "poster-naive": set(),
    "poster-advanced": set(),
    "poster-advanced-corrected": set(),
    "gdp-clt": set(),
}

SETTINGS = [(1.0, 0.01, 100, 1e-5), (1.0, 0.01, 1000, 1e-5), (4.0, 0.05, 300, 1e-6)]


def event(noise: float, rate: float, steps: int, batches: Batches = Batches.POISSON) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches)


def floor(sampled: SampledGaussian, delta: float) -> float:
    return epsilon_floor(Ledger(events=(sampled,)), delta)


def test_which_rows_are_bounds() -> None:
    assert {name: set(method.sound_for) for name, method in METHODS.items()} == SOUND


@pytest.mark.parametrize("name", SOUND)
def test_what_is_no_bound_says_why(name: str) -> None:
    method = METHODS[name]
    assert method.title
    assert method.source
    if set(method.sound_for) != set(Batches):
        assert method.caveat


def test_what_can_be_proved_for_other_batches() -> None:
    for batches in SAMPLED_BATCHES:
        table = methods_for(batches)
        assert set(METHODS) <= set(table)
        # Every kind of batch has one row that is tight and sound.
        best = table["tight"] if batches in TIGHT else table["pld"]
        assert batches in best.sound_for
    assert Batches.POISSON not in TIGHT
    assert adjacency_for(Batches.FIXED_SIZE) is Adjacency.REPLACE_ONE
    assert adjacency_for(Batches.SHUFFLED) is Adjacency.ZERO_OUT
    assert adjacency_for(Batches.POISSON) is Adjacency.ADD_OR_REMOVE


ROWS = [(name, METHODS[name], batches) for name, kinds in SOUND.items() for batches in sorted(kinds)]
ROWS += [("tight", method, batches) for batches, method in TIGHT.items()]


@pytest.mark.parametrize(("name", "method", "batches"), ROWS)
@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), few(SETTINGS, 0))
def test_bounds_are_never_below_the_floor(
    name: str, method: AccountingMethod, batches: Batches, noise: float, rate: float, steps: int, delta: float
) -> None:
    one = event(noise, rate, steps, batches)
    assert method.epsilon(one, delta) >= floor(one, delta)
    # Had it been given twice the noise it would have been, unless it is as loose as the theorems.
    if name in {"pld", "tight"}:
        assert method.epsilon(event(2 * noise, rate, steps, batches), delta) < floor(one, delta)


@pytest.mark.parametrize("name", few(["naive", "advanced", "optimal", "rdp", "pld"], 0, 1, 4))
@pytest.mark.parametrize(("target", "rate", "steps", "delta"), [(2.0, 0.01, 200, 1e-5)])
def test_noise_of_a_sound_row_meets_its_target(name: str, target: float, rate: float, steps: int, delta: float) -> None:
    for batches in METHODS[name].sound_for:
        one = event(1.0, rate, steps, batches)
        noise = METHODS[name].noise_multiplier(one, target, delta)
        assert METHODS[name].epsilon(replace(one, noise_multiplier=noise), delta) <= target
        assert METHODS[name].epsilon(replace(one, noise_multiplier=noise * 0.99), delta) > target
        assert floor(replace(one, noise_multiplier=noise), delta) <= target
        # An event's own multiplier does not matter to what it needs.
        again = METHODS[name].noise_multiplier(replace(one, noise_multiplier=7.0), target, delta)
        assert again == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize(
    "batches",
    [pytest.param(each, marks=pytest.mark.slow if each is Batches.BALLS_AND_BINS else ()) for each in TIGHT],
)
def test_noise_of_the_tight_rows_meets_its_target(batches: Batches) -> None:
    one = event(1.0, 0.02, 100, batches)
    noise = TIGHT[batches].noise_multiplier(one, 3.0, 1e-6)
    assert TIGHT[batches].epsilon(replace(one, noise_multiplier=noise), 1e-6) <= 3.0
    assert floor(replace(one, noise_multiplier=noise * 0.99), 1e-6) > 3.0


def test_noise_of_the_unsound_rows_is_their_own_inverse_and_some_violate() -> None:
    one = event(1.0, 0.01, 1000)
    violated = set()
    for name in ("poster-naive", "poster-advanced", "poster-advanced-corrected", "gdp-clt"):
        try:
            noise = METHODS[name].noise_multiplier(one, 2.0, 1e-5)
            found = METHODS[name].epsilon(replace(one, noise_multiplier=noise), 1e-5)
        except ValueError:
            continue
        assert found == pytest.approx(2.0, rel=1e-3)
        if floor(replace(one, noise_multiplier=noise), 1e-5) > 2.0:
            violated.add(name)
    assert "gdp-clt" in violated


def test_sampling_rows_are_below_the_truth_of_shuffled_passes() -> None:
    # Why they carry a caveat: passes are not amplified; these rows say less than what passes certainly lose.
    one = event(1.0, 0.01, 1000, Batches.SHUFFLED)
    for name in ("rdp", "pld", "gdp-clt"):
        assert METHODS[name].epsilon(one, 1e-5) < floor(one, 1e-5)


def test_least_noise() -> None:
    assert least_noise(lambda noise: 3 / noise, 2.0) == pytest.approx(1.5, rel=1e-5)
    assert 3 / least_noise(lambda noise: 3 / noise, 2.0) <= 2.0
    for never in (lambda noise: math.inf, lambda noise: 0.0):
        with pytest.raises(ValueError, match="noise multiplier"):
            least_noise(never, 1.0)
