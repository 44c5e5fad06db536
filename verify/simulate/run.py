"""The simulation of a report: the published test, the two sound ones, and a toy training, for one guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Guarantee, Notion, Status
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from verify.checks import JudgedGuarantee
from verify.recompute.sensitivity import least_nonconvex
from verify.simulate.bounds import SimulatedDelta, black_box, violation_rate, white_box
from verify.simulate.losses import Draw, Floats, LossSamples, gaussian, gaussian_loss, ledger_losses, sample

_RECORDS = 12
_LEARNING_RATE = 0.5


def toy_training(event: SampledGaussian, steps: int, *, noise: float = 1.0) -> Draw:
    """Losses of runs of ``steps`` steps of a toy training at the event's rate and noise.

    ``noise`` scales the noise that is actually added: 1 is correct, 0.5 a fault that a test must detect.
    """
    sigma, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        points = np.linspace(-2, 2, _RECORDS)
        labels = np.where(points > 0.3, 1.0, -1.0)
        weights = np.zeros((count, 2))
        losses = np.zeros(count)
        expected = rate * (_RECORDS + 1)
        for _ in range(steps):
            drawn = rng.random((count, _RECORDS)) < rate
            margins = labels * points * weights[:, :1]
            slopes = np.clip(-labels * points / (1 + np.exp(margins)), -1, 1)
            total = np.zeros((count, 2))
            total[:, 0] = (drawn * slopes).sum(1)
            if present:
                total[:, 1] -= rng.random(count) < rate
            total += noise * sigma * rng.standard_normal((count, 2))
            before = weights.copy()
            weights -= _LEARNING_RATE * total / expected
            # What an observer recovers from the weights.
            seen = (weights[:, 1] - before[:, 1]) * expected / _LEARNING_RATE
            losses += gaussian_loss(seen, sigma, rate)
        return losses

    return draw


#: Chance that a sound guarantee is called violated, over all its tests.
LEVEL = 1e-3
_TRAINING_STEPS = 100
_STANDING = (Status.PROVED, Status.CONDITIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The evidence of a simulation and its verdicts."""

    evidence: tuple[Evidence, ...]
    judged: tuple[JudgedGuarantee, ...]


def simulate(report: PrivacyReport, *, seed: int, seconds: float) -> Simulation | None:
    """Simulate the report's guarantees for about ``seconds`` in all; None where none can be simulated."""
    chosen = [(g, draw) for g in _guarantees_to_test(report) if (draw := _draw(report, g)) is not None]
    if not chosen:
        return None
    share = seconds / len(chosen) / (2 if _toy(report) is not None else 1)
    evidence: list[Evidence] = []
    judged: list[JudgedGuarantee] = []
    for guarantee, draw in chosen:
        losses = sample(draw, seed, share)
        assumed = sample(_assumed_draw(report, guarantee) or draw, seed, 0.0)
        evidence.append(_published_test(guarantee, violation_rate(assumed.present, guarantee.epsilon or 0.0), assumed))
        rows, verdict = _sound_tests(guarantee, losses, f"{guarantee.name}, simulated")
        evidence += rows
        judged.append(JudgedGuarantee(guarantee=guarantee, verdict=verdict))
    toy = _toy(report)
    if toy is not None:
        steps = min(toy.steps, _TRAINING_STEPS)
        rows, verdict = _sound_tests(
            chosen[0][0], sample(toy_training(toy, steps), seed, share), f"a toy training of {steps} steps"
        )
        evidence += rows
        judged.append(JudgedGuarantee(guarantee=chosen[0][0], verdict=verdict))
    return Simulation(evidence=tuple(evidence), judged=tuple(judged))


def _guarantees_to_test(report: PrivacyReport) -> Iterator[Guarantee]:
    """For weight noise all guarantees, since each has its own shift; for ledgers the strongest established one."""
    known = [g for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP and g.epsilon is not None]
    if isinstance(report.mechanism, WeightNoise):
        yield from known
    elif isinstance(report.mechanism, Ledger):
        yield from sorted((g for g in known if g.status in _STANDING), key=lambda g: g.epsilon or 0.0)[:1]


def _draw(report: PrivacyReport, guarantee: Guarantee) -> Draw | None:
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        if guarantee.name == "published":
            least = least_nonconvex(mechanism.training)
            return None if least is None else gaussian(least / mechanism.noise_stddev)
        return gaussian(1 / guarantee.noise_multiplier) if guarantee.noise_multiplier else None
    return ledger_losses(mechanism) if isinstance(mechanism, Ledger) else None


def _assumed_draw(report: PrivacyReport, guarantee: Guarantee) -> Draw | None:
    """What the published test samples: the shift that the paper assumes, whatever the training did."""
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise) and guarantee.name == "published" and guarantee.sensitivity:
        return gaussian(guarantee.sensitivity / mechanism.noise_stddev)
    return None


def _toy(report: PrivacyReport) -> SampledGaussian | None:
    mechanism = report.mechanism
    event = mechanism.events[0] if isinstance(mechanism, Ledger) and len(mechanism.events) == 1 else None
    return event if isinstance(event, SampledGaussian) and event.batches is Batches.POISSON else None


def _published_test(guarantee: Guarantee, rate: float, losses: LossSamples) -> Evidence:
    return Evidence(
        method="algorithm 1 of the DP-Weights paper: how often the loss exceeds epsilon",
        quantity=f"violation rate of {guarantee.name}",
        estimate=rate,
        bound=Bound.NONE,
        samples={"losses": len(losses.present)},
        details={"epsilon": guarantee.epsilon or 0.0},
        reason="it says nothing of delta: losses may exceed epsilon often in a private mechanism, and where the shift "
        "is assumed they are not the training's",
    )


def _sound_tests(guarantee: Guarantee, losses: LossSamples, subject: str) -> tuple[list[Evidence], Verdict]:
    """Both sound tests in both orders, sharing the level."""
    epsilon, delta = guarantee.epsilon or 0.0, guarantee.delta
    rows: list[Evidence] = []
    worst: tuple[float, str] = (0.0, "")
    for order, side in (("present", losses), ("absent", losses.reversed())):
        tests: tuple[tuple[str, SimulatedDelta], ...] = (
            ("black box: an event chosen on one half, tried on the other", black_box(side, epsilon, LEVEL / 4)),
            ("white box: the mean of 1 - e^(epsilon - loss)", white_box(side.present, epsilon, LEVEL / 4)),
        )
        for method, test in tests:
            rows.append(_row(f"{method}; with the record {order}", subject, epsilon, test, len(side.present)))
            worst = max(worst, (test.lower, method))
    if worst[0] > delta:
        reason = (
            f"violated with confidence {1 - LEVEL:g}: delta at epsilon {epsilon:.6g} is at least {worst[0]:.4g}, not "
            f"{delta:g} ({worst[1]})"
        )
        return rows, Verdict(subject=subject, outcome=Outcome.REFUTED, reason=reason, status=guarantee.status)
    most = max(row.upper for row in rows if row.upper is not None and math.isfinite(row.upper))
    reason = (
        f"no violation seen in {len(losses.present)} outputs of each kind; they could not have seen a delta below "
        + (f"{max(0.0, most):.2g}")
    )
    return rows, Verdict(subject=subject, outcome=Outcome.CONSISTENT, reason=reason, status=guarantee.status)


def _row(method: str, subject: str, epsilon: float, test: SimulatedDelta, count: int) -> Evidence:
    box = test.upper < 1
    blind = test.lower == 0 and epsilon > math.log(count) and not method.startswith("white")
    return Evidence(
        method=method,
        quantity=f"delta at epsilon {epsilon:.6g} of {subject}",
        estimate=None if blind else test.estimate,
        lower=test.lower,
        upper=test.upper if box else None,
        confidence=1 - LEVEL,
        bound=Bound.TWO_SIDED if box else Bound.LOWER,
        interval="empirical Bernstein" if method.startswith("white") else "Clopper-Pearson",
        samples={"outputs": count},
        reason="too few outputs to see an event so rare" if blind else "",
    )
