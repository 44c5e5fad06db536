"""What to do after an audit: advice, and a command that follows it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.guarantee import Notion
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.sample_size import rounded, times_for_area
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.chain import ChainTooLongError, ReportFiles, absolute_path, path_of, walk
from privctl.reports.files import REPORT_SUFFIX
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from privctl.show.decision import Decision, conclusion, is_reversed
from privctl.show.leaks import CANARIES, EXTRACTION, MEMBERSHIP, WITHOUT_MODEL, settings_of
from privctl.storage.folder import BASE_ROLE
from privctl.storage.json_text import parse_json
from privctl.storage.reader import ADAPTER_CONFIG, ADAPTER_NAME, SINGLE_NAME, read_named_text

#: The epsilon of the suggested training; at most half of the epsilon that the model was trained with.
_EPSILON = 8.0
_CAUSAL = "causal-lm"
_WHOLE_USERS = (
    "if all records of a user or document are in one file, audit again with --group-by FIELD, as they may be alike; "
    "otherwise "
)
_ALL_AUDITED = (
    " with more non-members, as every file that was trained on was audited; if there are none, --least-auc states how "
    "large a leak must be seen"
)
_START, _CLASSES = "START", "CLASSES"
_MOST_REPORTS = 64
#: Part of a verdict's reason: the model was trained on other data than the split's members.
_OTHER_DATA = "names other training data"
#: The same: the data given with the canaries are not those that were planted.
_OTHER_BYTES = "other bytes than the one that was planted"
_DATA = ("train", "members", "planted", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """The ``advice``, and the ``command`` for a shell; empty if the report alone does not determine one."""

    advice: str
    command: str = ""


def next_step(report: PrivacyReport, report_path: Path, *, repeated: bool = False) -> NextStep:
    """What to do after the audit whose ``report`` is at ``report_path``. Paths are relative to its folder.

    ``repeated``: the audit found training records that repeat others.
    """
    files = {item.role: path_of(report_path, item) for item in reversed(report.inputs)}
    decision = conclusion(report).decision
    both = _member_files(files)
    if decision is Decision.WITHHOLD and both and is_reversed(report):
        return _swapped(report, report_path, both)
    if decision in (Decision.WITHHOLD, Decision.SLIGHT):
        return _train_again(report, report_path, files, repeated=repeated)
    if decision is Decision.INCONCLUSIVE:
        return _audit_again(report, report_path, files)
    if decision is Decision.NOTHING and both and (users := _users(report, report_path)) is not None:
        return _audit_by_user(report, report_path, both, users)
    if decision is Decision.UNTESTED:
        return NextStep(advice="test a claim with --claim EPS,DELTA")
    model = _model(report.inputs, report_path)
    if both and EXTRACTION not in _subjects(report) and settings_of(report).task == _CAUSAL:
        words: tuple[str | Path, ...] = (
            "--train",
            both[0],
            "--held-out",
            both[1],
            *_columns(report),
            "-o",
            _unused_name(report_path),
        )
        advice = "test whether the model reproduces its training records word for word"
        return NextStep(advice=advice, command=_command_line("audit", *_model_words(report, report_path), *words))
    if model is None:
        return NextStep(advice="check the report against your policy (`privctl gate`)")
    return NextStep(
        advice="check the reports next to the model against your policy", command=_command_line("gate", model)
    )


def _train_again(report: PrivacyReport, report_path: Path, files: Mapping[str, Path], *, repeated: bool) -> NextStep:
    training = _training(report, report_path)
    private = "a smaller epsilon" if _epsilons(training) else "differential privacy at an epsilon that suits"
    advice = ("remove repetitions from the data, " if repeated else "") + (
        f"train again with {private}, and audit the result; until then treat the model as you treat its data"
    )
    data = next((files[role] for role in _DATA if role in files), None)
    model = _model(report.inputs, report_path)
    if data is None or model is None:
        return NextStep(advice=advice)
    start, task = _trained_from(report, report_path, training), settings_of(report).task or _CAUSAL
    words: list[str | Path] = ["retrain", "dp-sgd", start or _START, *_new_adapter(report, report_path), "--data", data]
    if task != _CAUSAL:
        words += ["--task", task]
    classes = task.endswith("-classification")
    if classes:
        words += ["--labels", _CLASSES]
    words += _columns(report)
    unit = (None if training is None else _unit(training[1])) or settings_of(report).group_by
    words += [] if unit is None else ["--unit", unit]
    output = model.with_name(f"{model.name.removesuffix('.safetensors')}.dp-sgd")
    command = _command_line(*words, "--epsilon", _smaller_epsilon(training), "-o", output)
    named = [] if start else [f"{_START} is the model as it was before it was trained on these records"]
    named += [f"{_CLASSES} are the names of the classes, which must be public"] if classes else []
    return NextStep(advice="; ".join((advice, *named)), command=command)


def _audit_again(report: PrivacyReport, report_path: Path, files: Mapping[str, Path]) -> NextStep:
    undecided = next(verdict for verdict in report.verdicts if verdict.outcome is Outcome.INCONCLUSIVE)
    audited, both = _model_words(report, report_path), _member_files(files)
    again = ("-o", _unused_name(report_path))
    if undecided.subject == EXTRACTION and "heldout" not in files and "train" in files:
        held_out = both[1] if both else "HELD-OUT.jsonl"
        words = ("--train", files["train"], "--held-out", held_out, *_length_options(report), *_columns(report))
        advice = "compare with similar records that were not trained on"
        return NextStep(advice=advice, command=_command_line("audit", *audited, *words, *again))
    if undecided.subject == EXTRACTION and (texts := _texts_needed(report)) is not None:
        files_needed = ("--train", "MORE-TRAIN.jsonl", "--held-out", "MORE-HELD-OUT.jsonl")
        words = (*files_needed, *_length_options(report), *_columns(report))
        advice = f"audit again with about {texts:,} records of each file"
        return NextStep(advice=advice, command=_command_line("audit", *audited, *words, *again))
    if undecided.subject == EXTRACTION and "split" in files:
        return NextStep(
            advice="split more records before the next training (`privctl audit split`), and audit that model; finding "
            "nothing is no proof of privacy"
        )
    if undecided.subject == CANARIES and _OTHER_BYTES in undecided.reason:
        return NextStep(advice="give the file that was planted as --canary-data, and audit again")
    if undecided.subject == CANARIES and "names other data than the planted" in undecided.reason:
        return NextStep(advice="audit the model that was trained on the planted data")
    if undecided.subject == CANARIES:
        return NextStep(
            advice="plant more canaries before the next training (`privctl canary plant`), and audit that model; "
            "finding nothing is no proof of privacy"
        )
    if undecided.subject == MEMBERSHIP and "scores" in files and is_reversed(report):
        return NextStep(advice="negate the scores if they are losses, and audit them again")
    if undecided.subject != MEMBERSHIP or not both:
        return NextStep(advice="resolve the reason given above and audit again; finding nothing is no proof of privacy")
    return _membership_again(report, report_path, undecided, both, drawn="split" in files)


def _membership_again(
    report: PrivacyReport, report_path: Path, undecided: Verdict, both: tuple[Path, Path], *, drawn: bool
) -> NextStep:
    if "swapped" in undecided.reason:
        return _swapped(report, report_path, both)
    users = _users(report, report_path)
    if users is not None and not drawn:  # records of one user are alike, which confounds too
        return _audit_by_user(report, report_path, both, users)
    if undecided.reason.startswith("confounded"):
        whole = "" if drawn or settings_of(report).group_by else _WHOLE_USERS
        return NextStep(
            advice=f"{whole}draw a split before the next training (`privctl audit split`), and audit with it"
        )
    if drawn:
        return _split_again(report, undecided, users)
    training, audited = _training(report, report_path), _digests(report, "members")
    every = training is not None and bool(trained_on := _digests(training[1], "data")) and trained_on <= audited
    members = both[0] if every else "MORE-MEMBERS.jsonl"
    words = ("--members", members, "--nonmembers", "MORE-NONMEMBERS.jsonl", *_reading_options(report))
    command = _command_line("audit", *_model_words(report, report_path), *words, "-o", _unused_name(report_path))
    return NextStep(advice=f"audit again{_ALL_AUDITED if every else _how_many(report)}", command=command)


def _swapped(report: PrivacyReport, report_path: Path, both: tuple[Path, Path]) -> NextStep:
    files, again = ("--members", both[1], "--nonmembers", both[0]), ("-o", _unused_name(report_path))
    words = (*_model_words(report, report_path), *files, *_reading_options(report), *again)
    return NextStep(advice="check whether the files were swapped", command=_command_line("audit", *words))


def _audit_by_user(report: PrivacyReport, report_path: Path, both: tuple[Path, Path], users: str) -> NextStep:
    words: tuple[str | Path, ...] = (
        "--members",
        both[0],
        "--nonmembers",
        both[1],
        "--group-by",
        users,
        *_columns(report),
    )
    return NextStep(
        advice=f"audit all records with one value of {users!r} together, as the training protected them; an audit of "
        "single records detects less",
        command=_command_line("audit", *_model_words(report, report_path), *words, "-o", _unused_name(report_path)),
    )


def _split_again(report: PrivacyReport, undecided: Verdict, users: str | None) -> NextStep:
    """A split cannot be enlarged after training: more records need another split and another training."""
    if _OTHER_DATA in undecided.reason:
        return NextStep(advice="audit the model that was trained on the members of this split")
    enough, field = _records_needed(report) if users is None else None, users or settings_of(report).group_by
    what, groups = ("records", ()) if field is None else ("groups", ("--group-by", field))
    number = str(sum(enough)) if enough else what.upper()
    return NextStep(
        advice=f"draw a split of {f'about {number}' if enough else 'more'} {what}, train on its members, and audit "
        "that model; without so many, plant canaries",
        command=_command_line(
            "audit",
            "split",
            "DATA.jsonl",
            *groups,
            *_columns(report, labels=False),
            "--records",
            number,
            "-o",
            "split-2",
        ),
    )


def _how_many(report: PrivacyReport) -> str:
    """How many records an audit needs, in words."""
    enough = _records_needed(report)
    what = "" if settings_of(report).group_by is None else "groups of "
    if not enough:
        return " with more records"
    return f" with about {enough[0]} {what}members and {enough[1]} {what}non-members"


def _digests(report: PrivacyReport, role: str) -> set[str]:
    return {item.digest for item in report.inputs if item.role == role}


def _reading_options(report: PrivacyReport) -> tuple[str, ...]:
    """The options for groups and for fields of the records, as in the audit."""
    field = settings_of(report).group_by
    return (*(() if field is None else ("--group-by", field)), *_columns(report))


def _columns(report: PrivacyReport, *, labels: bool = True) -> tuple[str, ...]:
    """The options that name fields of the records, if the audit used any."""
    asked = settings_of(report).asked or AskedAudit()
    named = [("--text-column", asked.text_column), *([("--label-column", asked.label_column)] if labels else [])]
    return tuple(word for flag, field in named if field is not None for word in (flag, field))


def _users(report: PrivacyReport, report_path: Path) -> str | None:
    """The field whose values the training protected; None if the audit judged groups or no field is known."""
    training = _training(report, report_path)
    return None if training is None or settings_of(report).group_by is not None else _unit(training[1])


def _unit(training: PrivacyReport) -> str | None:
    try:
        return parameters_as(TrainingParameters, training).unit
    except ParametersError:
        return None


def _records_needed(report: PrivacyReport) -> tuple[int, int] | None:
    """How many members and non-members an audit needs to detect the AUC that it was asked for; None if unknown."""
    areas = [
        item
        for item in report.evidence
        if item.quantity == "AUC" and item.method not in WITHOUT_MODEL and item.sees is not None
    ]
    sharpest = min(areas, key=lambda item: item.sees or 1.0, default=None)
    wanted = settings_of(report).least_auc
    if sharpest is None or sharpest.sees is None or wanted is None or not wanted > 0.5:
        return None
    sizes = [sharpest.samples.get(side, 0) for side in ("members", "nonmembers")]
    if not all(sizes):
        return None
    more = times_for_area(sharpest.sees, wanted, *sizes)
    members, others = (rounded(more * size) for size in sizes)
    return members, others


def _texts_needed(report: PrivacyReport) -> int | None:
    """How many texts per file would decide on extraction, as its verdict states; None if unknown."""
    limited = [item for item in report.evidence if item.method == "extraction" and "needed" in item.details]
    growing = [item for item in limited if (item.estimate or 0.0) > 0]
    least = min((item.details["needed"] for item in growing or limited), default=None)
    return None if least is None else rounded(least)


def _length_options(report: PrivacyReport) -> tuple[str, ...]:
    """The options for prefix and suffix lengths that are not the defaults."""
    settings = settings_of(report).extraction or {}
    names = (("--prefix-tokens", "prefix_tokens"), ("--suffix-tokens", "suffix_tokens"))
    return tuple(
        word for flag, name in names if settings.get(name) not in (None, 50) for word in (flag, str(settings[name]))
    )


def _training(report: PrivacyReport, report_path: Path) -> tuple[Path, PrivacyReport] | None:
    """The path and report of the model's last training, if the unchanged parents of the audit lead to one."""
    reports = ReportFiles()
    places = ((path_of(report_path, parent), parent.digest) for parent in report.parents)
    parents = [path for path, digest in places if reports.at(path).digest == digest]
    try:
        for visit in walk(parents, reports, follow=lambda visit: visit.unchanged, most=_MOST_REPORTS):
            maker = visit.file.report
            if visit.unchanged and maker is not None and maker.step == "retrain":
                return visit.file.path, maker
    except ChainTooLongError:
        return None
    return None


def _trained_from(report: PrivacyReport, report_path: Path, training: tuple[Path, PrivacyReport] | None) -> Path | None:
    """The model from which the last training started, or the audit's --base; None if neither is known."""
    base = _model([item for item in report.inputs if item.role.startswith("base ")], report_path, "base ")
    base = base or _base_model(report, report_path)
    if base is not None or training is None:
        return base
    config = next((item for item in training[1].inputs if item.role == "start-config.json"), None)
    folder = None if config is None else path_of(training[0], config).parent
    return folder if folder is not None and folder.is_dir() else None


def _smaller_epsilon(training: tuple[Path, PrivacyReport] | None) -> str:
    """An epsilon of at most ``_EPSILON`` and half of what the model was trained with, as text."""
    return f"{min([_EPSILON, *(epsilon / 2 for epsilon in _epsilons(training))]):.1g}"


def _epsilons(training: tuple[Path, PrivacyReport] | None) -> list[float]:
    guarantees = training[1].guarantees if training else ()
    return [each.epsilon for each in guarantees if each.epsilon and each.notion is Notion.APPROXIMATE_DP]


def _model(inputs: Iterable[Artifact], report_path: Path, prefix: str = "") -> Path | None:
    """The audited model's path for the command line: its folder, or a single file with a name of its own."""
    weights = [path_of(report_path, item) for item in inputs if item.role == f"{prefix}model"]
    if not weights:
        return None
    alone = len(weights) == 1 and weights[0].name not in (SINGLE_NAME, ADAPTER_NAME)
    return weights[0] if alone else weights[0].parent


def _base_model(report: PrivacyReport, report_path: Path) -> Path | None:
    """The folder of the audited adapter's base model; None if the model is not an adapter."""
    config = next((item for item in report.inputs if item.role == f"{BASE_ROLE}config.json"), None)
    return None if config is None else path_of(report_path, config).parent


def _model_words(report: PrivacyReport, report_path: Path) -> tuple[str | Path | None, ...]:
    """The audited model as words of the command line, with --base for an adapter."""
    base = _base_model(report, report_path)
    return (_model(report.inputs, report_path), *(() if base is None else ("--base", base)))


def _new_adapter(report: PrivacyReport, report_path: Path) -> tuple[str, ...]:
    """The options that train an adapter like the audited one, if its configuration can be read."""
    if _base_model(report, report_path) is None:
        return ()
    adapter_config = next(
        (path_of(report_path, item) for item in report.inputs if Path(item.path).name == ADAPTER_CONFIG), None
    )
    try:
        config = parse_json(read_named_text(adapter_config), str(adapter_config)) if adapter_config else None
    except PrivctlError:
        config = None
    rank = config.get("r") if isinstance(config, dict) else None
    return ("--lora-rank", str(rank), "--save-adapter") if type(rank) is int and rank > 0 else ()


def _member_files(files: Mapping[str, Path]) -> tuple[Path, Path] | None:
    return (files["members"], files["nonmembers"]) if {"members", "nonmembers"} <= files.keys() else None


def _subjects(report: PrivacyReport) -> set[str]:
    return {verdict.subject for verdict in report.verdicts}


def _unused_name(taken_path: Path) -> Path:
    """An unused name for a report in the same folder as ``taken_path``."""
    stem = taken_path.name.removesuffix(".json").removesuffix(".report")
    number = 2
    while os.path.lexists(taken_path.with_name(f"{stem}-{number}{REPORT_SUFFIX}")):
        number += 1
    return taken_path.with_name(f"{stem}-{number}{REPORT_SUFFIX}")


def _command_line(*words: str | Path | None) -> str:
    """The command line; paths below the current folder are relative to it."""
    shown = [_shell_path(word) if isinstance(word, Path) else word or "MODEL" for word in words]
    return shlex.join(["privctl", *shown])


def _shell_path(path: Path) -> str:
    """``path`` for a command line; it never begins with a dash."""
    absolute, working_folder = absolute_path(path), Path.cwd()
    name = os.path.relpath(absolute, working_folder) if absolute.is_relative_to(working_folder) else str(absolute)
    return f"./{name}" if name.startswith("-") else name
