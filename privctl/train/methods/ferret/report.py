"""The report of a FERRET run, with its cost in nats or its guarantee in epsilon and delta."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privctl.accounting import renyi
from privctl.accounting.gridded import NOTE, arithmetic_of, epsilon_with_charge
from privctl.accounting.guarantees import finite, guarantee_of
from privctl.accounting.sign_bits import average_case, worst_case
from privctl.domain.events import Batches, Ledger
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.files import now, versions
from privctl.train.directional import SignAgreement
from privctl.train.logs import withheld
from privctl.train.logs.held_out import shared_warning
from privctl.train.methods.dp_sgd import TUNING
from privctl.train.methods.ferret.planning import FerretPlan, released_by
from privctl.train.methods.ferret.settings import FerretSettings, ReleaseKind
from privctl.train.methods.ferret.trainer import FinishedFerret
from privctl.train.preparation.job import TrainingJob
from privctl.train.release.premises import premises, secret_noise
from privctl.train.release.report import (
    adapter_warnings,
    evidence_of,
    input_artifacts,
    large_delta,
    parameters_of,
    report_privacy_warning,
    require_unchanged,
    start_files,
    zeroed_warning,
)
from privctl.train.settings.choices import DerivativeMethod
from privctl.train.steps.contribution import with_contribution_test
from privctl.train.steps.gradient_noise import GradientNoise

_AVERAGE = (
    "signs as published have no (epsilon, delta) guarantee: the nats are an average over the data, and one record that "
    "decides the sign of its batch shows itself; --release gaussian has a guarantee at the same cost in time"
)

#: The fraction of correct signs below which there is a warning.
_TRUSTED = 0.95

#: The effect of one example for releases that are not sums of clipped vectors.
_CONTRIBUTIONS = {
    ReleaseKind.DITHERED: "one example changes each derivative by twice the clip norm at most: all are brought within "
    "it",
    ReleaseKind.RANDOMIZED_RESPONSE: "one example may turn every sign of the batches it is in, and no other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FerretRun:
    """A finished run with its source of noise; ``methods`` gives the number of steps by each method of derivatives.

    ``agreement`` compares the signs of a few differences with those of derivatives, if differences were used.
    """

    plan: FerretPlan
    outcome: FinishedFerret
    noise: GradientNoise
    methods: Mapping[str, int]
    agreement: SignAgreement


def report_for(job: TrainingJob, done: FerretRun, report_path: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
    """The report of a run with these ``outputs``, to be written at ``report_path``.

    Raises InputError if a file of weights has changed since it was read.
    """
    data, ledger = job.request.data, done.plan.ledger
    inputs = {"data": data.train, "held-out": data.held_out, **start_files(job)}
    report = PrivacyReport(
        step="retrain",
        created=now(),
        versions=versions(("torch", "transformers", "tokenizers", "numpy", "scipy", "blake3")),
        inputs=input_artifacts(job, inputs, report_path),
        outputs=outputs,
        parameters=_parameters(job, done),
        mechanism=done.plan.signs if ledger is None else ledger,
        guarantees=tuple(guarantees_of(job, done)),
        evidence=(*_fired(done.plan), *evidence_of(job, done.outcome.finished)),
        warnings=(
            _AVERAGE if ledger is None else TUNING,
            report_privacy_warning(job),
            *adapter_warnings(job),
            *large_delta(job),
            *withheld.caveats(job.request),
            *shared_warning(job),
            *_untested(done),
        ),
        omissions=withheld.omissions(job.request),
    )
    require_unchanged(job)
    return report


def guarantees_of(job: TrainingJob, done: FerretRun) -> Iterator[Guarantee]:
    """The (epsilon, delta) guarantees, if any; the average case for signs in nats; and worst-case claims refuted."""
    plan, ledger, delta = done.plan, done.plan.ledger, job.delta
    assert delta is not None
    shared = (*premises(job), _public_masks(job))
    if ledger is not None:
        rests = (*shared, *secret_noise(done.noise))
        yield from (with_contribution_test(guarantee, job) for guarantee in _sound(ledger, delta, rests, plan))
    if plan.release in (ReleaseKind.PUBLISHED, ReleaseKind.DITHERED):
        order = () if job.request.method.sampled(job.request) else (_passes(),)
        yield average_case(plan.signs, (*shared, *order))
    if ledger is None:
        for batches in (Batches.SHUFFLED, Batches.POISSON):
            refuted = worst_case(plan.signs, delta, batches)
            if refuted is not None:
                used = "as here" if batches is Batches.SHUFFLED else "as they might have been"
                yield replace(refuted, name=f"{refuted.name}, {used}")


def _sound(ledger: Ledger, delta: float, assumptions: tuple[Assumption, ...], plan: FerretPlan) -> Iterator[Guarantee]:
    release, released = plan.release, released_by(plan.release, plan.masks)
    tight = guarantee_of(
        ledger,
        delta,
        name=f"ferret, {release}",
        state=AssumptionState.ENFORCED,
        assumptions=assumptions,
        note="given the masks, which are public: what counts is how many groups fire together, and how often"
        + (f"; {NOTE}" if released is not None else ""),
        released=released,
    )
    if release in _CONTRIBUTIONS:
        stated = (
            replace(a, statement=_CONTRIBUTIONS[release]) if a.name == "contribution" else a for a in tight.assumptions
        )
        tight = replace(tight, assumptions=tuple(stated))
    yield tight
    if release is ReleaseKind.DITHERED:
        assert released is not None
        epsilon, arithmetic = epsilon_with_charge(lambda less: renyi.ledger_epsilon(ledger, less)[0], released, delta)
        yield replace(
            tight,
            name=f"ferret, {release}, Renyi DP",
            epsilon=finite(epsilon),
            accountant="Renyi divergences, Canonne, Kamath and Steinke 2020",
            risks=(),
            arithmetic=arithmetic_of(released, arithmetic),
        )


def _public_masks(job: TrainingJob) -> Assumption:
    given = job.request.settings_as(FerretSettings).public_seed is not None
    return Assumption(
        name="public masks",
        statement="which groups fire, and the random directions, do not depend on the data: a public seed "
        "makes them, " + ("which was given" if given else "which the operating system drew before the first step"),
        state=AssumptionState.ASSERTED if given else AssumptionState.ENFORCED,
    )


def _passes() -> Assumption:
    return Assumption(
        name="whole passes",
        statement="every example is in one batch of each pass, in an order that does not depend on the data",
        state=AssumptionState.ENFORCED,
    )


def _parameters(job: TrainingJob, done: FerretRun) -> dict[str, Any]:
    plan, outcome, settings = done.plan, done.outcome, job.request.settings_as(FerretSettings)
    random = plan.ledger is not None
    return {
        **parameters_of(job, outcome.finished, done.noise if random else None),
        "release": str(plan.release),
        "publish": str(plan.publish),
        "groups": settings.groups,
        "number_of_groups": len(plan.groups) // plan.rule.directions,
        "directions": plan.rule.directions,
        "group_sizes": list(plan.sizes[:: plan.rule.directions]),
        "fire_probability": plan.masks.fire_probability,
        "public_seed": plan.masks.seed.hex(),
        "fired": plan.masks.total,
        "fired_by_group": list(plan.fired_by_group),
        "fired_steps": plan.masks.active_steps,
        "lost_steps": [list(stretch) for stretch in outcome.lost],
        "batches": str(Batches.POISSON if job.request.method.sampled(job.request) else Batches.SHUFFLED),
        "noise_multiplier": plan.noise_multiplier,
        "bit_epsilon": plan.bit_epsilon,
        "update_scale": str(settings.update_scale),
        "silent": str(settings.silent),
        "derivatives": str(settings.derivatives),
        "derivatives_by": dict(done.methods),
        "clipping": None if plan.release in (ReleaseKind.PUBLISHED, ReleaseKind.RANDOMIZED_RESPONSE) else "derivatives",
    }


def _fired(plan: FerretPlan) -> Iterator[Evidence]:
    """A test of the masks against their fire probability, and the nats that they publish."""
    from scipy.stats import binomtest  # here, as importing it takes longer than planning most trainings

    chances, fired = len(plan.groups) * plan.masks.steps, plan.masks.total
    test = binomtest(fired, chances, plan.masks.fire_probability)
    interval = test.proportion_ci(0.95, "exact")
    yield Evidence(
        method="all masks, counted beforehand",
        quantity="fraction of chances at which a group fired",
        estimate=fired / chances,
        lower=float(interval.low),
        upper=float(interval.high),
        interval="Clopper-Pearson",
        samples={"chances": chances},
        details={
            "fire probability": plan.masks.fire_probability,
            "p-value of the binomial": float(test.pvalue),
            "silent fraction of the steps": 1 - plan.masks.active_steps / plan.masks.steps,
        },
    )
    if plan.release in (ReleaseKind.PUBLISHED, ReleaseKind.DITHERED):
        yield Evidence(
            method="ln 2 nats a sign, times the sampling rate",
            quantity="nats published by these masks; the guarantee is for the average over masks",
            estimate=fired * plan.sample_rate * math.log(2),
            bound=Bound.NONE,
            samples={"signs": fired},
        )


def private_notes(done: FerretRun) -> Iterator[str]:
    """Notes for the private file: zeroed examples, and whether differences had the signs of derivatives."""
    yield from zeroed_warning(done.outcome.finished)
    agreement = done.agreement
    of = {
        "above the noise of rounding": (agreement.equal_above, agreement.above),
        "whatever their size": (agreement.equal, agreement.count),
    }
    for which, (equal, count) in of.items():
        if count:
            yield f"{equal} of {count} signs of differences, {which}, were the derivative's"
    if agreement.share_above < _TRUSTED:
        yield "much of what was published may lead astray; take --derivatives partial or forward"


def _untested(done: FerretRun) -> Iterator[str]:
    """A warning if the signs of differences could not be compared with those of derivatives."""
    if not done.agreement.count and done.methods.get(str(DerivativeMethod.DIFFERENCE)):
        yield (
            "derivatives were found by differences that could be compared with no backward pass, so nothing tells "
            "whether their signs are right"
        )
