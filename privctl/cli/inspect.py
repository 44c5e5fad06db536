"""``privctl inspect``: the tensors of a checkpoint and the reports behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import IN_GROUP
from privctl.cli.options import MODEL, common, show, verbose
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privctl.domain.report import PrivacyReport
    from privctl.domain.verdict import Verdict
    from privctl.reports.audit_log import AuditLog
    from privctl.show.text.inspect import FileRow
    from privctl.storage.digest import TensorHasher
    from privctl.storage.reader import Checkpoint, SafetensorsFile
    from verify.files.integrity import ChainLink


@click.command()
@click.argument("model", type=MODEL)
@click.option(
    "--report", type=click.Path(), help="The model's report, where neither its header nor a file beside it leads to it."
)
@click.option(
    "--group-size",
    type=IN_GROUP,
    help="Also show the epsilon of this many examples that are added or removed together.",
)
@click.option(
    "--write-report",
    is_flag=True,
    help="Write a report for a model that has none: digests of its files, and no privacy guarantee.",
)
@common
@click.pass_context
def inspect(
    ctx: click.Context,
    model: str,
    report: str | None,
    group_size: int | None,
    write_report: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the chain of reports behind MODEL, and its tensors with their digests.

    The digests of the model, of its companion files and of every report in the chain are recomputed. Exit code 1: one
    of them does not match, or a report beside the model, under its name, describes other weights. 3: the model's own
    report, or a file that it names, is missing. The claims of the reports are shown as written, not recomputed. Without
    --verbose, tensors whose names differ only in numbers share a line.

    With --group-size K, the guarantee for one example is converted to one for K examples, such as all records of one
    user. It is computed from the ledger, by the privacy loss distribution of the group, in real arithmetic.

    With --write-report, a model of another program gets a report that covers only its files. Then verify, gate and
    report accept the model, and audits and noise can refer to it. A gate with a limit on epsilon fails.

    For a log of audits (.jsonl), inspect lists the audits and prints the head of the hash chain, which covers all
    lines; exit code 3 means that the chain is broken.

    \b
    Example:
      privctl inspect model.private.safetensors
      privctl inspect private/ --group-size 5
      privctl inspect model/ --write-report
      privctl inspect m.audits.jsonl
    """
    from privctl.reports.files import pointer_of, read_report
    from privctl.show.progress import progress
    from privctl.storage.digest import hash_tensors
    from privctl.storage.reader import open_checkpoint
    from verify.files.integrity import check_beside, check_chain

    if model.endswith(".jsonl"):
        if group_size is not None:
            raise CommandError("--group-size does not apply to a log of audits; remove it")
        if write_report:
            raise CommandError("--write-report does not apply to a log of audits; remove it")
        _of_log(Path(model), as_json=as_json)
        return
    _require_no_report(Path(model))
    if write_report:
        _first_report(model, report, quiet=quiet)
    with open_checkpoint(Path(model)) as checkpoint:
        with progress("digests", sum(file.size for file in checkpoint.files), quiet=quiet) as advance:
            hashed = {file.path: hash_tensors(file, advance) for file in checkpoint.files}
        if report:
            read_report(Path(report))  # raises unless the named file exists and is a report
        start = Path(report) if report else _start(pointer_of(checkpoint), Path(model), hashed)
        _require_no_scores(Path(model), start)
        chain = check_chain(start, hashed) if start else ()
        beside = tuple(check_beside(_beside(checkpoint, start), hashed))
        own = chain[0].report if chain else None
        group = None if group_size is None else _of_group(own, model, group_size)
        if as_json:
            from privctl.reports.codec import encode

            found = _as_report(checkpoint, hashed, chain, beside)
            show(encode(found if group is None else replace(found, parameters={"group": group})), as_json=True)
        else:
            from privctl.show.text.inspect import ChainRow, inspect_text

            rows = [
                ChainRow(depth=link.depth, path=link.path, report=link.report, verdicts=link.verdicts) for link in chain
            ]
            files = [_file_row(file, hashed[file.path]) for file in checkpoint.files]
            show(inspect_text(files, rows, beside, group, verbose=verbose()))
    if beside or any(v.outcome is Outcome.REFUTED for link in chain for v in link.verdicts):
        ctx.exit(ExitCode.REFUTED)
    if any(v.outcome is Outcome.INCONCLUSIVE for link in chain[:1] for v in link.verdicts):
        ctx.exit(ExitCode.BAD_INPUT)


def _first_report(model: str, given: str | None, *, quiet: bool) -> None:
    from privctl.integrations.from_elsewhere import from_elsewhere
    from privctl.reports.files import report_beside
    from privctl.show.progress import note

    if given is not None:
        raise CommandError("--write-report is for a model that has no report; remove it, or --report")
    from_elsewhere(model)
    note(f"wrote {report_beside(Path(model))}: digests of the model's files, and no privacy guarantee", quiet=quiet)


def _of_group(report: PrivacyReport | None, model: str, size: int) -> dict[str, float | None]:
    """Epsilon of ``size`` examples together and of one, at the delta of the report's guarantee.

    An epsilon is None where no finite one follows. Raises CommandError where the report states no proved or conditional
    guarantee for one example, and where one of its steps has no bound for groups.
    """
    from privctl.accounting.guarantees import finite
    from privctl.accounting.ledger import epsilon_bound
    from privctl.domain.events import Ledger
    from privctl.domain.groups import of_group
    from privctl.domain.guarantee import Notion, PrivacyUnit, Status

    mechanism = None if report is None else report.mechanism
    standing = (Status.PROVED, Status.CONDITIONAL)
    stated = [
        g for g in ([] if report is None else report.guarantees)
        if g.notion is Notion.APPROXIMATE_DP and g.unit is PrivacyUnit.EXAMPLE and g.status in standing and g.delta > 0
    ]  # fmt: skip
    if not isinstance(mechanism, Ledger) or not stated:
        raise CommandError(
            f"--group-size {size} needs a report with its ledger and a proved or conditional guarantee for one "
            f"example, which {model} does not have; remove it"
        )
    try:
        together = epsilon_bound(of_group(mechanism, size), stated[0].delta)
    except ValueError as error:
        raise CommandError(f"--{str(error).replace('group_size', 'group-size', 1)}") from None
    return {"size": size, "delta": stated[0].delta, "epsilon": finite(together), "epsilon_of_one": stated[0].epsilon}


def _of_log(path: Path, *, as_json: bool) -> None:
    from privctl.domain.errors import InputError
    from privctl.reports.audit_log import is_log, read_log

    if path.is_file() and not is_log(path):
        raise InputError(
            f"{path} is no log of audits; inspect takes one (NAME.audits.jsonl), a model's folder or a .safetensors "
            "file"
        )
    log = read_log(path)
    if as_json:
        from privctl.reports.codec import encode

        show(encode(_log_as_report(log)), as_json=True)
        return
    from privctl.show.text.audit_log import LogRow, audit_log_text

    rows = []
    for audit in log.audits:
        end = "" if audit.end is None else str(audit.end.details.get("reason") or audit.end.details["report"])
        began = audit.begun
        rows.append(
            LogRow(
                line=began.number,
                at=began.at,
                folder=began.details["folder"],
                written=audit.report is not None,
                end=end,
                worst=audit.end.details["worst"] if audit.end is not None and audit.report else {},
            )
        )
    show(audit_log_text(str(path), rows, lines=len(log.entries), head=log.head, torn=log.torn))


def _log_as_report(log: AuditLog) -> PrivacyReport:
    from privctl.domain.report import Artifact, PrivacyReport
    from privctl.reports.files import now, versions
    from privctl.storage.digest import file_digest

    place = Artifact(role="log", path=str(log.path), digest=file_digest(log.path), bytes=log.path.stat().st_size)
    audits = [
        {
            "line": audit.begun.number,
            "begun": audit.begun.at,
            **audit.begun.details,
            "end": audit.end and audit.end.details,
        }
        for audit in log.audits
    ]
    return PrivacyReport(
        step="inspect",
        created=now(),
        versions=versions(("blake3",)),
        inputs=(place,),
        parameters={"lines": len(log.entries), "head": log.head, "audits": audits},
    )


def _require_no_report(path: Path) -> None:
    """Raise InputError where ``path`` is a JSON file: inspect reads models, and other commands read reports."""
    from privctl.domain.errors import InputError
    from privctl.reports.files import read_report

    if path.suffix != ".json" or path.is_dir():
        return
    read_report(path)  # raises the right error where it is not a report
    raise InputError(
        f"{path} is a report, not a model; give the model that it describes, or use privctl verify {path} to check it "
        f"or privctl report {path} to make a page of it"
    )


def _require_no_scores(path: Path, report: Path | None) -> None:
    """Raise InputError where ``path`` is the file of scores that the audit of ``report`` wrote."""
    from privctl.domain.errors import InputError, PrivctlError
    from privctl.reports.files import read_report

    try:
        outputs = () if report is None else read_report(report).outputs
    except PrivctlError:
        return
    if any(each.role == "scores" and Path(each.path).name == path.name for each in outputs):
        raise InputError(
            f"{path} holds scores of an audit, not a model; use privctl verify {report} to check them, or "
            f"privctl report {report} to see what the audit found"
        )


def _beside(checkpoint: Checkpoint, start: Path | None) -> list[Path]:
    """The reports under the model's name and in its header that are not ``start``, but may be taken for its report."""
    from privctl.reports.chain import absolute_path
    from privctl.reports.files import pointer_of, report_beside

    named = (report_beside(absolute_path(checkpoint.root)), pointer_of(checkpoint))
    places = dict.fromkeys(absolute_path(path) for path in named if path is not None)
    return [place for place in places if start is None or place != absolute_path(start)]


def _start(named: Path | None, model: Path, hashed: Mapping[Path, TensorHasher]) -> Path | None:
    """The report that the header names, or where that is not there, one beside ``model`` about these weights."""
    if named is not None and named.is_file():
        return named
    return _own(model, hashed) or named


def _own(model: Path, hashed: Mapping[Path, TensorHasher]) -> Path | None:
    """The report beside ``model`` whose outputs are these weights; None where there is none, or several."""
    from privctl.domain.errors import InputError
    from privctl.reports.of_model import reports_of

    try:
        return reports_of(model, frozenset(hasher.file_digest for hasher in hashed.values())).own
    except InputError:
        return None


def _file_row(file: SafetensorsFile, hasher: TensorHasher) -> FileRow:
    from privctl.show.text.inspect import FileRow

    sizes = {tensor.name: tensor.size for tensor in file.tensors}
    return FileRow(
        path=file.path,
        bytes=file.size,
        digest=hasher.file_digest,
        tensors=[(tensor, sizes[tensor.name]) for tensor in hasher.tensors],
    )


def _as_report(
    checkpoint: Checkpoint,
    hashed: Mapping[Path, TensorHasher],
    chain: Sequence[ChainLink],
    beside: Sequence[Verdict],
) -> PrivacyReport:
    from privctl.domain.report import Artifact, ParentReport, PrivacyReport
    from privctl.reports.files import now, versions
    from privctl.storage.digest import file_digest

    inputs = tuple(
        Artifact(
            role="model",
            path=str(file.path),
            digest=hashed[file.path].file_digest,
            bytes=file.size,
            tensors=hashed[file.path].tensors,
        )
        for file in checkpoint.files
    )
    return PrivacyReport(
        step="inspect",
        created=now(),
        versions=versions(("blake3",)),
        inputs=inputs,
        verdicts=(*(verdict for link in chain for verdict in link.verdicts), *beside),
        parents=tuple(
            ParentReport(path=str(link.path), digest=file_digest(link.path)) for link in chain[:1] if link.report
        ),
    )
