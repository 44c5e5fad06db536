"""Groups, replacement and truncated Poisson batches against mixtures written out, dp_accounting and the verifier."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

from privctl.accounting.events import row_of
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.cli import run
from privctl.domain.events import (
    Batches,
    Event,
    GroupGaussian,
    LaplaceNoise,
    Ledger,
    ReplacedGaussian,
    SampledGaussian,
    TruncatedGaussian,
)
from tests.few import few
from verify.events import row_of as verified_row_of
from verify.recompute.ledger import epsilon_of

GROUP = GroupGaussian(noise_multiplier=2, group_size=4, sample_rate=0.02, steps=200)
REPLACED = ReplacedGaussian(noise_multiplier=2, sample_rate=0.02, steps=200)
CUT = TruncatedGaussian(noise_multiplier=2, largest_batch=30, examples=1000, sample_rate=0.02, steps=200)


def ledger_of(event: Event) -> Ledger:
    return Ledger(events=(event,))


def theirs(event: Event) -> float:
    """Epsilon at 1e-6 by dp_accounting."""
    if isinstance(event, GroupGaussian):
        sizes = list(range(event.group_size + 1))
        chances = [binom.pmf(j, event.group_size, event.sample_rate) for j in sizes]
        law = dp_pld.from_mixture_gaussian_mechanism(
            event.noise_multiplier, sizes, chances, value_discretization_interval=1e-3
        )
    elif isinstance(event, ReplacedGaussian):
        law = dp_pld.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=event.sample_rate, value_discretization_interval=1e-3,
            neighboring_relation=dp_pld.NeighborRel.REPLACE_ONE,
        )  # fmt: skip
    else:
        assert isinstance(event, TruncatedGaussian)
        law = dp_pld.from_truncated_subsampled_gaussian_mechanism(
            event.examples, event.sample_rate, event.largest_batch, event.noise_multiplier, 1e-3
        )
    return float(law.self_compose(event.steps).get_epsilon_for_delta(1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("event", [GROUP, REPLACED, replace(CUT, largest_batch=40)], ids=lambda event: event.tag)
def test_against_dp_accounting(event: GroupGaussian | ReplacedGaussian | TruncatedGaussian) -> None:
    expected, found = theirs(event), epsilon_bound(ledger_of(event), 1e-6)
    assert epsilon_floor(ledger_of(event), 1e-6) <= found == pytest.approx(expected, rel=2e-3)
    assert epsilon_of(ledger_of(event), 1e-6, (found,)).at_most(found)
    # Half the noise gives another bound, and the verifier refutes the claim.
    half = replace(event, noise_multiplier=1)
    assert epsilon_bound(ledger_of(half), 1e-6) > 1.5 * expected
    assert epsilon_of(ledger_of(half), 1e-6, (found,)).at_most(found) is False


@pytest.mark.slow
@pytest.mark.parametrize("largest", [10, 20, 25, 30])
def test_batches_that_are_often_cut_cost_less_than_dp_accounting_says(largest: int) -> None:
    """Theirs takes neighbours that replace a record where the batch is cut, which is looser."""
    event = replace(CUT, largest_batch=largest)
    whole = replace(event, largest_batch=1000)
    found = epsilon_bound(ledger_of(event), 1e-6)
    assert found < theirs(event) * (1 + 1e-3)
    assert epsilon_of(ledger_of(event), 1e-6, (found,)).at_most(found)
    if largest >= 20:
        assert found > epsilon_bound(ledger_of(whole), 1e-6)


def _least_delta(event: TruncatedGaussian, epsilon: float) -> float:
    """Delta of one step at ``epsilon`` for the data where all others contribute -1 and the record 1, by integration.

    A batch with j of the others, and with or without the record, has the mean -j or 1 - j; both laws are exact.
    """
    size, others, rate = event.largest_batch, event.examples - 1, event.sample_rate
    with_record, without = {}, {}
    for m in range(others + 1):
        chance = float(binom.pmf(m, others, rate))
        kept = min(m, size)
        without[-kept] = without.get(-kept, 0.0) + chance
        taken = rate if m < size else rate * size / (m + 1)
        with_record[-kept] = with_record.get(-kept, 0.0) + chance * (1 - taken)
        inside = 1 - min(m, size - 1)
        with_record[inside] = with_record.get(inside, 0.0) + chance * taken

    def density(law: dict[int, float], x: float) -> float:
        return float(sum(p * norm.pdf(x, at, event.noise_multiplier) for at, p in law.items()))

    def gain(x: float) -> float:
        return max(0.0, density(with_record, x) - math.exp(epsilon) * density(without, x))

    return float(quad(gain, -size - 10, 10, limit=200)[0])


#: Epsilon at 1e-6 by dp_accounting 0.6.0, as ``theirs`` gives it.
KNOWN = (
    (GROUP, 3.038473598190128),
    (REPLACED, 1.2213959542894133),
    (replace(CUT, largest_batch=40), 0.6719416012594974),
)


@pytest.mark.parametrize(("event", "expected"), KNOWN, ids=[event.tag for event, _ in KNOWN])
def test_against_known_values(event: Event, expected: float) -> None:
    assert epsilon_bound(ledger_of(event), 1e-6) == pytest.approx(expected, rel=2e-3)
    assert epsilon_of(ledger_of(event), 1e-6, (0.98 * expected,)).at_most(0.98 * expected) is False


def test_a_cut_batch_swaps_a_record_for_another() -> None:
    """What a data set does attain is within the bound, and above what Poisson batches that are never cut would cost."""
    event = TruncatedGaussian(noise_multiplier=1, largest_batch=2, examples=6, sample_rate=0.9)
    attained = _least_delta(event, 1.0)
    assert epsilon_bound(ledger_of(event), attained) >= 1.0
    assert attained > _least_delta(replace(event, largest_batch=6), 1.0)


_GRID = np.linspace(-40, 40, 20_001)


def _attained(present: dict[float, float], absent: dict[float, float], noise: float, epsilon: float) -> float:
    """Delta between two mixtures of Gaussians, amount -> chance, in the worse order; by sums on a grid."""
    p, q = (
        sum(chance * norm.pdf(_GRID, at, noise) for at, chance in law.items()) * (_GRID[1] - _GRID[0])
        for law in (present, absent)
    )
    return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()))


def _of_subsets(amounts: list[float], rate: float) -> dict[float, float]:
    """The law of the sum of those that take part."""
    law = {0.0: 1.0}
    for amount in amounts:
        moved: dict[float, float] = {}
        for at, chance in law.items():
            moved[at] = moved.get(at, 0.0) + chance * (1 - rate)
            moved[at + amount] = moved.get(at + amount, 0.0) + chance * rate
        law = moved
    return law


@pytest.mark.slow
def test_no_contributions_exceed_the_bounds_and_the_worst_attain_them() -> None:
    rng = np.random.default_rng(7)
    for worst in [True, False] * 20:
        noise, rate, epsilon = rng.uniform(0.6, 3), rng.uniform(0.02, 0.98), rng.uniform(0.05, 2)
        group = [1.0] * 3 if worst else rng.uniform(-1, 1, 3).tolist()
        pair = (1.0, -1.0) if worst else rng.uniform(-1, 1, 2).tolist()
        cases: list[tuple[Event, dict[float, float], dict[float, float]]] = [
            (
                GroupGaussian(noise_multiplier=noise, group_size=3, sample_rate=rate),
                _of_subsets(group, rate), {0.0: 1.0},
            ),
            (
                ReplacedGaussian(noise_multiplier=noise, sample_rate=rate),
                _of_subsets([pair[0]], rate), _of_subsets([pair[1]], rate),
            ),
        ]  # fmt: skip
        for event, present, absent in cases:
            delta = _attained(present, absent, noise, epsilon)
            if delta > 1e-10:
                found = epsilon_bound(ledger_of(event), delta)
                assert found >= epsilon - 1e-5
                assert not worst or found == pytest.approx(epsilon, abs=1e-3)


def test_extreme_batches_reduce_to_simpler_events() -> None:
    """A group of one is one record; nothing is cut from batches that may hold all; sure records are one Gaussian."""
    plain = epsilon_bound(ledger_of(SampledGaussian(noise_multiplier=2, sample_rate=0.02, steps=200)), 1e-6)
    assert epsilon_bound(ledger_of(replace(GROUP, group_size=1)), 1e-6) == pytest.approx(plain, rel=1e-9)
    assert epsilon_bound(ledger_of(replace(CUT, largest_batch=1000)), 1e-6) == plain
    for sure, shift in (
        (replace(GROUP, sample_rate=1, steps=1), 4),
        (replace(REPLACED, sample_rate=1, steps=1), 2),
        (replace(CUT, sample_rate=1, steps=1, largest_batch=1000), 1),
    ):
        exact = epsilon_bound(ledger_of(SampledGaussian(noise_multiplier=2 / shift)), 1e-6)
        assert epsilon_bound(ledger_of(sure), 1e-6) == pytest.approx(exact, rel=1e-4)
    for never in (replace(GROUP, sample_rate=0), replace(REPLACED, sample_rate=0), replace(CUT, sample_rate=0)):
        assert epsilon_bound(ledger_of(never), 1e-6) == 0
    # Every record drawn and 30 of 1000 kept: as a fixed size, for adding or removing one.
    fixed = SampledGaussian(noise_multiplier=2, sample_rate=0.03, steps=200, batches=Batches.FIXED_SIZE)
    assert epsilon_bound(ledger_of(replace(CUT, sample_rate=1)), 1e-6) <= epsilon_bound(ledger_of(fixed), 1e-6) * (
        1 + 1e-4
    )


def test_replacement_costs_less_than_a_shift_of_two() -> None:
    fixed = SampledGaussian(noise_multiplier=2, sample_rate=0.02, steps=200, batches=Batches.FIXED_SIZE)
    plain = replace(fixed, batches=Batches.POISSON)
    found = epsilon_bound(ledger_of(REPLACED), 1e-6)
    assert epsilon_bound(ledger_of(plain), 1e-6) < found < 0.6 * epsilon_bound(ledger_of(fixed), 1e-6)


def test_renyi_divergences_of_cut_batches_against_integration() -> None:
    full = float(binom.sf(29, 999, 0.02))
    chance = float(binom.sf(30, 1000, 0.02)) * 30 / 1000 / full

    def moment(shift: float, rate: float, order: float) -> float:
        def term(x: float) -> float:
            ratio = 1 - rate + rate * math.exp((shift * x - shift * shift / 2) / 4)
            return float(norm.pdf(x, 0, 2) * ratio**order)

        return float(quad(term, -40, 80, limit=400, epsabs=0, epsrel=1e-12)[0])

    for order in (1.5, 8.0):
        exact = math.log((1 - full) * moment(1, 0.02, order) + full * moment(2, chance, order)) / (order - 1)
        assert row_of(CUT).divergences(CUT, np.array([order]))[0] == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    "event", [replace(GROUP, sample_rate=0.3), replace(REPLACED, sample_rate=0.3)], ids=lambda e: e.tag
)
def test_drawn_losses_have_the_law_that_is_composed(event: Event) -> None:
    draw = verified_row_of(event).draw(event)
    assert draw is not None
    present = draw(np.random.default_rng(5), 200_000, True)
    absent = draw(np.random.default_rng(6), 200_000, False)
    # The mean likelihood ratio is 1 without the record, and its inverse with it.
    assert np.exp(absent).mean() == pytest.approx(1, abs=0.02)
    assert np.exp(-present).mean() == pytest.approx(1, abs=0.02)
    delta = float(np.maximum(0, -np.expm1(0.3 - present)).mean())
    single = ledger_of(replace(event, steps=1))  # type: ignore[call-arg]
    assert epsilon_bound(single, delta) == pytest.approx(0.3, abs=0.02)


def test_groups_compose_with_groups_of_their_size_alone() -> None:
    assert epsilon_bound(Ledger(events=(GROUP, replace(GROUP, steps=9))), 1e-6) > epsilon_bound(ledger_of(GROUP), 1e-6)
    for other in (replace(GROUP, group_size=5), SampledGaussian(noise_multiplier=2)):
        with pytest.raises(ValueError, match="a group of the same size"):
            epsilon_bound(Ledger(events=(GROUP, other)), 1e-6)
    with pytest.raises(ValueError, match="compose only with events that do"):
        epsilon_bound(Ledger(events=(REPLACED, LaplaceNoise(scale=3))), 1e-6)


_PLANS = {
    "group-gaussian": ["--group-size", "3", "--sample-rate", "0.02", "--steps", "50"],
    "replace-one-gaussian": ["--sample-rate", "0.02", "--steps", "50"],
    "truncated-poisson": ["--largest-batch", "40", "--dataset-size", "1000", "--batch-size", "20", "--epochs", "1"],
}


@pytest.mark.parametrize("name", few(_PLANS, 0, 1))
def test_planned_and_verified(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    call = ["account", "--mechanism", name, "--delta", "1e-6", *_PLANS[name]]
    assert run([*call, "--epsilon", "2", "-o", str(path), "-q"]) == 0
    found = json.loads(path.read_text())["parameters"]["found"]["noise multiplier"]
    assert run([*call, "--noise-multiplier", str(found), "--json", "-q"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out[out.index("{") :])
    assert 1.999 < report["guarantees"][0]["epsilon"] <= 2.0002
    assert run(["verify", str(path), "-q"]) == 0


@pytest.mark.forged("the plan claims what half its noise does not give")
@pytest.mark.parametrize("name", _PLANS)
def test_half_the_noise_is_refuted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    call = ["account", "--mechanism", name, "--delta", "1e-6", *_PLANS[name], "--noise-multiplier", "2"]
    assert run([*call, "-o", str(path), "-q"]) == 0
    report = json.loads(path.read_text())
    report["mechanism"]["events"][0]["noise_multiplier"] = 1.0
    report["parameters"]["noise_multiplier"] = 1.0
    for guarantee in report["guarantees"]:
        guarantee["noise_multiplier"] = 1.0
    path.write_text(json.dumps(report))
    assert run(["verify", str(path), "-q"]) == 1


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["account", "--noise-multiplier", "1", "--delta", "1e-6", "--mechanism"]
    assert run([*call, "group-gaussian"]) == 2
    assert "needs --group-size" in capsys.readouterr().err
    assert run([*call, "truncated-poisson", "--largest-batch", "9"]) == 2
    assert "needs --dataset-size, --batch-size and --epochs" in capsys.readouterr().err
    assert run([*call, "gaussian", "--group-size", "3"]) == 2
    assert "--group-size does not apply to --mechanism gaussian" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "rate", "noise"), [(4, 0.999, 0.1), (8, 0.5, 0.2)])
def test_likelihoods_beyond_floats(size: int, rate: float, noise: float) -> None:
    """One step whose losses exceed 709, of which floats hold no e^loss; delta written out at a threshold x."""
    members = np.arange(size + 1)
    chances = binom.logpmf(members, size, rate)

    def epsilon(x: float) -> float:
        return float(logsumexp(chances + (members * x - members**2 / 2) / noise**2))

    def delta(x: float) -> float:
        with_group = logsumexp(chances + norm.logsf((x - members) / noise))
        return math.exp(with_group) - math.exp(epsilon(x) + norm.logsf(x / noise))

    ledger = ledger_of(GroupGaussian(noise_multiplier=noise, group_size=size, sample_rate=rate))
    exact = epsilon(brentq(lambda x: delta(x) - 1e-5, 0, size + 12 * noise))
    found = epsilon_bound(ledger, 1e-5)
    assert exact > 709
    assert exact <= found < 1.0001 * exact
    assert epsilon_of(ledger, 1e-5, (found,)).at_most(found) is True
    assert not epsilon_of(ledger, 1e-5, (0.95 * exact,)).at_most(0.95 * exact)


def test_members_too_many_to_be_likely_do_not_dominate_a_tiny_delta() -> None:
    """Sixty records, of which three are in the batch on average, against the mixture at 50 digits."""
    event, delta = GroupGaussian(noise_multiplier=20, group_size=60, sample_rate=0.05), 1e-24
    with mpmath.workdps(50):
        rate, noise = mpmath.mpf(0.05), mpmath.mpf(20)
        weights = [mpmath.binomial(60, j) * rate**j * (1 - rate) ** (60 - j) for j in range(61)]

        def ratio(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.fsum(
                w * mpmath.exp((j * x - mpmath.mpf(j) ** 2 / 2) / noise**2) for j, w in enumerate(weights)
            )

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            """Delta at the loss of x, less the target, as a logarithm."""
            above = mpmath.fsum(w * mpmath.ncdf((j - x) / noise) for j, w in enumerate(weights))
            return mpmath.log(above - ratio(x) * mpmath.ncdf(-x / noise)) - mpmath.log(delta)

        exact = float(mpmath.log(ratio(mpmath.findroot(excess, (180, 230), solver="anderson"))))
    assert exact * (1 - 1e-9) <= epsilon_bound(ledger_of(event), delta) <= exact * (1 + 1e-3)
