"""Whether a report is complete and states nothing that is impossible for its step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from types import NoneType

from privctl.domain.events import Batches, Ledger, SignBits
from privctl.domain.guarantee import STANDING, Adjacency, Guarantee, Notion, RiskMeasure, Scope, Status
from privctl.domain.mechanism import ClippedTraining, Regime, WeightNoise
from privctl.domain.report import BEGUN_WITH, PrivacyReport
from privctl.reports.parameters import BudgetParameters
from verify.compare import shown
from verify.events import row_of
from verify.methods import external_training
from verify.methods.expected import EXTERNAL, TRAINING
from verify.recompute.mutual_information import unavoidable_delta
from verify.stated import budget_of, delta_of, training_of

_RATES = (0.01, 0.001)
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
#: For each step, the role of an input that it must have.
_READS = {"noise": "model", "retrain": "data"}
#: The roles of the files that a training reads, besides those that begin with one of ``BEGUN_WITH``, and writes.
_READ_BY_TRAINING = frozenset({"data", "held-out", "public", "measured", "plan"})
_WRITTEN_BY_TRAINING = frozenset({"model", "companion", "updates", "numbers"})
#: Steps that judge claims.
_JUDGING = frozenset({"audit", "claims", "inspect", "verify"})
#: For each step, the mechanisms it may state; NoneType if it may have none. Other steps have no mechanism or guarantee.
_MECHANISMS: dict[str, tuple[type, ...]] = {
    "account": (Ledger, SignBits), "noise": (WeightNoise,), "retrain": (Ledger, SignBits, ClippedTraining, NoneType),
    "secrets-plan": (Ledger,), "external-training": (Ledger, NoneType),
}  # fmt: skip
#: The beginnings of the methods of what trainings and noise measure; attacks and their figures belong to audits. Of a
#: loop that is not privctl's, nothing is known.
_MEASURED: dict[str, tuple[str, ...]] = {
    TRAINING: (
        "measured after the epoch", "measured while training, each example as it was met",
        "all masks, counted beforehand", "ln 2 nats a sign, times the sampling rate",
        "multiply-adds of the layers that may be quantized, counted; ", "a model, not a measurement: Amdahl's law, ",
        "the ledger with the measurements and without",
    ),
    "noise": (
        "mean loss of each token of the evaluation data, end-of-text tokens among them",
        "measured on the evaluation data, as retrain --held-out does",
    ),
    EXTERNAL: (),
}  # fmt: skip
#: Steps that write all weights to a single file.
_ONE_FILE = (TRAINING, "replay")


def gaps(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence for each entry that is missing, duplicated or impossible for this mechanism."""
    if not isinstance(report.mechanism, _MECHANISMS.get(report.step, (NoneType,))):
        yield f"a step named {report.step!r} cannot have the mechanism stated"
    if report.guarantees and report.step not in _MECHANISMS:
        yield f"a step named {report.step!r} guarantees nothing, but {len(report.guarantees)} are stated"
    counts = Counter((g.name, g.adjacency, g.scope) for g in report.guarantees)
    for (name, _, _), count in counts.items():
        if count > 1:
            yield f"it states {name!r} {count} times for the same neighbours and files"
    for guarantee in report.guarantees:
        yield from _out_of_place(report, guarantee)
        yield from _risks(report, guarantee)
        yield from _floats(report, guarantee)
    if isinstance(report.mechanism, WeightNoise):
        yield from _candidates(report, report.mechanism)
    if (budget := budget_of(report)) is not None:
        yield from _plan(report, budget)
    if isinstance(report.mechanism, SignBits):
        yield from _worst_case(report, report.mechanism)
    yield from _of_other_steps(report)
    yield from _files(report)


def _of_other_steps(report: PrivacyReport) -> Iterator[str]:
    """Verdicts, places in a log and attacks must not be stated by a step that has none, nor words for a date."""
    if report.created and not _DATE.fullmatch(report.created):
        yield f"its date is {shown(report.created)}, which is no date and time"
    if report.verdicts and report.step not in _JUDGING:
        yield f"a step named {report.step!r} judges nothing, but it states {len(report.verdicts)} verdicts"
    if report.log is not None and report.step != "audit":
        yield f"it names a place in a log of audits, but is the report of a step named {report.step!r}"
    for item in report.evidence if report.step in _MEASURED else ():
        of_audit = item.quantity == "AUC" or item.test is not None
        if of_audit or not any(_is_so(item.method, begins) for begins in _MEASURED[report.step]):
            yield f"a {report.step} step does not measure {item.quantity!r} by {item.method!r}"


def _is_so(method: str, begins: str) -> bool:
    """Whether ``method`` is the one that ``begins`` is, or that goes on after its last space."""
    return method.startswith(begins) if begins.endswith(" ") else method == begins


def _files(report: PrivacyReport) -> Iterator[str]:
    """The files must have roles that the step gives them, and those that it must have read must be named."""
    yield from _weights(report)
    if report.step == TRAINING:
        yield from _roles(report)
    needed = _READS.get(report.step)
    if needed and report.mechanism is not None and not any(artifact.role == needed for artifact in report.inputs):
        yield f"it names no {needed} that the {report.step} step read"


def _roles(report: PrivacyReport) -> Iterator[str]:
    """A training's files must have roles that are known here: other checks find the records that it read by them."""
    for artifact in report.inputs:
        if artifact.role not in _READ_BY_TRAINING and not artifact.role.startswith(BEGUN_WITH):
            yield f"it read {artifact.path} as {artifact.role!r}, which is no role of a file that a training reads"
    for artifact in report.outputs:
        if artifact.role not in _WRITTEN_BY_TRAINING:
            yield f"it wrote {artifact.path} as {artifact.role!r}, which is no role of a file that a training writes"


def _weights(report: PrivacyReport) -> Iterator[str]:
    """The outputs must not list weights other than those of the one model that the step wrote."""
    places = [PurePath(artifact.path) for artifact in report.outputs if artifact.role == "model"]
    if report.step in _ONE_FILE and len(places) > 1:
        yield f"it lists {len(places)} files of weights, and a {report.step} step writes one"
    elif len({place.parent for place in places}) > 1:
        yield "it lists weights in several folders, and a step writes those of one model into one"


def _out_of_place(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    name = guarantee.name
    if guarantee.scope is Scope.ALL_CANDIDATES and not isinstance(report.mechanism, WeightNoise):
        yield f"{name!r} is about all candidates, but this step makes none"
    of_ledger = isinstance(report.mechanism, Ledger)
    claimed = report.step == "account" and of_ledger and guarantee.status is Status.CLAIMED
    if claimed and guarantee.adjacency is not Adjacency.UNSTATED:
        yield f"{name!r} is only claimed, so it must leave its adjacency unstated"
    fits = of_ledger and (guarantee.notion is Notion.APPROXIMATE_DP or guarantee.delta > 0)
    applies = {
        "follows": fits,
        "floor": fits,
        "sensitivity": isinstance(report.mechanism, WeightNoise),
        "noise_multiplier": _has_one_noise(report, guarantee),
    }
    for field, applicable in applies.items():
        if getattr(guarantee, field) is not None and not applicable:
            yield f"{name!r} states `{field}`, which does not apply to this mechanism"


def _has_one_noise(report: PrivacyReport, guarantee: Guarantee) -> bool:
    """Whether the guarantee is for noise of one multiplier, which the verifier of the mechanism compares with it."""
    if isinstance(report.mechanism, WeightNoise):
        return guarantee.name in list(Regime)
    if not isinstance(report.mechanism, Ledger) or len(report.mechanism.events) != 1:
        return False
    row, of_secret = row_of(report.mechanism.events[0]), guarantee.notion is Notion.SECRET_PROTECTION
    return row.with_noise is not None or (of_secret and row.noise(report.mechanism.events[0]) is not None)


def _floats(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """A bound on noise added in floating point must state what the floating-point arithmetic adds to it."""
    mechanism = report.mechanism
    noised = isinstance(mechanism, WeightNoise) and mechanism.grid is not None and guarantee.name in list(Regime)
    if isinstance(mechanism, Ledger) and guarantee.notion is Notion.APPROXIMATE_DP:
        in_floats = any(row_of(event).in_floats for event in mechanism.events)
        noised = in_floats and _is_rounded(report)
    stands = guarantee.status in STANDING and guarantee.epsilon is not None
    if noised and stands and guarantee.arithmetic is None:
        yield f"{guarantee.name!r} does not state what floating-point noise adds to it"


def _is_rounded(report: PrivacyReport) -> bool:
    """Whether the report is of a training whose noise was added in floating point and rounded to a grid."""
    if report.step not in (TRAINING, EXTERNAL):
        return False
    parameters = training_of(report) if report.step == TRAINING else external_training.parameters_of(report)
    return "onto a grid" in (parameters.noise_source or "") or bool(parameters.released_numbers)


def _risks(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """A bound from the whole trade-off curve must state the standard risks, and no bound may state others."""
    counts = Counter((risk.measure, risk.at) for risk in guarantee.risks)
    if guarantee.status not in STANDING:
        return
    budget = budget_of(report)
    wanted: set[tuple[RiskMeasure, float | None]] = {
        (RiskMeasure.POSTERIOR, prior) for prior in ((budget.priors if budget else None) or ())
    }
    if guarantee.notion is Notion.MUTUAL_INFORMATION:
        wanted = {(RiskMeasure.ADVANTAGE, None), (RiskMeasure.AUC, None)}
    elif guarantee.notion is Notion.SECRET_PROTECTION:
        if not any(measure is RiskMeasure.POSTERIOR for measure, _ in counts):
            yield f"{guarantee.name!r} does not state how likely a secret is guessed"
        if report.step != "account":
            return
    elif not _is_of_curve(report, guarantee):
        wanted = set()
    else:
        wanted |= {(RiskMeasure.ADVANTAGE, None), *((RiskMeasure.TRUE_POSITIVE_RATE, rate) for rate in _RATES)}
    for measure, at in sorted(wanted - counts.keys(), key=str):
        yield f"{guarantee.name!r} does not state the {measure}{'' if at is None else f' at {at:g}'}"
    for measure, at in sorted(counts.keys() - wanted, key=str):
        yield f"{guarantee.name!r} states the {measure}{'' if at is None else f' at {at:g}'}, which was not requested"


def _is_of_curve(report: PrivacyReport, guarantee: Guarantee) -> bool:
    """Whether the guarantee comes from the tight accountant, which knows the whole trade-off curve."""
    if not isinstance(report.mechanism, Ledger) or guarantee.name.endswith("Renyi DP"):
        return False
    budget = budget_of(report)
    if budget is None:
        return True
    keys = (key for key, row in (budget.methods or {}).items() if row.title == guarantee.name)
    return budget.rely_on == next(keys, None)


def _candidates(report: PrivacyReport, mechanism: WeightNoise) -> Iterator[str]:
    """With several candidates, each bound on the released model needs the matching bound on all candidates."""
    if mechanism.noise_stddev not in mechanism.candidate_stddevs:
        yield "its noise_stddev is not among the candidate_stddevs of its run"
    regimes = [g for g in report.guarantees if g.name in list(Regime)]
    if not regimes and mechanism.training is not None:
        yield "no regime's bound is stated for its noise"
    scopes = (Scope.THIS_MODEL, Scope.ALL_CANDIDATES) if len(mechanism.candidate_stddevs) > 1 else (Scope.THIS_MODEL,)
    stated = {(g.name, g.adjacency, g.scope) for g in regimes}
    for name, adjacency in sorted({(g.name, g.adjacency) for g in regimes}):
        for scope in scopes:
            if (name, adjacency, scope) not in stated:
                yield f"{name!r}, {adjacency}, is not stated for {scope}"


def _worst_case(report: PrivacyReport, mechanism: SignBits) -> Iterator[str]:
    """A bound in nats is an average, so it needs the statement that published signs satisfy no (epsilon, delta)-DP."""
    delta = delta_of(report)
    if delta is None or unavoidable_delta(mechanism, Batches.POISSON) <= delta:
        return
    refuted = [g for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP and g.status is Status.REFUTED]
    for kind in ("Poisson", "shuffled"):
        stated = any(kind in g.name for g in refuted) or any(kind in omission.what for omission in report.omissions)
        if not stated and (kind == "Poisson" or unavoidable_delta(mechanism, Batches.SHUFFLED) > delta):
            yield f"it does not state that no (epsilon, {delta:g})-DP follows with {kind} batches"


def _plan(report: PrivacyReport, budget: BudgetParameters) -> Iterator[str]:
    """A plan must state, for each method its parameters name, a guarantee or the reason why there is none."""
    titles = {row.title for row in (budget.methods or {}).values()}
    stated = {g.name for g in report.guarantees}
    for name in sorted(stated - titles):
        yield f"{name!r} is none of the methods that its parameters name"
    for title in sorted(titles - stated - {omission.what for omission in report.omissions}):
        yield f"its parameters name the method {title!r}, but neither its guarantee nor why there is none is stated"
    if budget.methods is not None and budget.rely_on not in budget.methods:
        yield "its `rely_on` is not among its methods"
