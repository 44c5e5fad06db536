"""The numbers in the pages of theory are those that privctl computes, to the digits shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from privctl.accounting import (
    composition,
    gaussian,
    ledger,
    methods,
    mutual_information,
    randomized_response,
)
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.mixtures import kl, replace_kl
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.accounting.secrets import fano as secrets
from privctl.domain.events import Ledger, SampledGaussian, SecretMixture, SignBits
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import ClippedTraining, Formula, Optimizer, Regime
from privctl.noise.dp_weights import published_stddev
from privctl.noise.sensitivity import WeightSensitivity, sensitivity
from tests.accounting import theorems
from tests.docs.digits import agrees
from tests.docs.pages import pages, table
from verify.papers import PAPERS, load_paper

THEORY = "".join(pages()[name] for name in ("theory.md", "batches.md", "mechanisms.md", "papers.md", "claims.md"))
Row = dict[str, str]


def sampled(noise: float, rate: float, steps: int) -> Ledger:
    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps),))


def weights(row: Row) -> ClippedTraining:
    return ClippedTraining(
        epochs=int(row["E"]), learning_rate=5e-5, clip_norm=1, dataset_size=1000, batch_size=int(row["B"])
    )


def signs(row: Row) -> SignBits:
    groups = int(row["G"])
    chance = mutual_information.fire_probability_for(float(row["nats"]), groups, 1000, 0.005)
    return SignBits(groups=groups, fire_probability=chance, sample_rate=0.005, steps=1000)


def follows(regime: Regime, adjacency: Adjacency) -> Callable[[Row], float]:
    def found(row: Row) -> float:
        stddev = published_stddev(weights(row), float(row["claimed epsilon"]), 1e-6, Formula.ALGORITHM_2)
        bound = sensitivity(weights(row), regime, adjacency, 1000)
        assert isinstance(bound, WeightSensitivity)
        return gaussian.epsilon_at(1e-6, bound.value / stddev)

    return found


def stddev_by(formula: Formula) -> Callable[[Row], float]:
    return lambda row: published_stddev(weights(row), float(row["epsilon"]), 1e-6, formula)


def epsilon_by(method: str) -> Callable[[Row], float]:
    def found(row: Row) -> float:
        event = sampled(float(row["noise multiplier"]), float(row["rate"]), int(row["steps"])).events[0]
        assert isinstance(event, SampledGaussian)
        return methods.METHODS[method].epsilon(event, float(row["delta"]))

    return found


def noise_by(method: str) -> Callable[[Row], float]:
    def found(row: Row) -> float:
        event = SampledGaussian(noise_multiplier=1, sample_rate=float(row["rate"]), steps=int(row["steps"]))
        return methods.METHODS[method].noise_multiplier(event, float(row["epsilon"]), float(row["delta"]))

    return found


def bound_of(row: Row, name: str, noise: str) -> float:
    whole = sampled(float(row[noise]), float(row["rate"]), int(row["steps"]))
    return float(getattr(ledger, name)(whole, float(row["delta"])))


def measured(row: Row) -> float:
    numerator, _, denominator = row["rate"].partition("/")
    event = SampledGaussian(
        noise_multiplier=float(row["noise multiplier"]),
        sample_rate=int(numerator) / int(denominator or 1),
        steps=int(row["measurements"]),
    )
    training = SampledGaussian(noise_multiplier=1, sample_rate=1024 / 50_000, steps=2940)
    return ledger.epsilon_bound(Ledger(events=(training, event)), 1e-5)


def mixture(row: Row) -> Any:
    return poisson_binomial([float(row["probability"])] * int(row["records"]))


def by_fano(row: Row) -> float:
    chances = [float(row["probability"])] * int(row["records"])
    return secrets.noise_multiplier_for(chances, int(row["steps"]), float(row["prior"]), float(row["posterior"]))


RELEASES = {
    "basic": 1000,
    "advanced": composition.advanced(1, 1000, 1e-8),
    "with the exact mean": theorems.advanced_tanh(1, 1000, 1e-8),
    "optimal": theorems.optimal(1, 1e-8, 1000, 1.001e-5),
    "first term alone": composition.advanced_as_printed(1, 1000, 1e-8),
}
#: Section, column, what computes it.
TABLES: list[tuple[str, str, Callable[[Row], float]]] = [
    ("Delta of a Gaussian", "delta", lambda row: gaussian.delta_at(float(row["epsilon"]), float(row["mu"]))),
    (
        "Least noise for one Gaussian",
        "noise multiplier",
        lambda row: gaussian.noise_multiplier_for(float(row["epsilon"]), float(row["delta"])),
    ),
    (
        "The classical formula",
        "delta that follows",
        lambda row: gaussian.delta_at(
            float(row["epsilon"]), 1 / theorems.classical_noise_multiplier(float(row["epsilon"]), 1e-6)
        ),
    ),
    ("A thousand releases", "epsilon", lambda row: RELEASES[row["method"]]),
    ("Epsilon of sampled Gaussians", "basic", epsilon_by("naive")),
    ("Epsilon of sampled Gaussians", "advanced", epsilon_by("advanced")),
    ("Epsilon of sampled Gaussians", "Renyi", epsilon_by("rdp")),
    ("Epsilon of sampled Gaussians", "upper", lambda row: bound_of(row, "epsilon_bound", "noise multiplier")),
    ("Epsilon of sampled Gaussians", "floor", lambda row: bound_of(row, "epsilon_floor", "noise multiplier")),
    ("Epsilon of sampled Gaussians", "GDP estimate", epsilon_by("gdp-clt")),
    ("Noise for a target epsilon", "basic", noise_by("naive")),
    ("Noise for a target epsilon", "advanced", noise_by("advanced")),
    ("Noise for a target epsilon", "optimal", noise_by("optimal")),
    ("Noise for a target epsilon", "Renyi", noise_by("rdp")),
    ("Noise for a target epsilon", "loss distribution", noise_by("pld")),
    ("Noise for a target epsilon", "GDP estimate", noise_by("gdp-clt")),
    ("The published formula", "algorithm2", stddev_by(Formula.ALGORITHM_2)),
    ("The published formula", "eq1", stddev_by(Formula.EQUATION_1)),
    ("What follows from the published noise", "convex, zero out", follows(Regime.CONVEX, Adjacency.ZERO_OUT)),
    ("What follows from the published noise", "convex, replace one", follows(Regime.CONVEX, Adjacency.REPLACE_ONE)),
    (
        "What follows from the published noise",
        "nonconvex, replace one",
        follows(Regime.NONCONVEX, Adjacency.REPLACE_ONE),
    ),
    (
        "Mutual information of sign bits",
        "largest nats",
        lambda row: mutual_information.ceiling(int(row["G"]), 1000, 0.005),
    ),
    (
        "Mutual information of sign bits",
        "p* for 0.5 nats",
        lambda row: mutual_information.fire_probability_for(0.5, int(row["G"]), 1000, 0.005),
    ),
    ("What nats imply", "Pinsker", lambda row: mutual_information.pinsker_total_variation(float(row["nats"]))),
    ("What nats imply", "advantage", lambda row: mutual_information.total_variation(float(row["nats"]))),
    ("What nats imply", "AUC", lambda row: mutual_information.auc(float(row["nats"]))),
    (
        "What nats imply",
        "delta of a catastrophe",
        lambda row: theorems.catastrophic_delta(float(row["nats"])),
    ),
    ("Worst case of sign bits", "Poisson", lambda row: mutual_information.worst_case_delta_poisson(signs(row))),
    ("Worst case of sign bits", "shuffled", lambda row: mutual_information.worst_case_delta_shuffled(signs(row))),
    ("Sound releases", "e1", lambda row: randomized_response.three_point(float(row["e0"]), 1, 0.005)[0]),
    ("Sound releases", "w", lambda row: randomized_response.three_point(float(row["e0"]), 1, 0.005)[1]),
    (
        "Sound releases",
        "epsilon of 1000 bits, pair",
        lambda row: theorems.exact_epsilon(float(row["e0"]), 1, 0.005, 1000, 1e-5),
    ),
    (
        "Sound releases",
        "epsilon of 1000 bits, exact",
        lambda row: theorems.one_bit_epsilon(float(row["e0"]), 0.005, 1000, 1e-5),
    ),
    (
        "Sound releases",
        "most bits for epsilon 1, pair",
        lambda row: theorems.most_steps(1, 1e-5, float(row["e0"]), 1, 0.005),
    ),
    (
        "Protection of a secret",
        "nats",
        lambda row: secrets.binary_kl(float(row["posterior"]), float(row["prior"])),
    ),
    ("Posterior from nats", "posterior", lambda row: secrets.posterior(float(row["nats"]), float(row["prior"]))),
    ("Divergence of a mixture", "reference form", lambda row: kl(mixture(row), float(row["sigma"]))),
    ("Divergence of a mixture", "pairwise form", lambda row: replace_kl(mixture(row), float(row["sigma"]))),
    ("Least noise by Fano", "noise multiplier", by_fano),
    ("What measurements cost", "epsilon", measured),
]


#: What takes a second or more, most of it tested elsewhere too.
SLOW = {
    ("Epsilon of sampled Gaussians", "floor"),
    ("Noise for a target epsilon", "optimal"),
    ("Noise for a target epsilon", "Renyi"),
    ("Noise for a target epsilon", "loss distribution"),
    ("What measurements cost", "epsilon"),
}


def cases() -> list[Any]:
    """The tables, slow ones marked."""
    return [
        pytest.param(*table, id=f"{table[0]}, {table[1]}", marks=[pytest.mark.slow] if table[:2] in SLOW else [])
        for table in TABLES
    ]


@pytest.mark.parametrize(("section", "column", "compute"), cases())
def test_the_tables_of_the_theory_page_are_computed(section: str, column: str, compute: Callable[[Row], float]) -> None:
    rows = table(THEORY, section)
    assert rows
    wrong = [(row, compute(row)) for row in rows if not agrees(row[column], compute(row))]
    assert wrong == []


@pytest.mark.slow
def test_the_estimate_falls_short() -> None:
    for row in table(THEORY, "Noise for a target epsilon"):
        event = sampled(noise_by("gdp-clt")(row), float(row["rate"]), int(row["steps"]))
        floor = ledger.epsilon_floor(event, float(row["delta"]))
        assert agrees(row["floor at the estimate"], floor)
        assert floor > float(row["epsilon"])


@pytest.mark.slow
def test_noisy_derivatives() -> None:
    text = THEORY.split("**Noisy derivatives**")[1]
    rows = table(f" Noisy\n{text}", "Noisy")
    for row in rows:
        found = noise_multiplier_for(float(row["epsilon"]), 1e-5, lambda noise: sampled(noise, 0.005, 1000))
        assert agrees(row["noise multiplier"], found)


def test_the_rest_of_the_numbers() -> None:
    adam = ClippedTraining(
        epochs=10, learning_rate=5e-5, clip_norm=1, dataset_size=1000, batch_size=5, optimizer=Optimizer.ADAMW
    )
    moved = sensitivity(adam, Regime.NONCONVEX, Adjacency.REPLACE_ONE, 124_439_808)
    assert isinstance(moved, WeightSensitivity)
    event = SecretMixture(probabilities=(0.005,) * 10, noise_multiplier=1.378, steps=500)
    training = ledger.epsilon_bound(sampled(1, 1024 / 50_000, 2940), 1e-5)
    shift = 1000**0.5 / gaussian.noise_multiplier_for(1, 1e-8)
    for stated, found in (
        ("2000 steps give 11816.4", moved.value),
        ("gives 0.200", secrets.posterior(secrets.information(event), 0.01)),
        ("the curve 0.0849", secrets.curve_posterior(event, 0.01)),
        ("Epsilon of training alone: 7.1370", training),
        ("has epsilon 44.9037382684", gaussian.epsilon_at(1.001e-5, shift)),
    ):
        assert stated in " ".join(THEORY.split()), stated
        assert agrees(stated.split()[-1], found), (stated, found)


def test_in_how_many_settings_dp_weights_exceeds_its_claim() -> None:
    ratios = []
    for epochs, batch, claimed in product((1, 5, 10, 20), (5, 10, 50, 100), (0.01, 0.1, 1, 10, 100, 1000)):
        row = {"E": str(epochs), "B": str(batch), "claimed epsilon": str(claimed)}
        ratios.append(follows(Regime.NONCONVEX, Adjacency.REPLACE_ONE)(row) / claimed)
    exceeded = sum(ratio > 1 for ratio in ratios)
    said = " ".join(THEORY.split())
    assert f"in {exceeded} of {len(ratios)} settings" in said
    assert f"a factor of up to {round(max(ratios), -3):,.0f}" in said


def test_the_book_of_claims() -> None:
    """Verdicts are made from the book, which tests of the claims hold to what is found."""
    rows = table(THEORY, "The book of claims")
    claims = [claim for name in PAPERS for claim in load_paper(name).claims]
    assert [row["claim"] for row in rows] == [f"`{claim.key}`" for claim in claims]
    assert [row["verdict"] for row in rows] == [claim.expected.value for claim in claims]
