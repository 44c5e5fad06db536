"""``privctl.audit_scores``: judge the scores of attacks. The command calls ``report_on_scores``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import FilePath, as_tuple, check_numbers, claim_text, path_or_none
from privctl.domain.errors import CommandError
from privctl.domain.progress import Notify
from privctl.domain.report import LogPosition, PrivacyReport

if TYPE_CHECKING:
    from audits.mechanism_curve import Profile
    from privctl.reports.audit_log import Entry

#: The default columns of a file of scores.
_COLUMNS = {"score_column": ("score",), "member_column": "member", "id_column": "id"}
#: Options for files that scores of records may belong to.
_TIED = ("split", "model", "log")
#: The options of an audit of the scores of many models.
MANY_MODELS = {**_COLUMNS, "models": True, "split": None, "model": None, "log": None, "threshold": None}
#: Option for scores of many models -> advice to users with scores of one model's records.
_INSTEAD = {
    "claim": "of one model, a claim is tested by privctl audit membership --split, on records whose members were drawn",
    "threshold": "scores of one model's records are judged at every threshold together",
}


def report_on_scores(
    given: Sequence[Path],
    output: Path | None,
    options: Mapping[str, Any],
    *,
    notify: Notify = lambda _: None,
    on_entry: Callable[[Entry], None] | None = None,
) -> tuple[PrivacyReport, Path]:
    """Judge the scores in the ``given`` files, write the report, and return it with its path.

    The path is ``output``, or beside the model that was scored, or beside the scores. A pattern such as
    ``scores-*.parquet`` means the files that it matches. An audit with a model is entered into the model's log of
    audits: ``on_entry`` is called with the last line of it, and ``notify`` where a logged report is replaced. Raises
    the errors of ``audit_scores``.
    """
    from audits.claims import claim_of
    from audits.places import output_paths
    from audits.record_scores.parts import whole_name
    from privctl.data.places import data_files, require_inputs
    from privctl.reports.codec import encode
    from privctl.reports.files import require_not_weights_or_report
    from privctl.storage.atomic import require_absent, require_regular, write_bytes
    from privctl.storage.reader import missing_model

    _check_options(options)
    claim = claim_of(options["claim"])
    require_inputs(*given)
    files = tuple(dict.fromkeys(file for path in given for file in data_files(path)))
    model = options["model"]
    path = output or files[0].with_name(f"{whole_name(files[0]).stem}.audit.report.json")
    if model is not None:
        if not model.exists():
            raise missing_model(model)
        path, _ = output_paths(model, output)
    if os.path.realpath(path) in map(os.path.realpath, files):
        raise CommandError(f"{path} is an input of this audit; choose another --output")
    require_regular(path)
    require_absent(path, options["force"])
    require_not_weights_or_report(path, but="audit")
    if options["models"]:
        from audits.model_scores.threshold import run_scores

        if len(files) > 1:
            raise CommandError(f"--models takes the scores of all models from one file, and {len(files)} are given")
        report = run_scores(files[0], path, claim=claim, delta=options["delta"], threshold=options["threshold"])
        write_bytes(path, encode(report).encode(), replace=options["force"])
        return report, path
    return _judge_record_scores(files, path, options, notify, on_entry), path


def _judge_record_scores(
    files: Sequence[Path],
    path: Path,
    options: Mapping[str, Any],
    notify: Notify,
    on_entry: Callable[[Entry], None] | None,
) -> PrivacyReport:
    """Judge the scores of records in ``files``, write the report to ``path``, and return it."""
    from audits.record_scores.audit import run_record_scores
    from audits.record_scores.of_model import scored_model
    from audits.record_scores.table import ScoreColumns
    from audits.split.drawn import read_split
    from audits.split.manifest import manifest_at
    from audits.whole.log_entry import log_result, logged, logged_beside
    from privctl.reports.codec import encode
    from privctl.storage.atomic import write_bytes

    columns = ScoreColumns(
        record=options["id_column"],
        member=options["member_column"],
        scores=tuple(dict.fromkeys(options["score_column"])),
    )
    split, place = options["split"], options["model"]
    log = None if place is None else logged_beside(place, path, options["log"], notify)
    drawn = None if split is None else read_split(manifest_at(split))
    model = None if place is None else scored_model(place, path, _profile(split))
    with ExitStack() as stack:

        def enter() -> LogPosition | None:
            given_options = {
                name: options[name] for name in ("split", "least_auc", "delta") if options[name] is not None
            }
            settings = {"scores": list(files), "columns": columns, **given_options}
            return stack.enter_context(logged(log, path, () if model is None else model.inputs, settings))

        report = run_record_scores(
            files,
            path,
            columns=columns,
            least_auc=options["least_auc"],
            split=drawn,
            delta=options["delta"],
            model=model,
            enter=enter,
        )
        write_bytes(path, encode(report).encode(), replace=options["force"])
    entry = log_result(report, log)
    if on_entry is not None and entry is not None:
        on_entry(entry)
    return report


def _profile(split: Path | None) -> Profile | None:
    """The function that computes the privacy curve of a mechanism; None without a split, which alone tests it."""
    if split is None:
        return None
    from privctl.accounting.profile import profile

    return profile


def _check_options(options: Mapping[str, Any]) -> None:
    from audits.whole.options import DEFAULTS, flag_of

    if options["models"]:
        usual = {**_COLUMNS, **dict.fromkeys(_TIED), "least_auc": DEFAULTS["least_auc"]}
        for name, default in usual.items():
            if options[name] != default:
                raise CommandError(f"{flag_of(name)} is for scores of records; remove it, or --models")
        return
    if options["log"] is not None and options["model"] is None:
        raise CommandError("--log enters audits of a model, and these scores are tied to none; give --model too")
    if options["delta"] is not None and options["split"] is None:
        raise CommandError("--delta needs scores of many models or of a split; give --models or --split too")
    for name in ("claim", "threshold"):
        if options[name] is not None:
            raise CommandError(
                f"{flag_of(name)} needs scores of many models, trained with and without one record; give those and "
                f"--models, or remove {flag_of(name)}: {_INSTEAD[name]}"
            )


def audit_scores(
    file: FilePath | Sequence[FilePath],
    *,
    score_column: str | Sequence[str] = ("score",),
    member_column: str = "member",
    id_column: str = "id",
    models: bool = False,
    split: FilePath | None = None,
    model: FilePath | None = None,
    log: FilePath | None = None,
    least_auc: float = 0.55,
    claim: str | tuple[float, float] | None = None,
    delta: float | None = None,
    threshold: float | None = None,
    output: FilePath | None = None,
    force: bool = False,
) -> PrivacyReport:
    """Judge the scores in ``file`` that another attack tool gave to records; higher scores mean likely members.

    The file is CSV, TSV, JSON lines or Parquet with a row for each record. There may be several Parquet files, or a
    pattern, such as for the parts that ``privctl audit score-records`` wrote. ``score_column`` is one column or
    several, one for each attack; ``member_column`` holds 1 and 0. ``least_auc`` is the AUC that must be detectable for
    a result without a leak to count.

    With ``models`` the file holds a score for each of many models, trained with (1) or without one record. These scores
    bound epsilon from below at ``delta`` and test ``claim``, a pair (epsilon, delta), or bound epsilon by one
    ``threshold`` that was chosen beforehand. With ``split``, the manifest of a split by ``privctl audit split``, the
    scores bound epsilon and mu from below. If its coins are those of users or other groups, groups are judged, and
    every record of them needs a score.

    ``model`` is the checkpoint that was scored, a safetensors file or a folder. The report holds its digest, so that
    ``gate``, ``verify`` and ``inspect`` find the audit, and the bounds of a split test the claims of the model's own
    report. privctl takes your word that the scores are of this model: a gate counts the audit only where its policy
    accepts the assumption ``scores of the model``. The audit is entered into the log of audits beside the model, or at
    ``log``.

    Returns the report, which is written beside the model or the scores, or to ``output``; do not publish it. A refuted
    claim is a verdict in it, not an error.

    Raises CommandError for options that do not go together and for existing files, InputError for a file without a
    finite score for each record.
    """
    options: dict[str, Any] = {
        "score_column": as_tuple(score_column), "member_column": member_column, "id_column": id_column,
        "models": models, "least_auc": least_auc, "delta": delta, "force": force,
        "threshold": threshold,
        "split": path_or_none(split), "model": path_or_none(model), "log": path_or_none(log),
        "claim": claim_text(claim),
    }  # fmt: skip
    check_numbers("audit_scores", options)
    given = [file] if isinstance(file, str | os.PathLike) else file
    if not given or not options["score_column"]:
        raise CommandError("there are no scores to judge; give a file and a column of it")
    return report_on_scores([Path(path) for path in given], path_or_none(output), options)[0]
