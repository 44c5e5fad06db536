"""Checks that need the report but not its weights: ``privctl verify`` and ``privctl gate`` both run all of them.

Both run every check in ``CHECKS``. A check that needs weights or data belongs to verify alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.guarantee import Guarantee, Notion, Status
from privctl.domain.report import STEPS, Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import ParametersError, ProtectionParameters, ScanParameters, parameters_as
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import SafetensorsFile
from verify.answers import Answer
from verify.audits import consistency as audit_consistency
from verify.audits.asked import unanswered_claims
from verify.audits.canaries.conditions import check_canary_file, check_named
from verify.audits.canaries.gradients import check_observed
from verify.audits.canaries.guesses import check_guesses
from verify.audits.extraction.known_elsewhere import check_reference
from verify.audits.groups import check_groups
from verify.audits.secrets.settings import audited_plan_disagreements, other_plans
from verify.audits.split.drawn import check_split, check_unseen
from verify.consistency.account_plan import ledger_file_verdicts
from verify.consistency.agreement import contradictions
from verify.consistency.completeness import gaps
from verify.consistency.premises import faults
from verify.consistency.secret_plan import Part, plan_disagreements, split_by_risk
from verify.consistency.wording import unknown_texts
from verify.files.beside import changed_base, changed_copies, check_configurations
from verify.files.places import at_hand
from verify.files.published_updates import check_updates
from verify.files.searches import check_searches
from verify.guarantees import Verifier, follows_and_floor, of_another_ledger, titles, verifier_of
from verify.recompute.book_of_secrets import check_book, check_counts
from verify.recompute.protection import KEY, arrays_of, check_plan, names_of
from verify.stated import check_readable, method_of, training_of, unknown_parameters
from verify.warned.check import check_warnings

MODEL = "model"
#: No step states more than a dozen guarantees; recomputing one takes up to a few seconds.
_MOST_GUARANTEES = 100
#: Outcomes, worst first.
_WORST = (Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT, Outcome.PROVED)
_MAKERS = ("retrain", "noise", "replay", "external-training")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGuarantee:
    """A guarantee and its verdict; the verdict repeats the guarantee's status."""

    guarantee: Guarantee
    verdict: Verdict


#: One check: the path of the report, the report, and those of its parent reports that are present.
Check = Callable[[Path, PrivacyReport, Sequence[PrivacyReport]], Iterator[Verdict]]


def recompute(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> tuple[Verdict, ...]:
    """Run every check in ``CHECKS`` and recompute every guarantee of the report at ``path``; no weights are needed.

    ``parents`` are those of its parent reports that are present. The only other files read, if present, are protection
    plans, their books of secrets, and ledger files.
    """
    judged = guarantees(path, report, parents)
    return (*findings(path, report, parents), *(guarantee.verdict for guarantee in judged))


def findings(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """The verdicts of all ``CHECKS``.

    A check that needs an entry which the report lacks refutes the report. One that cannot compute with its numbers,
    such as a batch of negative size, leaves it open.
    """
    for check in CHECKS:
        with suppress(ParametersError):  # _readable reports it
            try:
                yield from check(path, report, parents)
            except LookupError as missing:
                reason = f"it lacks the entry {missing}, without which its other figures cannot be checked"
                yield Verdict(subject="report", outcome=Outcome.REFUTED, reason=reason)
            except (ArithmeticError, ValueError) as error:
                reason = f"it holds a number that no real run has, with which nothing can be computed ({error})"
                yield Verdict(subject="report", outcome=Outcome.INCONCLUSIVE, reason=reason)


def _readable(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Whether the parameters are the ones this step writes, with the right types."""
    try:
        check_readable(report)
        unread = unknown_parameters(report)
    except ParametersError as fault:
        yield Verdict(subject="parameters", outcome=Outcome.REFUTED, reason=str(fault))
        return
    for name in unread:
        reason = f"no {report.step} report of this kind has the parameter {shown(name)}, so its meaning is unknown"
        yield Verdict(subject="parameters", outcome=Outcome.INCONCLUSIVE, reason=reason)


def _disagreements(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    for sentence in contradictions(report):
        yield Verdict(subject="parameters", outcome=Outcome.REFUTED, reason=sentence)
    if (method := method_of(report)) is None:
        return
    with suppress(ArithmeticError, ValueError):  # already reported as a contradiction
        for sentence in method.undecided(training_of(report)):
            yield Verdict(subject="parameters", outcome=Outcome.INCONCLUSIVE, reason=sentence)


def _gaps(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    for sentence in gaps(report):
        yield Verdict(subject="report", outcome=Outcome.REFUTED, reason=sentence)


def _evidence(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    for sentence in audit_consistency.faults(report):
        yield Verdict(subject="audit", outcome=Outcome.REFUTED, reason=sentence)


def _no_model(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    if report.step in _MAKERS and not any(artifact.role == MODEL for artifact in report.outputs):
        reason = f"the report of a {report.step} step lists no model as output, so its bounds apply to none"
        yield Verdict(subject="model", outcome=Outcome.INCONCLUSIVE, reason=reason)


def _unknown_texts(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Texts that privctl never writes, so that their meaning is unknown; readers rely on them whatever the status."""
    if report.step not in STEPS:
        yield Verdict(
            subject="report", outcome=Outcome.INCONCLUSIVE, reason=f"privctl has no step named {report.step!r}"
        )
    for guarantee, title in zip(report.guarantees, titles(report), strict=True):
        for sentence in unknown_texts(report, guarantee):
            yield Verdict(subject=title, outcome=Outcome.INCONCLUSIVE, reason=sentence)
        # Assumptions are statements about the run, so they are checked even if the number is not claimed to hold.
        if guarantee.status not in (Status.PROVED, Status.CONDITIONAL):
            premises = faults(report, guarantee, parents) if not of_another_ledger(report, guarantee) else ()
            wrong = ((Outcome.REFUTED, sentence) for sentence in premises)
            for outcome, reason in (*wrong, *follows_and_floor(report, guarantee)):
                yield Verdict(subject=title, outcome=outcome, reason=reason)


def _ledger_file(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    yield from ledger_file_verdicts(path, report)


def _plans(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Protection plans that the step wrote or read."""
    read: set[Path] = set()
    for artifact, place in at_hand(path, (*report.outputs, *report.inputs)):
        if artifact.role == MODEL or place.suffix != ".safetensors" or place in read:
            continue
        read.add(place)
        try:
            with SafetensorsFile(place) as file:
                if KEY in file.metadata:
                    yield from check_plan(file)
                    yield from _book(path, report, file)
                    yield from _plan_file_agreement(report, artifact, file)
        except InputError as fault:
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=str(fault))


def _plan_file_agreement(report: PrivacyReport, artifact: Artifact, file: SafetensorsFile) -> Iterator[Verdict]:
    facts = parse_json(file.metadata[KEY], str(file.path))
    if artifact.role != "plan" or not isinstance(facts, dict):
        return
    wrong: list[str] = []
    if report.step == "audit":
        wrong += audited_plan_disagreements(report, facts)
    elif report.step in ("retrain", "secrets-plan"):
        wrong += plan_disagreements(report, facts, arrays_of(file), artifact.digest)
    if report.step == "secrets-plan":
        kinds, stated = Counter(names_of(file)[1]), parameters_as(ProtectionParameters, report).kinds
        if stated and dict(stated) != kinds:
            wrong.append("it does not count the secrets of each kind as the plan has them")
    for sentence in wrong:
        yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=sentence)


def _book(path: Path, report: PrivacyReport, file: SafetensorsFile) -> Iterator[Verdict]:
    """Compares the plan with its book of secrets, if the step read one and it is still present."""
    facts = parse_json(file.metadata[KEY], str(file.path))
    digest = facts.get("secrets") if isinstance(facts, dict) else None
    asked = parameters_as(ProtectionParameters, report) if report.step == "secrets-plan" else None
    for artifact, place in at_hand(path, report.inputs):
        if artifact.role == "secrets" and artifact.digest == digest == NamedFiles().digest(place):
            yield from check_book(names_of(file), arrays_of(file), asked, place)


def _scanned(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Compares the counts a scan reports with the book of secrets it wrote, if that is present."""
    for artifact, place in at_hand(path, report.outputs):
        if report.step != "secrets-scan" or artifact.role != "secrets":
            continue
        try:
            if NamedFiles().digest(place) == artifact.digest:
                yield from check_counts(place, parameters_as(ScanParameters, report))
        except ParametersError:
            raise
        except InputError as fault:
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=str(fault))


#: Every check, in the order in which the findings are reported.
CHECKS: tuple[Check, ...] = (
    _readable, _disagreements, _gaps, _evidence, _no_model, _unknown_texts, _ledger_file, _plans, changed_base,
    changed_copies, check_guesses, check_split, check_groups, check_unseen, unanswered_claims, check_reference,
    _scanned, check_configurations, check_updates, check_warnings, check_observed, check_named, check_canary_file,
    check_searches, other_plans,
)  # fmt: skip


def guarantees(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[JudgedGuarantee]:
    """Recompute every guarantee."""
    files: list[tuple[Artifact, Path]] = []
    if any(guarantee.notion is Notion.SECRET_PROTECTION for guarantee in report.guarantees):
        files = list(at_hand(path, (*report.outputs, *report.inputs)))
    for i, (guarantee, title) in enumerate(zip(report.guarantees, titles(report), strict=True)):
        outcome, reason = (
            Outcome.INCONCLUSIVE,
            f"only the first {_MOST_GUARANTEES} guarantees of a report are recomputed",
        )
        if i < _MOST_GUARANTEES:
            outcome, reason = _answer(report, guarantee, parents, files)
        verdict = Verdict(subject=title, outcome=outcome, reason=reason, status=guarantee.status)
        yield JudgedGuarantee(guarantee=guarantee, verdict=verdict)


def _worst_over_parts(check: Verifier, parts: list[Part] | str) -> Answer:
    """The worst of the answers for the ``parts`` of a guarantee about secrets; the first of them if several tie."""
    if isinstance(parts, str):
        return Outcome.REFUTED, parts
    results = [check(*part) for part in parts]
    return min(results, key=lambda answer: _WORST.index(answer[0]))


def _answer(
    report: PrivacyReport,
    guarantee: Guarantee,
    parents: Sequence[PrivacyReport],
    files: Sequence[tuple[Artifact, Path]],
) -> Answer:
    """Recompute one guarantee; if it is about secrets, its plan is looked for among ``files``, those present."""
    wrong = list(faults(report, guarantee, parents))
    if wrong:
        return Outcome.REFUTED, "; ".join(wrong)
    if guarantee.status is Status.VOID:
        return Outcome.CONSISTENT, "it is void, as the report says, and promises nothing"
    check = verifier_of(report, guarantee)
    if check is None:
        what = "no mechanism" if report.mechanism is None else type(report.mechanism).__name__
        return Outcome.INCONCLUSIVE, f"no verifier for {guarantee.notion} of {what}"
    try:
        if guarantee.notion is Notion.SECRET_PROTECTION:
            outcome, reason = _worst_over_parts(check, split_by_risk(report, guarantee, files))
        else:
            outcome, reason = check(report, guarantee)
    except (ArithmeticError, ValueError) as error:  # valid numbers that no real run has
        return Outcome.INCONCLUSIVE, f"the numbers are too large or too small to recompute ({error})"
    if guarantee.status is Status.CLAIMED and outcome is Outcome.REFUTED:
        reason = f"only claimed, as the report says, and false: {reason}"
    elif guarantee.status is Status.REFUTED and outcome is Outcome.REFUTED:
        reason = f"refuted, as the report says: {reason}"
    elif guarantee.status is Status.REFUTED and outcome is Outcome.PROVED:
        outcome, reason = Outcome.CONSISTENT, f"the report calls it refuted, but it holds: {reason}"
    elif outcome is Outcome.PROVED and guarantee.status is Status.CONDITIONAL:
        reason = f"{reason}, given its assumptions"
    return outcome, reason
