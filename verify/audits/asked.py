"""Whether an audit report answers everything that was requested, so that no finding can be left out.

A report repeats the request: files by role and digest, attacks, claims. The ranks that the audit kept repeat it too,
and the model's own report says which claims had to be tested. Does not import numpy, like
``verify.audits.consistency``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Scope, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import TrainingParameters, parameters_as, readable
from verify.audits import claim_sources, parts_not_run
from verify.audits.canaries.taking_part import makers, mechanism_of
from verify.audits.extraction import exact_tests as extraction_tests
from verify.audits.given import outside as outside_scores
from verify.audits.split import groups as split_groups
from verify.audits.terms import BOUND, METHODS, NO_BOUNDS, NOISE, sides_by_coins
from verify.settings.users import covers_contents_only

#: The attacks that run by default, and those that ``--thorough`` adds.
USUAL = frozenset({
    "loss", "lira", "lira-online", "rmia", "rmia-online", "midpoint", "zlib", "min-k", "min-k++", "min-k++-all",
    "quantile", "reference",
})  # fmt: skip
THOROUGH = frozenset({
    "min-k++-half", "surp", "slope", "rises", "neighbour", "pac", "repeat", "recall", "con-recall",
    "augmented", "label-only", "gradient-norm", "gradient-alignment",
})  # fmt: skip
#: The fused attack is trained on the membership labels, so it gives no bound, and only its AUC is stated.
_FUSED = "fused"
_THRESHOLD = "fixed threshold"
_RATES = ("TPR at 1 % FPR", "TPR at 0.1 % FPR")
_DOCUMENTS = ("1", "2 to 9", "10 to 99", "100 or more")
_ADVERSARIAL = "adversarial prefix"
#: Roles of the files an audit works from; each such file that it read must be part of the request.
_GIVEN = frozenset({
    "members", "nonmembers", "train", "heldout", "split", "canaries", "planted", "secrets", "plan", "prompts", "scores",
    "heldout secrets", "heldout data",
})  # fmt: skip
#: Part of the warning that near-verbatim matches could not be looked for.
_NOT_NEAR = "as comparing it needs a network that transformers can generate with"
#: The method and the start of the quantity of each figure that every audit of planted canaries states.
_OF_CANARIES = [
    ("canary exposure", "mean bits, included"),
    ("canary exposure", "mean bits, left out"),
    ("canary exposure", "median bits, included"),
    ("canary completion", "disclosed, included"),
    (BOUND, "epsilon"),
    ("one run, Mahloujifar 2024", "mu"),
]
#: For the role of a file, the subject of the verdict that it requires.
_VERDICTS = {
    "members": "members cannot be told from non-members", "train": "training text cannot be extracted",
    "secrets": "training made no secret easier to tell",
}  # fmt: skip
#: For each part that may be unable to run, the role of the file that requests it.
_ASKED_BY = {parts_not_run.EXTRACTION: "train", parts_not_run.SECRETS: "secrets"}
_PLANNED = "(prior, posterior)-secret protection, as planned in "
_NO_BEAM = "beam search for secrets"


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each request that is not answered."""
    asked = parameters.asked
    if asked is None:
        yield "it does not say what it was asked, as every audit does"
        return
    read, kept = ({artifact.role for artifact in files} for files in (report.inputs, report.outputs))
    if not read & {"model", "scores"}:
        yield "its inputs name neither a model nor scores, so that nothing shows what it measured"
    if "model" in read and "scores" not in kept and not outside_scores.is_tied_to_model(report):
        yield "it does not name the ranks that every audit of a model keeps"
    yield from _files(report, asked)
    yield from parts_not_run.faults(report, asked, extraction=parameters.extraction is not None)
    yield from _attacks(report, parameters, asked)
    yield from _bounds(report, parameters, asked)
    yield from _claims(report, asked)
    yield from _section_faults(report, parameters, asked)
    if asked.precision is not None and asked.precision != parameters.dtype:
        yield f"it was asked to compute in {asked.precision}, and its parameters say {parameters.dtype or 'nothing'}"
    if asked.max_length is not None and parameters.max_length not in (asked.max_length, None):
        yield f"it was asked to keep {asked.max_length} tokens of a record, and its parameters say another number"
    if asked.logged and report.log is None:
        yield "it was entered into a log of audits, and does not name it"


def unanswered_claims(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes an audit that bounds epsilon but has no verdict on a claim of the model's report, one of ``parents``."""
    if report.step != "audit" or not any(item.method in METHODS for item in report.evidence):
        return
    trainings = list(makers(report, parents))
    yield from _verdicts_on_other_units(report, trainings)
    yield from _other_mechanism_verdicts(report, trainings)
    for sentence in claim_sources.misattributed(report, trainings):
        yield Verdict(subject="audit", outcome=Outcome.REFUTED, reason=sentence)
    claims = {(g.epsilon, g.delta) for parent in trainings for g in parent.guarantees if _is_claim(g)}
    for epsilon, delta in sorted(claims, key=str):
        if not _is_judged(report, epsilon, delta):
            yield Verdict(
                subject="audit",
                outcome=Outcome.REFUTED,
                reason=f"it bounds epsilon, and has no verdict on ({epsilon:g}, {delta:g})-DP, a claim of the model's "
                "report",
            )


def _other_mechanism_verdicts(report: PrivacyReport, own: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes canaries that were tested against another mechanism than the one they took part in."""
    stated = readable(AuditParameters, report)
    if stated is None or not stated.canary_conditions or stated.canary_mechanism is None:
        return
    for training in own:
        if stated.canary_mechanism != mechanism_of(training, planted=stated.canary_commitment is not None):
            yield Verdict(
                subject="audit",
                outcome=Outcome.REFUTED,
                reason="the mechanism that its canaries tested is not the one that the model's report states of what "
                "they take part in",
            )


def _verdicts_on_other_units(report: PrivacyReport, own: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes verdicts that treat a claim about the training's examples as a claim about another unit of privacy."""
    stated = readable(AuditParameters, report)
    if stated is None or stated.split_commitment is None or "canaries" in {item.role for item in report.inputs}:
        return
    for training in own:
        if stated.canary_mechanism not in split_groups.mechanisms(training.mechanism, report):
            yield Verdict(
                subject="audit",
                outcome=Outcome.REFUTED,
                reason="the mechanism that it tested is not the one that the model's report states, of one example or "
                "of its groups",
            )
        trained = readable(TrainingParameters, training) if training.step == "retrain" else None
        claims = {(g.epsilon, g.delta) for g in training.guarantees if _is_claim(g)}
        if trained is None:
            continue
        for verdict in report.verdicts:
            spoken = any(split_groups.is_about_claim(verdict.subject, *claim) for claim in claims)
            if spoken and split_groups.wrong_form(
                verdict.subject, report, stated, trained.unit, chosen=covers_contents_only(training)
            ):
                yield Verdict(
                    subject="audit",
                    outcome=Outcome.REFUTED,
                    reason=f"its verdict on {verdict.subject!r} is not about the examples of the training, which are "
                    + ("single records" if trained.unit is None else f"all records with one value of {trained.unit!r}"),
                )


def _is_claim(guarantee: Guarantee) -> bool:
    """Whether the guarantee claims an epsilon for adding, removing or zeroing one record; void guarantees do not."""
    return (
        guarantee.epsilon is not None
        and (guarantee.notion, guarantee.unit) == (Notion.APPROXIMATE_DP, PrivacyUnit.EXAMPLE)
        and guarantee.scope is Scope.THIS_MODEL
        and guarantee.adjacency in (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT)
        and guarantee.status is not Status.VOID
    )


def _files(report: PrivacyReport, asked: AskedAudit) -> Iterator[str]:
    for role in sorted({item.role for item in report.inputs} & _GIVEN - asked.files.keys()):
        yield f"it read {role}, and does not say that it was asked about them"
    without = {_ASKED_BY[part] for part in parts_not_run.not_run(report)}
    for role, digests in asked.files.items():
        named = [item.digest for item in report.inputs if item.role == role]
        if sorted(named) != sorted(digests):
            yield f"it was asked about other {role} than its inputs name"
        subject = None if role in without else _VERDICTS.get(role)
        if subject is not None and all(verdict.subject != subject for verdict in report.verdicts):
            yield f"it was given {role}, and has no verdict on {subject!r}"
    if "canaries" in asked.files and not report.evidence:
        yield "it was given canaries, and measured nothing"


def _attacks(report: PrivacyReport, parameters: AuditParameters, asked: AskedAudit) -> Iterator[str]:
    """Each requested attack must have a result or a reason why it was omitted."""
    if asked.columns:
        wanted: Iterable[str] = [f"column {name}" for name in asked.columns]
    elif "members" in asked.files:
        wanted = asked.attacks or sorted(USUAL | (THOROUGH if asked.thorough else frozenset()))
    else:
        return
    omitted = {omission.what for omission in report.omissions}
    for name in wanted:
        if name not in parameters.attack and f"{name} attack" not in omitted:
            yield f"the attack {name!r} was asked for, but neither its result nor why it was omitted is stated"
    if asked.group_by != parameters.group_by:
        yield "it was asked to count other groups of records than its parameters say"
    if asked.least_auc is not None and asked.least_auc != parameters.least_auc:
        yield f"it was asked to see an AUC of {asked.least_auc:g}, and its parameters say another"


def _bounds(report: PrivacyReport, parameters: AuditParameters, asked: AskedAudit) -> Iterator[str]:
    """Each score with a ROC curve on a drawn split must give a bound on epsilon, and so must a threshold."""
    bounds = [item for item in report.evidence if item.method in METHODS]
    if asked.delta is not None and any(item.details.get("delta", asked.delta) != asked.delta for item in bounds):
        yield f"its bounds are at another delta than {asked.delta:g}, which was asked for"
    if asked.threshold is not None and not any(
        item.method == _THRESHOLD and item.details.get("threshold") == asked.threshold for item in report.evidence
    ):
        yield f"a bound by the threshold {asked.threshold:g} was asked for, and none is stated"
    by_coins = sides_by_coins(parameters.extraction)
    if by_coins and parameters.split_commitment is None:
        yield "it says that privctl drew its sides, and states no commitment of a split"
    without = parts_not_run.not_run(report)
    if "split" not in asked.files or (parts_not_run.EXTRACTION in without and "members" not in asked.files):
        return
    if parameters.split_commitment is None:
        yield "it was given a drawn split, and does not state its commitment"
    if "members" not in asked.files and not by_coins:
        yield "it was given a drawn split, and does not say that its sides are those"
    if any(omission.what == NO_BOUNDS for omission in report.omissions):
        return
    bounded = {item.quantity.partition(", ")[2] for item in bounds if item.method == BOUND}
    curves = {item.method for item in report.evidence if item.quantity == "AUC"} & set(parameters.attack)
    for name in sorted(curves - bounded - {_FUSED}):
        yield f"it was given a drawn split, and states no bound from the scores of {name!r}"


def _claims(report: PrivacyReport, asked: AskedAudit) -> Iterator[str]:
    if any(omission.what == NO_BOUNDS for omission in report.omissions) and "canaries" not in asked.files:
        return
    for epsilon, delta in asked.claims:
        if not _is_judged(report, epsilon, delta):
            yield f"it was to judge ({epsilon:g}, {delta:g})-DP, and has no verdict on it"
    if asked.curve and parameters_as(AuditParameters, report).canary_curve is None:
        yield "it was to judge the curve of a mechanism, and does not state it"
    if asked.noise and all(item.method != NOISE for item in report.evidence):
        yield "it was to bound the noise of the stated steps, and does not say how much there was or why it cannot"


def _section_faults(report: PrivacyReport, parameters: AuditParameters, asked: AskedAudit) -> Iterator[str]:
    """Each part must state all its kinds of figures, so that the one which shows a leak cannot be left out."""
    measured = {(item.method, item.quantity) for item in report.evidence}
    names = {*parameters.attack, *(f"column {name}" for name in asked.columns)}
    wanted = [(name, rate) for name in sorted(names - {_FUSED}) if (name, "AUC") in measured for rate in _RATES]
    wanted += [("extraction", quantity) for quantity in _extraction_faults(asked, report)]
    wanted += _searches(asked, report)
    if parameters.canary_commitment is not None:
        wanted += _OF_CANARIES
    yield from _secrets(report, asked)
    for method, quantity in wanted:
        if not any(other_method == method and other.startswith(quantity) for other_method, other in measured):
            yield f"{method}: it states no {quantity.strip()!r}, as every such audit does"


def _searches(asked: AskedAudit, report: PrivacyReport) -> Iterator[tuple[str, str]]:
    """Yields the figures required of each attack whose prompts are not prefixes of records, unless it was omitted."""
    omitted = {omission.what for omission in report.omissions}
    if parts_not_run.EXTRACTION in omitted:
        return
    rates = [f"rate {of} text" for of in ("on training", "on held-out", "beyond held-out")]
    if asked.adversarial and _ADVERSARIAL not in omitted:
        yield from ((_ADVERSARIAL, rate) for rate in rates)
    outside = [extraction_tests.FROM_FILE] if "prompts" in asked.files else []
    outside += [extraction_tests.DIVERGENCE, extraction_tests.CONTROL] if asked.divergence else []
    for method in outside:
        if method not in omitted:
            also = [extraction_tests.OVER_CONTROL] if method == extraction_tests.DIVERGENCE else []
            yield from ((method, rate) for rate in (*rates, f"near-verbatim {rates[2]}", extraction_tests.COST, *also))


def _secrets(report: PrivacyReport, asked: AskedAudit) -> Iterator[str]:
    """All figures measured for secrets must be stated, including the beam search and the verdict on a plan."""
    if parts_not_run.SECRETS in parts_not_run.not_run(report):
        return
    found = {f"{item.method}: {item.quantity}" for item in report.evidence}
    yield from (f"it states no {figure!r}, which it measured" for figure in asked.secret_figures if figure not in found)
    if asked.beam is not None and all(omission.what != _NO_BEAM for omission in report.omissions):
        beam = f"secret completion: in a beam of {asked.beam}, "
        if not any(figure.startswith(beam) for figure in found):
            yield (
                f"a beam search of width {asked.beam} was asked for, but neither its result nor why it was omitted is "
                "stated"
            )
    planned = {"secrets", "plan"} <= asked.files.keys()
    if planned and not any(verdict.subject.startswith(_PLANNED) for verdict in report.verdicts):
        yield "it was given a plan of protection, and has no verdict on it"


def _extraction_faults(asked: AskedAudit, report: PrivacyReport) -> Iterator[str]:
    sides = {"train": "training", "heldout": "held-out"}
    if "train" not in asked.files or parts_not_run.EXTRACTION in parts_not_run.not_run(report):
        return
    near = not asked.exact_only and not any(_NOT_NEAR in line for line in report.warnings)
    for side in (sides[role] for role in sides if role in asked.files):
        yield f"rate on {side} text"
        if not asked.greedy_only:
            yield f"{side} text found in "
        if near:
            yield f"near-verbatim rate on {side} text"
    yield from (f"rate on text in {documents} document" for documents in _DOCUMENTS)
    if "heldout" in asked.files:
        yield "rate beyond held-out text"
        if not asked.greedy_only:
            yield "share found by sampling beyond held-out text"
        if near:
            yield "near-verbatim rate beyond held-out text"


def _is_judged(report: PrivacyReport, epsilon: float | None, delta: float) -> bool:
    return any(split_groups.is_about_claim(verdict.subject, epsilon, delta) for verdict in report.verdicts)
