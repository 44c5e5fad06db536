"""Verifying a report: its chain and files, its consistency, the noise that was added, and every guarantee."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from privctl.domain.errors import ExitCode, InputError, PrivctlError
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.mechanism import WeightNoise
from privctl.domain.notebook import Shown
from privctl.domain.progress import Advance, Progress, unseen
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import read_report
from privctl.reports.parameters import NoiseParameters, ParametersError, readable
from privctl.storage.digest import NamedFiles, TensorHasher, hash_tensors
from privctl.storage.reader import SafetensorsFile
from verify.audits import kept_request, parts_not_run
from verify.audits.evidence import check_evidence
from verify.audits.given import outside as outside_scores
from verify.checkpoint_noise.measure import LEVEL, CheckpointNoise, complaints, measure
from verify.checkpoint_noise.rounding import ExpectedChanges, change_complaints, unchanged_tensors
from verify.checks import MODEL, JudgedGuarantee, findings, guarantees
from verify.consistency.begun_with_records import check_records
from verify.consistency.bookkeeping import unchecked
from verify.files.beside import unseen_base
from verify.files.counted_data import check_recorded_data, uncounted
from verify.files.data import DataAtHand, check_data
from verify.files.integrity import check_chain, check_log
from verify.files.places import at_hand, located
from verify.files.searches import unlisted_searches
from verify.files.tokenizer import check_tokenizer
from verify.settings.public_records import PublicAtHand, check_public
from verify.stated import training_of
from verify.weights.check import check_weights

_NOT_AT_HAND = "the model is not at hand; put it there, or if it has another name now, verify it by that name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Shown):
    """All findings. ``integrity`` holds the verdicts on files and on the report's consistency."""

    path: Path
    report: PrivacyReport
    integrity: tuple[Verdict, ...]
    guarantees: tuple[JudgedGuarantee, ...]
    simulated: tuple[JudgedGuarantee, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    omissions: tuple[Omission, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts: integrity first, then recomputed and simulated guarantees."""
        return (*self.integrity, *(judged.verdict for judged in (*self.guarantees, *self.simulated)))

    @property
    def exit_code(self) -> ExitCode:
        """1 if a decisive verdict (files, parameters, or a guarantee that stands) is refuted, 3 if one is undecided."""
        decisive = [verdict for verdict in self.verdicts if verdict.decisive]
        if any(verdict.outcome is Outcome.REFUTED for verdict in decisive):
            return ExitCode.REFUTED
        if any(verdict.outcome is Outcome.INCONCLUSIVE for verdict in decisive):
            return ExitCode.BAD_INPUT
        return ExitCode.OK


def _bytes_of(path: Path, report: PrivacyReport) -> int:
    """The number of bytes of the files that ``verify`` reads, for a progress bar."""
    files = [*at_hand(path, report.outputs), *at_hand(path, report.inputs)]
    sizes = ((each.role, each.bytes, file.stat().st_size) for each, file in files)
    return sum(size for role, recorded, size in sizes if role == MODEL or size == recorded)


def read(path: Path) -> PrivacyReport:
    """The report at ``path``. Raises InputError if the file is not a report."""
    return read_report(path)


def verify(
    path: Path,
    report: PrivacyReport,
    *,
    progress: Progress = unseen,
    data: DataAtHand | None = None,
    public: PublicAtHand | None = None,
) -> Verification:
    """Verify the report at ``path``, using those of its files and parents that are present.

    ``data`` holds counts of the training data, and ``public`` of the public records that were mixed in, if the user
    provided them.
    """
    with progress("reading the files", _bytes_of(path, report), "bytes") as advance:
        hashed, measured, digests, expected = _read_files(path, report, advance)
        files = NamedFiles({**{output: hasher.file_digest for output, hasher in hashed.items()}, **digests})
        links = check_chain(path, hashed, files)
        inputs, omissions = _inputs(path, report, files, advance)
    parents = [link.report for link in links[1:] if link.report is not None]
    found = [verdict for link in links for verdict in link.verdicts]
    found += _outputs_missing(path, report, hashed)
    found += inputs
    logged, left = check_log(path, report)
    found += logged
    omissions += left
    found += findings(path, report, parents)
    found += _unstated_verdicts(path, report)
    behind = [(link.path, link.report) for link in links[1:] if link.report is not None]
    found += check_records(path, report, behind, files)
    noise, evidence = _noise(report, measured)
    found += noise
    if expected is not None and (complaint := expected.complaint()):
        found.append(Verdict(subject="noise", outcome=Outcome.REFUTED, reason=complaint))
    if isinstance(report.mechanism, WeightNoise) and not measured:
        omissions.append(Omission(what="measuring the noise", reason="the model before noise is not at hand"))
    if data is None:
        found += check_recorded_data(path, report, behind, files)
        omissions += uncounted(path, report, behind, files)
    else:
        found += check_data(report, data)
    omissions += unseen_base(path, report)
    omissions += unlisted_searches(path, report)
    if public is not None:
        with suppress(ParametersError):  # reported by a check
            found += check_public(report, public, training_of(report))
    with progress("comparing the weights with the training", 1, "model") as advance:
        weights = check_weights(path, report, files.digest)
        advance(1)
    found += weights.verdicts
    evidence += weights.evidence
    omissions += weights.omissions
    for link in links[1:] if isinstance(report.mechanism, WeightNoise) else ():
        if link.report is not None:  # the noise rests on what the report of that training says
            before = check_weights(link.path, link.report, files.digest)
            found += [verdict for verdict in before.verdicts if verdict.outcome is not Outcome.CONSISTENT]
            omissions += [replace(each, reason=f"{link.path.name}: {each.reason}") for each in before.omissions]
    compared = check_tokenizer(path, report)
    found += compared.verdicts
    omissions += compared.omissions
    figures = check_evidence(path, report, files)
    found += figures.verdicts
    omissions += figures.omissions
    omissions += outside_scores.unchecked(report)
    omissions += parts_not_run.unmeasured(report) if report.step == "audit" else ()
    with suppress(ParametersError):  # reported by a check
        kept = kept_request.kept_keys(path, report, files)
        settings, versions = kept_request.SETTINGS in kept, kept_request.VERSIONS in kept
        omissions += unchecked(report, kept_settings=settings, kept_versions=versions)
    judged = []
    with progress("recomputing", len(report.guarantees), "guarantees") as advance:
        for guarantee in guarantees(path, report, parents):
            judged.append(guarantee)
            advance(1)
    return Verification(
        path=path, report=report, integrity=tuple(found), guarantees=tuple(judged),
        evidence=tuple(evidence), omissions=tuple(omissions),
    )  # fmt: skip


def _unstated_verdicts(path: Path, report: PrivacyReport) -> Iterator[Verdict]:
    """For the report of an earlier verification: verifies again, and yields each verdict that it fails to state."""
    if report.step != "verify":
        return
    if len(report.parents) != 1:
        reason = f"it names {len(report.parents)} reports that it verified, and not one"
        yield Verdict(subject="report", outcome=Outcome.INCONCLUSIVE, reason=reason)
        return
    place = located(path, report.parents[0].path)
    if not os.path.isfile(place) or NamedFiles().digest(place) != report.parents[0].digest:
        return  # reported by the verdict on the chain
    parent = read(place)
    if parent.step == "verify":
        return  # a verification of a verification: each link is verified on its own
    current = Counter((v.subject, v.outcome, v.status) for v in verify(place, parent).verdicts)
    reported = Counter((v.subject, v.outcome, v.status) for v in report.verdicts)
    for (subject, outcome, _), count in (current - reported).items():
        worst = Outcome.REFUTED if outcome is Outcome.REFUTED else Outcome.INCONCLUSIVE
        found = counted(count, f"verdict {outcome} on it is", f"verdicts {outcome} on it are")
        reason = f"{found} found now that the report does not state"
        yield Verdict(subject=subject, outcome=worst, reason=reason)


def _read_files(
    path: Path, report: PrivacyReport, advance: Advance
) -> tuple[dict[Path, TensorHasher], list[CheckpointNoise], dict[Path, str], ExpectedChanges | None]:
    """Read every model file that is present once: hash the outputs, and compare each with its input if that is present.

    Returns the hashers of the outputs, the measured noise, the digests of the inputs that were read on the way, and
    the changes that noise should have left in outputs whose input is absent (None if no noise was added).
    """
    outputs = [place for a, place in at_hand(path, report.outputs) if a.role == MODEL]
    before = [place for a, place in at_hand(path, report.inputs) if a.role == MODEL]
    hashed: dict[Path, TensorHasher] = {}
    measured: list[CheckpointNoise] = []
    digests: dict[Path, str] = {}
    mechanism = report.mechanism
    expected = ExpectedChanges(stddev=mechanism.noise_stddev) if isinstance(mechanism, WeightNoise) else None
    for i, output in enumerate(outputs):
        if output in hashed:
            continue
        with ExitStack() as stack:
            try:
                after = stack.enter_context(SafetensorsFile(output))
                old = None
                if isinstance(mechanism, WeightNoise) and len(before) == len(outputs):
                    old = stack.enter_context(SafetensorsFile(before[i]))
            except InputError:
                continue  # the verdict on the chain reports that it is not the recorded file
            if old is None or not isinstance(mechanism, WeightNoise):
                hashed[output] = hash_tensors(after, advance)
                if expected is not None:
                    expected.look(after, _untouched(report))
                continue
            found = measure(old, after, mechanism.noise_stddev, _untouched(report), advance, mechanism.grid)
            hashed[output] = found.after
            measured.append(found)
            if found.before is not None:
                digests[before[i]] = found.before.file_digest
    return hashed, measured, digests, expected


def _untouched(report: PrivacyReport) -> tuple[str, ...]:
    parameters = readable(NoiseParameters, report)
    return tuple((parameters and parameters.tensors_untouched) or ())


def _outputs_missing(path: Path, report: PrivacyReport, hashed: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """Yields verdicts on models that could not be hashed, and on files whose size is not the recorded one."""
    for artifact in report.outputs:
        place = located(path, artifact.path)
        if artifact.role == MODEL and place not in hashed:
            readable = os.path.isfile(place)
            yield Verdict(
                subject=artifact.path,
                outcome=Outcome.REFUTED if readable else Outcome.INCONCLUSIVE,
                reason="it is no safetensors file any more" if readable else _NOT_AT_HAND,
            )
        elif os.path.isfile(place) and place.stat().st_size != artifact.bytes:
            yield Verdict(
                subject=artifact.path,
                outcome=Outcome.REFUTED,
                reason=f"it has {place.stat().st_size} bytes, and {artifact.bytes} were recorded",
            )


def _inputs(
    path: Path, report: PrivacyReport, files: NamedFiles, advance: Advance
) -> tuple[list[Verdict], list[Omission]]:
    """Compare the inputs that are still present with their recorded digests; an absent input is only an omission."""
    found, omitted = [], []
    for artifact in report.inputs:
        place = located(path, artifact.path)
        if not os.path.isfile(place):
            reason = "only --data compares a folder" if os.path.isdir(place) else "it is not at hand"
            omitted.append(Omission(what=f"digest of the input {artifact.path}", reason=reason))
            continue
        try:
            same = files.is_as_recorded(place, artifact.digest, artifact.bytes, advance)
        except PrivctlError as fault:
            omitted.append(Omission(what=f"digest of the input {artifact.path}", reason=str(fault)))
            continue
        reason = "it is the input recorded" if same else "it is not the input recorded: its digest or size differs"
        found.append(Verdict(subject=artifact.path, outcome=Outcome.PROVED if same else Outcome.REFUTED, reason=reason))
    return found, omitted


def _noise(report: PrivacyReport, measured: Sequence[CheckpointNoise]) -> tuple[list[Verdict], list[Evidence]]:
    """Compare the noise between input and output with the mechanism."""
    mechanism = report.mechanism
    if not measured or not isinstance(mechanism, WeightNoise):
        return [], []
    parameters = readable(NoiseParameters, report)
    tensors = [tensor for part in measured for tensor in part.noised]
    wrong = list(change_complaints(tensors, mechanism.noise_stddev))
    wrong += complaints(measured, mechanism.noise_stddev, (parameters and parameters.tensors_tied) or ())
    weights = sum(tensor.elements for tensor in tensors)
    evidence = Evidence(
        method=f"difference from the input, tests at a level of {LEVEL:g} together",
        quantity="root mean square of the noise, in the weights' units",
        estimate=(sum(t.squares for t in tensors) / weights) ** 0.5 if weights else None,
        bound=Bound.NONE,
        samples={"weights": weights, "tensors": len(tensors), "weights changed": sum(t.changed for t in tensors)},
        details={"reported": mechanism.noise_stddev, **{t.name: t.stddev for t in tensors}},
        reason="" if weights else "no tensor got noise",
    )
    if wrong:
        return [Verdict(subject="noise", outcome=Outcome.REFUTED, reason=sentence) for sentence in wrong], [evidence]
    count = counted(len(tensors), "tensor")
    reason = (
        f"the noise of {count} is as reported, so far as tests at a level of {LEVEL:g} can see: "
        "mean, deviation, shape, and none used twice"
        + ("" if mechanism.grid is None else "; every weight is on the grid")
    )
    if still := unchanged_tensors(tensors):
        more = "" if len(still) == 1 else f" and {len(still) - 1} more"
        reason += (
            f"; in {still[0]!r}{more} most weights did not change, as their format is coarser there than the noise"
        )
    return [Verdict(subject="noise", outcome=Outcome.CONSISTENT, reason=reason)], [evidence]
