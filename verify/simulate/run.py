"""The simulation of a report: the published test, the two sound tests, and a toy training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from privctl.domain.events import Ledger
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import STANDING, Guarantee, Notion
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from verify.checks import JudgedGuarantee
from verify.events import row_of
from verify.recompute.sensitivity import least_nonconvex
from verify.simulate.bounds import SimulatedDelta, black_box, violation_rate, white_box
from verify.simulate.losses import Draw, LossSamples, gaussian, ledger_losses, sample

#: Probability that a guarantee that holds is called violated, over all its tests.
LEVEL = 1e-3
_TRAINING_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The evidence of a simulation and its verdicts."""

    evidence: tuple[Evidence, ...]
    judged: tuple[JudgedGuarantee, ...]


def simulate(report: PrivacyReport, *, seed: int, seconds: float) -> Simulation | None:
    """Simulate the report's guarantees for about ``seconds`` in total; None if none can be simulated."""
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
        training, steps = toy
        rows, verdict = _sound_tests(chosen[0][0], sample(training, seed, share), f"a toy training of {steps} steps")
        evidence += rows
        judged.append(JudgedGuarantee(guarantee=chosen[0][0], verdict=verdict))
    return Simulation(evidence=tuple(evidence), judged=tuple(judged))


def _guarantees_to_test(report: PrivacyReport) -> Iterator[Guarantee]:
    """Yields all guarantees for weight noise, since each has its own shift, or a ledger's strongest established one."""
    known = [g for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP and g.epsilon is not None]
    if isinstance(report.mechanism, WeightNoise):
        yield from known
    elif isinstance(report.mechanism, Ledger):
        yield from sorted((g for g in known if g.status in STANDING), key=lambda g: g.epsilon or 0.0)[:1]


def _draw(report: PrivacyReport, guarantee: Guarantee) -> Draw | None:
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        if guarantee.name == "published":
            least = None if mechanism.training is None else least_nonconvex(mechanism.training)
            return None if least is None else gaussian(least / mechanism.noise_stddev)
        return gaussian(1 / guarantee.noise_multiplier) if guarantee.noise_multiplier else None
    return ledger_losses(mechanism) if isinstance(mechanism, Ledger) else None


def _assumed_draw(report: PrivacyReport, guarantee: Guarantee) -> Draw | None:
    """Draws what the published test samples: losses at the shift that the paper assumes, whatever the training did."""
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise) and guarantee.name == "published" and guarantee.sensitivity:
        return gaussian(guarantee.sensitivity / mechanism.noise_stddev)
    return None


def _toy(report: PrivacyReport) -> tuple[Draw, int] | None:
    """The toy training for a ledger of one event, and its number of steps; None if the kind has none."""
    mechanism = report.mechanism
    event = mechanism.events[0] if isinstance(mechanism, Ledger) and len(mechanism.events) == 1 else None
    training = None if event is None else row_of(event).toy(event)
    if event is None or training is None:
        return None
    steps = min(event.steps, _TRAINING_STEPS)
    return training(steps), steps


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
