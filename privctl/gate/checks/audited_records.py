"""Whether an audit attacked what the model was trained on: all of its records, the same fields, at full length.

An audit shows nothing about records that it did not score. Whoever chooses the records could leave out those that the
model remembers best.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from privctl.domain.report import Artifact
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from verify.audits.split.drawn import drawn_from
from verify.consistency.begun_with import LEARNED

#: The roles of the files that an audit took as training data, and of the files that it compared them with.
MEMBERS, TRAIN = "members", "train"
_UNSEEN = {MEMBERS: "nonmembers", TRAIN: "heldout"}
#: If attacks were chosen, one of these must be among them: the baseline, or the combination of all attacks.
_REQUIRED = ("loss", "fused")
#: The default length of a suffix in tokens; longer ones are extracted less often.
_MOST_SUFFIX = 50
#: Reasons why members were not scored although the model may have memorized them.
_UNSCORED = (
    "occurring among members and non-members alike",
    "repeated, while others occur in both files",
    "given NaN or infinite scores by the model",
)
_PAIRS = "seq2seq-lm"
#: Parameter that names a field -> its option, and the field that is read first if none is named.
_COLUMNS = {"text_column": ("--text-column", "text"), "label_column": ("--label-column", "label")}


def why_not_attacked(case: JudgedModel, report: LoadedReport, role: str) -> str:
    """Why the audit of records in this ``role`` does not show how much the model memorized; empty if it does."""
    taken = [a for a in report.report.inputs if a.role == role]
    if reason := _why_other_records(case, report, role, taken):
        return reason
    try:
        stated = parameters_as(AuditParameters, report.report)
    except ParametersError as fault:
        return f"the settings of the audit cannot be read: {fault}"
    if stated.score_conditions is not None:
        return ""  # scores of another tool; the policy decides whether to accept them
    asked = stated.asked or AskedAudit()
    readings = _readings(case, report, taken)
    reason = _why_other_fields(readings, asked) or _why_other_bits(case, stated)
    if role == TRAIN:
        return reason or _why_harder(stated)
    return reason or _why_other_image_size(readings, stated) or _why_weak_attacks(asked)


def unaudited_file(case: JudgedModel, audits: Sequence[LoadedReport], role: str) -> Artifact | None:
    """A file that the model's last training read and that none of ``audits`` read in this ``role``; None if none."""
    last = next((writer for writer in (*case.writers, *case.inherited) if _data_of(writer)), None)
    if last is None:
        return None
    seen = {a.digest for audit in audits for a in audit.report.inputs if a.role == role}
    seen |= {drawn_from(audit.path, audit.report) for audit in audits}
    files = (a for a in last.report.inputs if a.role == "data")
    return next((a for a in files if a.digest not in seen), None) if any(seen) else None


def training_data_remark(case: JudgedModel) -> str:
    """What a finding adds if no report says which records the model was trained on."""
    if any(_data_of(report) for report in case.history):
        return ""
    return "; no report names the training data, so only the audit says that the model was trained on these records"


def texts_tested_remark(audits: Sequence[LoadedReport]) -> str:
    """What a finding on extraction adds if an audit tested fewer texts than the training file has records."""
    for report in audits:
        try:
            settings = parameters_as(AuditParameters, report.report).extraction or {}
        except ParametersError:
            continue
        drawn, records = settings.get("drawn"), settings.get("training_records")
        if isinstance(drawn, int) and isinstance(records, int) and drawn < records:
            return (
                f"; {drawn} texts of {records} training records were tested: the others are too short, repeat "
                "another or were not drawn"
            )
    return ""


def share_unscored(case: JudgedModel, report: LoadedReport) -> tuple[float, str]:
    """An upper bound on the share of members that were not scored completely, although memorizable, and the reasons.

    Each copy of a record counts, so the share is at least that of distinct records.
    """
    try:
        stated = parameters_as(AuditParameters, report.report)
    except ParametersError:
        return 0.0, ""  # the audit does not count; ``why_not_attacked`` says why
    left_out = {
        omission.reason: int(count)
        for omission in report.report.omissions
        for count, _, side in (omission.what.partition(" "),)
        if side in ("member", "members") and count.isdecimal() and omission.reason in _UNSCORED
    }
    taken = [a for a in report.report.inputs if a.role == MEMBERS]
    cut = _why_cut(_readings(case, report, taken), stated)
    missing = sum(left_out.values())
    partly = (stated.cut or {}).get(MEMBERS, 0) if cut else 0
    if not missing + partly:
        return 0.0, ""
    everything = missing + max(partly, _scored(report, stated))
    return (missing + partly) / everything, "; ".join([*left_out, *filter(None, [cut])])


def holds_all(trained: Collection[str], taken: Sequence[Artifact], report: LoadedReport) -> bool:
    """Whether the files ``trained`` on, by digest, contain all records of the files ``taken`` by the audit ``report``.

    They do if they include these files, or the file that the audit's split was drawn from, as its manifest shows.
    """
    if all(artifact.digest in trained for artifact in taken):
        return True
    return all(artifact.role in _UNSEEN for artifact in taken) and drawn_from(report.path, report.report) in trained


def _why_other_records(case: JudgedModel, report: LoadedReport, role: str, taken: Sequence[Artifact]) -> str:
    """Why an audit does not compare records that were trained on with others; empty if it does."""
    trained = {digest for training in case.history for digest in _data_of(training)}
    if any(_names_no_data(training) for training in case.history):
        return "a training's report does not name its data, so these records may not have been trained on"
    known = {a.digest for training in case.history for a in training.report.inputs if a.role in LEARNED}
    learned = [a for a in report.report.inputs if a.role == _UNSEEN[role] and a.digest in known]
    if learned:
        return f"the non-members, {learned[0].path}, were trained on according to the model's reports"
    if not trained or holds_all(trained, taken, report):
        return ""
    return f"the training data of the audit, {taken[0].path}, was not trained on according to the model's reports"


def _data_of(report: LoadedReport) -> set[str]:
    return {a.digest for a in report.report.inputs if a.role == "data"}


def _names_no_data(report: LoadedReport) -> bool:
    """Whether it is the report of a training by privctl but names no data, as all such reports do."""
    return report.report.step == "retrain" and not _data_of(report)


def _training(report: LoadedReport) -> TrainingParameters | None:
    try:
        return parameters_as(TrainingParameters, report.report) if report.report.step == "retrain" else None
    except ParametersError:
        return None  # privctl verify reports it


def _readings(case: JudgedModel, report: LoadedReport, taken: Sequence[Artifact]) -> list[TrainingParameters]:
    """The parameters of those trainings that read the files ``taken`` by an audit as training data."""
    trainings = [training for training in case.history if taken and holds_all(_data_of(training), taken, report)]
    return [reading for reading in map(_training, trainings) if reading is not None]


def _why_other_fields(readings: Sequence[TrainingParameters], asked: AskedAudit) -> str:
    """Why the audit scored fields that the training did not read; empty if the fields are the same."""
    for reading in readings:
        for name, (option, usual) in _COLUMNS.items():
            read, audited = getattr(reading, name), getattr(asked, name)
            # Pairs have no field called text: their default source field is a prompt.
            same = read == audited if reading.task == _PAIRS else (read or usual) == (audited or usual)
            if not same:
                audited_field, known_field = (
                    repr(field) if field else "the default field" for field in (audited, read)
                )
                return f"it audited {audited_field} of the records, and the training read {known_field} ({option})"
    return ""


def _why_other_bits(case: JudgedModel, stated: AuditParameters) -> str:
    """Why the audited adapter had another base than in training, which weakens attacks; empty if it had the same."""
    trainings = filter(None, map(_training, (*case.writers, *case.inherited)))
    last = next((training.base_bits for training in trainings), stated.base_bits)
    if last == stated.base_bits:
        return ""
    audited, trained = ("in full" if bits is None else f"in {bits} bits" for bits in (stated.base_bits, last))
    return f"it held the adapter's base {audited}, and the training held it {trained} (--base-bits)"


def _why_cut(readings: Sequence[TrainingParameters], stated: AuditParameters) -> str:
    """How members were truncated although the training read further; empty if they were not."""
    if not (stated.cut or {}).get(MEMBERS, 0) or stated.max_length is None:
        return ""
    how_cut = f"cut to their first {stated.max_length} tokens"
    if any(reading.long == "split" for reading in readings):
        return f"{how_cut}, and the training read all of them in pieces"
    limits = [reading.max_length for reading in readings if reading.max_length is not None]
    if limits:
        return f"{how_cut}, and the training read up to {max(limits)}" if stated.max_length < max(limits) else ""
    # The training's limit is unknown: the default limit is accepted, but not one that the auditor chose.
    chosen = stated.asked is not None and stated.asked.max_length is not None
    return f"{how_cut} by --max-length" if chosen else ""


def _why_other_image_size(readings: Sequence[TrainingParameters], stated: AuditParameters) -> str:
    """Why the images had another size than in training, which weakens attacks; empty if they had the same."""
    for reading in readings:
        if reading.resize != stated.resize:
            sizes = ["as they are" if size is None else "resized to {} x {}".format(*size)
                     for size in (stated.resize, reading.resize)]  # fmt: skip
            return f"it read images {sizes[0]}, and the training read them {sizes[1]} (--resize)"
    return ""


def _why_weak_attacks(asked: AskedAudit) -> str:
    if not asked.attacks or any(name in asked.attacks for name in _REQUIRED):
        return ""
    return f"it ran only {', '.join(asked.attacks)}, without {_REQUIRED[0]}, the baseline attack"


def _why_harder(stated: AuditParameters) -> str:
    """Why extraction was made harder than by default: a longer suffix, or a shorter prefix; empty if it was not."""
    if stated.extraction is None:
        return ""
    settings = stated.extraction
    prefix, suffix = settings.get("prefix_tokens"), settings.get("suffix_tokens")
    if not isinstance(suffix, int) or not isinstance(prefix, int):
        return "it does not say how many tokens of a text it gave, and how many had to be reproduced"
    if suffix > _MOST_SUFFIX:
        return f"it required {suffix} tokens to be reproduced, where {_MOST_SUFFIX} count as extracted"
    if prefix < suffix and not str(settings.get("texts", "")).startswith("source"):
        return f"it gave the model only {prefix} tokens to reproduce {suffix}; the prefix must be at least as long"
    return ""


def _scored(report: LoadedReport, stated: AuditParameters) -> int:
    """The number of members with a score."""
    counts = [item.samples.get(MEMBERS, 0) for item in report.report.evidence if item.quantity == "AUC"]
    return max(0, (stated.grouped_records or {}).get(MEMBERS) or max(counts, default=0))
