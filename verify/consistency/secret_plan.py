"""Protection plans: which secret each risk of a guarantee is about, and whether a report agrees with its plan.

A report's ledger is for one record. The records of each secret are listed in the plan, which must be present.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.domain.events import Ledger, SampledGaussian, SecretMixture
from privctl.domain.guarantee import Adjacency, Guarantee
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.parameters import FollowedPlan, ProtectionParameters, parameters_as
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile
from verify.losses import secret
from verify.losses.bound_pair import BoundPair
from verify.recompute.curve_posteriors import largest_success
from verify.recompute.ledger import NoBoundError
from verify.recompute.protection import INFORMATION, KEY, MOST, REFERENCE, Arrays, arrays_of
from verify.stated import training_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The end of the name of a guarantee that rests on the whole trade-off curve.
CURVE = "trade-off curve"
#: The number of candidate secrets whose curves are composed to find the one that a risk is about.
_CLOSEST = 6
#: Relative differences up to which priors are equal, and up to which two grids may rank shares differently.
_SAME, _TIED = 1e-9, 2e-3

#: The adjacency of each form of a plan.
_ADJACENCY = {REFERENCE: Adjacency.ZERO_OUT, "pairwise": Adjacency.REPLACE_ONE}

Part = tuple[PrivacyReport, Guarantee]


@dataclass(frozen=True, slots=True, eq=False)
class _PlannedRun:
    """The plan's arrays with the noise and steps of the run that followed it."""

    arrays: Arrays
    noise: float
    steps: int
    form: str = REFERENCE

    def nats(self, j: int) -> BoundPair:
        """Bounds in nats on what the run reveals about secret ``j``, in the plan's form."""
        return INFORMATION[self.form](self.chances(j).tolist(), self.noise, self.steps)

    def chances(self, j: int) -> NDArray[np.float64]:
        """The positive sampling probabilities of the records that hold secret ``j``."""
        starts = self.arrays["starts"]
        probabilities: NDArray[np.float64] = self.arrays["probabilities"][
            self.arrays["records"][starts[j] : starts[j + 1]]
        ]
        return probabilities[probabilities > 0]


def split_by_risk(
    report: PrivacyReport, guarantee: Guarantee, files: Sequence[tuple[Artifact, Path]]
) -> list[Part] | str:
    """Splits ``guarantee`` by its risks, each with a report whose ledger is that of the secret the risk is about.

    The first risk is about the secret closest to its limit, any other about the secret with the largest bound; in both
    cases among the secrets with the risk's prior. Returns ``report`` and ``guarantee`` unchanged if no plan named in
    the report is present, or if its form or size is not recomputed. Returns a sentence if the guarantee is for other
    neighbours than the plan, or if no secret of the plan has a risk's prior.
    """
    run = _run_of(report, files)
    if run is None or not guarantee.risks:
        return [(report, guarantee)]
    if guarantee.adjacency is not _ADJACENCY[run.form]:
        return f"its neighbours are {guarantee.adjacency}, and those of a plan in the {run.form} form are others"
    groups = []
    for index, risk in enumerate(guarantee.risks):
        priors = run.arrays["priors"]
        among = np.flatnonzero(np.isclose(priors, risk.at or 0.0, rtol=_SAME, atol=0.0))
        among = among[[bool(len(run.chances(int(j)))) for j in among]] if len(among) else among
        if not len(among):
            return f"no secret of the plan that is ever drawn has a prior of {risk.at}"
        curve = guarantee.name.endswith(CURVE)
        j, nats = _secret_of(run, among, guarantee.epsilon, first=index == 0, curve=curve)
        event = SecretMixture(probabilities=tuple(run.chances(j).tolist()), noise_multiplier=run.noise, steps=run.steps)
        stated = guarantee.epsilon if index == 0 or guarantee.epsilon is None else max(guarantee.epsilon, nats)
        part = replace(guarantee, risks=(risk,), epsilon=stated)
        groups.append((replace(report, mechanism=Ledger(events=(event,))), part))
    return groups


def _secret_of(
    run: _PlannedRun, among: NDArray[np.int64], claimed: float | None, *, first: bool, curve: bool
) -> tuple[int, float]:
    """The secret in ``among`` that a risk is about, and an upper bound in nats on what is revealed about it.

    If several are equally close to their limit within numerical error, the one whose nats are nearest to ``claimed``.
    """
    arrays = run.arrays
    nats = {j: run.nats(j).upper for j in among.tolist()}
    allowed = {j: float(arrays["posteriors"][j]) if first else 1.0 for j in nats}
    fano = {j: secret.posterior(nats[j], float(arrays["priors"][j])) for j in nats}
    if not curve:
        shares = {j: nats[j] / max(float(arrays["budgets"][j]), 1e-300) if first else fano[j] for j in nats}
        least = shares
    else:
        stated = np.fmin(arrays["curve_bounds"], arrays["posterior_bounds"])
        closest = sorted(nats, key=lambda j: -min(fano[j], float(stated[j])) / allowed[j])[:_CLOSEST]
        successes = {j: _success(run, j, fano[j]) for j in closest}
        shares = {j: success.upper / allowed[j] for j, success in successes.items()}
        least = {j: success.lower / allowed[j] for j, success in successes.items()}
    # Each share is only known between two bounds: any that may be the largest may be the one that was meant.
    tied = [j for j in shares if shares[j] >= max(least.values()) * (1 - _TIED)]
    least_protected = (
        min(tied, key=lambda j: abs(nats[j] - (claimed or 0.0))) if first else max(shares, key=lambda j: shares[j])
    )
    return least_protected, nats[least_protected]


def _success(run: _PlannedRun, j: int, fano: float) -> BoundPair:
    prior = float(run.arrays["priors"][j])
    try:
        best = largest_success(run.chances(j), run.noise, run.steps, prior, 1.0)
    except NoBoundError:
        return BoundPair(min(prior, fano), fano)
    return BoundPair(min(best.lower, fano), min(best.upper, fano))


def _run_of(report: PrivacyReport, files: Sequence[tuple[Artifact, Path]]) -> _PlannedRun | None:
    mechanism = report.mechanism
    if not isinstance(mechanism, Ledger) or not all(isinstance(event, SampledGaussian) for event in mechanism.events):
        return None
    noises = {event.noise_multiplier for event in mechanism.events if isinstance(event, SampledGaussian)}
    steps = sum(event.steps for event in mechanism.events)
    if len(noises) != 1:
        return None
    plans = {(a.digest, place) for a, place in files if place.suffix == ".safetensors" and a.role != "model"}
    at_hand = NamedFiles()
    for digest, place in sorted(plans):
        if at_hand.digest(place) != digest:
            continue
        found = _arrays(place)
        if found is not None:
            form, arrays = found
            return _PlannedRun(arrays, max(noises), steps, form)
    return None


def _arrays(place: Path) -> tuple[str, Arrays] | None:
    """The form and arrays of the plan at ``place``; None if it is not a plan, or too large to recompute."""
    try:
        with SafetensorsFile(place) as file:
            if KEY not in file.metadata:
                return None
            facts: Any = parse_json(file.metadata[KEY], str(place))
            arrays = arrays_of(file)
    except InputError:
        return None  # reported by the check of the plan itself
    form = facts.get("form") if isinstance(facts, dict) else None
    return (form, arrays) if form in INFORMATION and 0 < len(arrays["budgets"]) <= MOST else None


_ROUNDING = 1e-9


def plan_disagreements(report: PrivacyReport, facts: Mapping[str, Any], arrays: Arrays, digest: str) -> Iterator[str]:
    """Yields one sentence for each entry of ``report`` that disagrees with the plan, whose digest is ``digest``."""
    largest = float(arrays["probabilities"].max(initial=0.0))
    ledger = report.mechanism
    events = ledger.events if isinstance(ledger, Ledger) else ()
    event = events[0] if len(events) == 1 else None
    if not isinstance(event, SampledGaussian):
        return  # reported by another check: no plan has a mechanism of this kind
    yield from _differs("sampling rate", event.sample_rate, largest)
    parameters: ProtectionParameters | FollowedPlan | None
    is_plan = report.step == "secrets-plan"
    parameters = parameters_as(ProtectionParameters, report) if is_plan else training_of(report).plan
    if parameters is None:
        yield "the report does not say which plan was followed"
        return
    for name, stated in (
        ("form", parameters.form),
        ("calibration", parameters.calibration),
        ("steps", parameters.steps),
        ("batch_size", parameters.batch_size),
    ):
        yield from _differs(f"parameter {name}", stated, facts.get(name))
    yield from _differs("number of secrets", parameters.secrets, len(arrays["budgets"]))
    if isinstance(parameters, ProtectionParameters):
        yield from _differs("noise multiplier", event.noise_multiplier, facts.get("noise_multiplier"))
        yield from _differs("number of steps", event.steps, facts.get("steps"))
        yield from _miscounted(parameters, arrays)
        return
    examples = len(arrays["probabilities"])
    for name, actual in (
        ("secrets_checked", len(arrays["budgets"])),
        ("cap", facts.get("cap")),
        ("kept_fraction", math.fsum(arrays["weights"].tolist()) / examples if examples else 0.0),
        ("records_never_drawn", int((arrays["probabilities"] == 0).sum())),
        ("expected_epochs", (parameters.steps or 0) * (parameters.batch_size or 0) / examples if examples else 0.0),
    ):
        if (count := getattr(parameters, name)) is not None:
            yield from _differs(f"parameter {name}", count, actual)
    yield from _differs("plan's noise multiplier", parameters.noise_multiplier, facts.get("noise_multiplier"))
    yield from _differs("plan's largest probability", parameters.largest_probability, largest)
    yield from _differs("plan's book of secrets", parameters.book, facts.get("secrets"))
    yield from _differs("plan's digest", parameters.digest, digest)


def _miscounted(parameters: ProtectionParameters, arrays: Arrays) -> Iterator[str]:
    """Compares the stated sizes with the plan; older reports do not state all of them."""
    sizes = np.diff(arrays["starts"])
    held = {
        "dataset_size": len(arrays["probabilities"]),
        "memberships": len(arrays["records"]),
        "records_with_a_secret": len(np.unique(arrays["records"])),
        "largest_secret": int(sizes.max(initial=0)),
        "secrets_in_no_record": int((sizes == 0).sum()),
    }
    for name, count in held.items():
        if (stated := getattr(parameters, name)) is not None:
            yield from _differs(f"parameter {name}", stated, count)


def _differs(what: str, stated: Any, actual: Any) -> Iterator[str]:
    numbers = isinstance(stated, int | float) and isinstance(actual, int | float)
    if not (math.isclose(stated, actual, rel_tol=_ROUNDING) if numbers else stated == actual):
        yield f"the report's {what} is {stated}, and the plan has {actual}"
