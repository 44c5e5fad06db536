"""Whether an audit attacked what the model was trained on: all of its data, by the same fields, and to their ends.

A clean audit says nothing about records that it did not score. Whoever chooses these could leave out what the model
remembers best.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from privctl.domain.report import Artifact
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from verify.audits.split.drawn import drawn_from

#: The roles of what an audit took as training data, and of what it compared these with.
MEMBERS, TRAIN = "members", "train"
_UNSEEN = {MEMBERS: "nonmembers", TRAIN: "heldout"}
#: One of these must be among attacks that were chosen: the one that others are compared with, or the one made of all.
_REQUIRED = ("loss", "fused")
#: Suffixes are this long where nobody says otherwise; longer ones come out less often.
_MOST_SUFFIX = 50
#: Why members were not scored, of those that the model may know: by what the two files hold, and by what it gives.
_UNSCORED = (
    "occurring among members and non-members alike",
    "repeated, while others occur in both files",
    "given NaN or infinite scores by the model",
)
_PAIRS = "seq2seq-lm"
#: What names a field, its option, and the field that is read first where none is named.
_COLUMNS = {"text_column": ("--text-column", "text"), "label_column": ("--label-column", "label")}


def why_not_attacked(case: JudgedModel, report: LoadedReport, role: str) -> str:
    """Why an audit of records in this ``role`` does not show how well the model keeps its training data; or empty."""
    taken = [a for a in report.report.inputs if a.role == role]
    if reason := _why_other_records(case, report, role, taken):
        return reason
    try:
        stated = parameters_as(AuditParameters, report.report)
    except ParametersError as fault:
        return f"how it attacked them is not known: {fault}"
    if stated.score_conditions is not None:
        return ""  # scores of another tool, which a policy accepts or does not
    asked = stated.asked or AskedAudit()
    readings = _readings(case, report, taken)
    reason = _why_other_fields(readings, asked)
    if role == TRAIN:
        return reason or _why_hard(stated)
    return reason or _why_other_size(readings, stated) or _why_weak(asked)


def unaudited(case: JudgedModel, audits: Sequence[LoadedReport], role: str) -> Artifact | None:
    """A file that the model's last training read, and none of the ``audits`` took in this ``role``; None if none."""
    last = next((each for each in (*case.makers, *case.inherited) if _data_of(each)), None)
    if last is None:
        return None
    seen = {a.digest for each in audits for a in each.report.inputs if a.role == role}
    seen |= {drawn_from(each.path, each.report) for each in audits}
    files = (a for a in last.report.inputs if a.role == "data")
    return next((a for a in files if a.digest not in seen), None) if any(seen) else None


def on_whose_word(case: JudgedModel) -> str:
    """What a finding adds where no report says which records the model was trained on."""
    if any(_data_of(each) for each in case.history):
        return ""
    return "; no report names what the model was trained on, so that it was these records is the audit's word"


def texts_looked_at(audits: Sequence[LoadedReport]) -> str:
    """What a finding on extraction adds where an audit looked for fewer texts than the training file has records."""
    for report in audits:
        try:
            settings = parameters_as(AuditParameters, report.report).extraction or {}
        except ParametersError:
            continue
        drawn, records = settings.get("drawn"), settings.get("training_records")
        if isinstance(drawn, int) and isinstance(records, int) and drawn < records:
            return (
                f"; {drawn} texts of {records} training records were looked for: others are too short, repeat or "
                "were not drawn"
            )
    return ""


def share_unscored(case: JudgedModel, report: LoadedReport) -> tuple[float, str]:
    """The largest share of the members that were not scored to their end though the model may know them, and why not.

    Copies of a record count each, so that it is at least the share of different records.
    """
    try:
        stated = parameters_as(AuditParameters, report.report)
    except ParametersError:
        return 0.0, ""  # such an audit does not count
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
    """Whether the data ``trained`` on, by their digests, hold all records that an audit ``report`` has ``taken``.

    They are these files, or one that the split was drawn from, as its manifest and the files beside it show.
    """
    if all(artifact.digest in trained for artifact in taken):
        return True
    return all(each.role in _UNSEEN for each in taken) and drawn_from(report.path, report.report) in trained


def _why_other_records(case: JudgedModel, report: LoadedReport, role: str, taken: Sequence[Artifact]) -> str:
    """Why an audit does not compare records that were trained on with others; empty where it does."""
    trained = {digest for each in case.history for digest in _data_of(each)}
    if any(_names_no_data(each) for each in case.history):
        return "a training's report does not name its data, so that nothing shows that these records were trained on"
    learned = [a for a in report.report.inputs if a.role == _UNSEEN[role] and a.digest in trained]
    if learned:
        return f"the file it took as records not trained on, {learned[0].path}, was trained on by the model's reports"
    if not trained or holds_all(trained, taken, report):
        return ""
    return f"the file it took as training data, {taken[0].path}, is none that the model's reports say was trained on"


def _data_of(report: LoadedReport) -> set[str]:
    return {a.digest for a in report.report.inputs if a.role == "data"}


def _names_no_data(report: LoadedReport) -> bool:
    """Whether it is of a training by privctl, whose reports all name their data, and does not."""
    return report.report.step == "retrain" and not _data_of(report)


def _training(report: LoadedReport) -> TrainingParameters | None:
    try:
        return parameters_as(TrainingParameters, report.report) if report.report.step == "retrain" else None
    except ParametersError:
        return None  # verify's to say


def _readings(case: JudgedModel, report: LoadedReport, taken: Sequence[Artifact]) -> list[TrainingParameters]:
    """What the trainings that read what an audit has ``taken`` as training data say of how they read it."""
    trainings = [each for each in case.history if taken and holds_all(_data_of(each), taken, report)]
    return [each for each in map(_training, trainings) if each is not None]


def _why_other_fields(readings: Sequence[TrainingParameters], asked: AskedAudit) -> str:
    """Each training read the fields that it names, or the usual ones; other fields hold what it never saw."""
    for reading in readings:
        for name, (option, usual) in _COLUMNS.items():
            read, audited = getattr(reading, name), getattr(asked, name)
            # A pair has no field called text: without names its source is a prompt.
            same = read == audited if reading.task == _PAIRS else (read or usual) == (audited or usual)
            if not same:
                found, known = (repr(each) if each else "the usual field" for each in (audited, read))
                return f"it audited {found} of the records, and the training read {known} ({option})"
    return ""


def _why_cut(readings: Sequence[TrainingParameters], stated: AuditParameters) -> str:
    """Of members that were cut, what the training read behind the cut was not scored."""
    if not (stated.cut or {}).get(MEMBERS, 0) or stated.max_length is None:
        return ""
    said = f"cut to their first {stated.max_length} tokens"
    if any(each.long == "split" for each in readings):
        return f"{said}, and the training read all of them in pieces"
    limits = [each.max_length for each in readings if each.max_length is not None]
    if limits:
        return f"{said}, and the training read up to {max(limits)}" if stated.max_length < max(limits) else ""
    # Nothing says how much a training read: the usual limit counts, and no choice of the auditor's.
    chosen = stated.asked is not None and stated.asked.max_length is not None
    return f"{said} by --max-length" if chosen else ""


def _why_other_size(readings: Sequence[TrainingParameters], stated: AuditParameters) -> str:
    """Images of another size than the model learned may look new to it."""
    for reading in readings:
        if reading.resize != stated.resize:
            sizes = ["as they are" if each is None else "resized to {} x {}".format(*each)
                     for each in (stated.resize, reading.resize)]  # fmt: skip
            return f"it read images {sizes[0]}, and the training read them {sizes[1]} (--resize)"
    return ""


def _why_weak(asked: AskedAudit) -> str:
    if not asked.attacks or any(name in asked.attacks for name in _REQUIRED):
        return ""
    return f"it ran {', '.join(asked.attacks)} by choice, and not {_REQUIRED[0]}, which others are compared with"


def _why_hard(stated: AuditParameters) -> str:
    """Text comes out less often if more of it must, or less of it is given."""
    settings = stated.extraction or {}
    prefix, suffix = settings.get("prefix_tokens"), settings.get("suffix_tokens")
    if not isinstance(suffix, int) or not isinstance(prefix, int):
        return ""
    if suffix > _MOST_SUFFIX:
        return f"{suffix} tokens had to come out, and text counts as extracted from {_MOST_SUFFIX} on"
    if prefix < suffix and not str(settings.get("texts", "")).startswith("source"):
        return f"{prefix} tokens were given for {suffix} to come out, where an attacker knows at least as many"
    return ""


def _scored(report: LoadedReport, stated: AuditParameters) -> int:
    """How many members have a score."""
    counts = [item.samples.get(MEMBERS, 0) for item in report.report.evidence if item.quantity == "AUC"]
    return max(0, (stated.grouped_records or {}).get(MEMBERS) or max(counts, default=0))
