"""``privctl audit`` and its subcommands: attack a model, and print what was found and what that does not prove."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.audit import options as given
from privctl.cli.groups import CommandAlone, Subcommand
from privctl.cli.numbers import SEED32
from privctl.cli.options import PATH, show, verbose
from privctl.domain.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privctl.domain.leaking import LeakingRecord
    from privctl.domain.report import PrivacyReport
    from privctl.reports.audit_log import Entry

_subcommand = partial(click.command, cls=Subcommand)


@click.command(cls=CommandAlone, shown=given.SHOWN)
@given.MODEL_OR_SUBCOMMAND
@given.taking(*given.ALL, *given.OF_ANY_MODEL)
def audit(model: str | None, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Does MODEL reveal its training data? Run every attack for which there are files.

    MODEL is a Hugging Face directory, a .safetensors file or a LoRA adapter's directory. Records are JSONL, CSV,
    Parquet, `datasets` folders or images (docs/data.md). The exit code is 1 if a claim of privacy was refuted, and 0
    otherwise: privctl gate judges all other findings. All options of the subcommands below work here too; --help-all
    shows them.

    \b
    Example:
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl
      privctl audit model/ --train train.jsonl --held-out held-out.jsonl
    """
    if options["from_scores"] is not None:
        _audit_many_models(model, output, force, as_json, quiet, options)
        return
    if model is None:
        raise CommandError(
            "there is nothing to audit; give MODEL, or a file of scores (privctl audit scores FILE, or --from-scores "
            "FILE)"
        )
    _audit_one_model(model, output, force, as_json, quiet, options)


@_subcommand(rare=given.RARE["membership"])
@given.A_MODEL
@given.taking(*given.MEMBERSHIP, *given.OF_ANY_MODEL)
def membership(model: str, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Tell members from non-members. The two files should be a random split of one source (docs/audits.md).

    \b
    Example:
      privctl audit membership model/ --members train.jsonl --nonmembers held-out.jsonl
    \f
    With --thorough, the attacks min-k++-half, surp, slope, rises, neighbour, pac, repeat, recall, con-recall,
    augmented, label-only, gradient-norm and gradient-alignment also run if they apply to MODEL. --attack runs single
    ones.
    """
    _audit_one_model(model, output, force, as_json, quiet, options)


@_subcommand()
@given.A_MODEL
@given.taking(*given.CANARIES, *given.OF_ANY_MODEL)
def canaries(model: str, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Measure what the model memorized of planted secrets.

    Secrets planted at random before training (`privctl canary plant`) give a certified lower bound on epsilon from one
    model. So does a random choice of training records (`privctl audit split`).

    \b
    Example:
      privctl audit canaries model/ --canaries planted.canaries.json --commitment blake3:...
    """
    _audit_one_model(model, output, force, as_json, quiet, options)


@_subcommand(rare=given.RARE["extraction"])
@given.A_MODEL
@given.taking(*given.EXTRACTION, *given.OF_ANY_MODEL)
def extraction(model: str, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Test which training records the model reproduces.

    \b
    Example:
      privctl audit extraction model/ --train train.jsonl --held-out held-out.jsonl --prompts p.txt
      privctl audit extraction model/ --split split/manifest.json
    """
    _audit_one_model(model, output, force, as_json, quiet, options)


@_subcommand(rare=given.RARE["secrets"])
@given.A_MODEL
@given.taking(*given.SECRETS, *given.OF_ANY_MODEL)
def secrets(model: str, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Rank true secrets among other values of the same form.

    With --plan, the audit tests whether the planned protection held. Only values drawn at random can refute a plan, so
    plant canaries and give --canaries too.

    \b
    Example:
      privctl audit secrets model/ --secrets secrets.jsonl --data train.jsonl \\
          --held-out-secrets others.jsonl --held-out-data held-out.jsonl
    """
    _audit_one_model(model, output, force, as_json, quiet, options)


@_subcommand()
@click.argument("file", type=PATH, metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--score-column", multiple=True, default=("score",), metavar="NAME",
    help="Column of scores; repeatable.  [default: score]",
)  # fmt: skip
@click.option(
    "--member-column",
    default="member",
    metavar="NAME",
    show_default=True,
    help="Column of 1 (member) or 0.",
)
@click.option("--id-column", default="id", metavar="NAME", show_default=True, help="Column that names a record.")
@click.option(
    "--model",
    type=PATH,
    metavar="FILE",
    help="Checkpoint that was scored.",
)
@click.option(
    "--log",
    type=PATH,
    metavar="FILE",
    help="With --model: log; NAME.audits.jsonl by default.",
)
@click.option("--models", is_flag=True, help="FILE has one score per model, not per record.")
@click.option("--threshold", type=float, metavar="T", help="With --models: a threshold chosen beforehand.")
@click.option("--seed", type=SEED32, hidden=True)  # without effect, but accepted because scripts may give it
@given.taking(given.SPLIT, given.LEAST_AUC, given.CLAIM, given.DELTA, given.OUTPUT)
def scores(
    file: tuple[Path, ...], output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Judge the scores that another attack tool gave to records.

    FILE is CSV, TSV, JSON lines or Parquet, or a pattern of Parquet files. A row has a record's id, its score (higher
    for likely members), and whether it is a member. All scores of `privctl audit score-records` are judged. Scores of a
    --split, whose ids are members:17 for line 17 and so on, also bound epsilon and mu. With --model, the report is
    about that checkpoint; you assert that it gave the scores.

    With --models, FILE has a score for each of many models, trained with (member 1) or without one record: CSV, JSON
    {"with": [...], "without": [...]}, or safetensors of these two. They bound epsilon and test a --claim.

    \b
    Example:
      privctl audit scores per-record.csv --score-column loss --score-column rmia
      privctl audit scores 'scores-*.parquet' --split split/manifest.json
      privctl audit scores per-record.csv --model own.safetensors
      privctl audit scores scores.csv --models --claim 1,1e-5
    """
    from privctl.api.scoring import report_on_scores
    from privctl.show.progress import note

    lines: list[Entry] = []
    report, path = report_on_scores(
        file, output, {**options, "force": force}, notify=partial(note, quiet=quiet), on_entry=lines.append
    )
    log = None if report.log is None else os.path.normpath(path.parent / report.log.path)
    _finish(report, (path,), as_json=as_json, quiet=quiet, entered=_log_note(log, lines))


@_subcommand("score-records")
@given.A_MODEL
@given.taking(*given.SCORING)
def score_records(model: str, output: Path, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Score records for a membership audit, which `privctl audit scores` then judges.

    Only attacks that score each record separately run: loss, zlib, min-k, min-k++, min-k++-all and, with --reference,
    reference; --thorough adds all others of this kind. A row of the Parquet file holds the scores of one record, but no
    scores of single tokens. Only its owner can read the file. Each process that torchrun starts scores a share of the
    records and writes its own file (scores-00000-of-00004.parquet), so there may be very many records (docs/scale.md).
    No report is written, and nothing is entered into the log of audits.

    \b
    Example:
      privctl audit score-records model/ --members train.jsonl --nonmembers held-out.jsonl -o scores.parquet
      torchrun --nproc-per-node 4 -m privctl audit score-records model/ --members train.jsonl \\
          --nonmembers held-out.jsonl -o scores.parquet
      privctl audit scores 'scores-*.parquet'
    """
    from privctl.api.auditing import score_shares
    from privctl.domain.shown import counted
    from privctl.show.progress import note, progress

    options["force"] = force
    path, count = score_shares(Path(model), output, options, partial(progress, quiet=quiet), partial(note, quiet=quiet))
    if as_json:
        show(json.dumps({"scores": str(path), "records": count}), as_json=True)
    note(f"wrote {path}, the scores of {counted(count, 'record')}, which are not for release", quiet=quiet)


def _audit_one_model(
    model: str, output: Path | None, force: bool, as_json: bool, quiet: bool, options: dict[str, Any]
) -> None:
    from audits.whole.options import every_option
    from audits.whole.refusals import checked_options
    from privctl.api.auditing import audit_model
    from privctl.show.progress import note, progress

    records: list[LeakingRecord] = []
    lines: list[Entry] = []
    stated = every_option({**options, "force": force})
    checked_options(Path(model), output, stated)  # before torch is imported

    from audits.whole.from_options import request_of

    request = request_of(Path(model), output, stated)
    report = audit_model(
        request,
        progress=partial(progress, quiet=quiet),
        notify=partial(note, quiet=quiet),
        on_records=records.extend,
        on_entry=lines.append,
    )
    if report is None:  # only the main process prints
        return
    entered = _log_note(request.log, lines)
    _finish(report, request.written, as_json=as_json, quiet=quiet, records=records, entered=entered)


def _log_note(log: str | Path | None, lines: Sequence[Entry]) -> str:
    """The note on the line that this audit added to the log of audits."""
    return "".join(f"entered into {log}, whose head is now line {line.number}, {line.digest}" for line in lines)


def _audit_many_models(
    model: str | None, output: Path | None, force: bool, as_json: bool, quiet: bool, options: dict[str, Any]
) -> None:
    from audits.whole.options import every_option
    from privctl.api.auditing import audit_many_models

    report, path = audit_many_models(every_option({**options, "model": model, "force": force}), output)
    _finish(report, (path,), as_json=as_json, quiet=quiet)


def _finish(
    report: PrivacyReport,
    written: Sequence[Path],
    *,
    as_json: bool,
    quiet: bool,
    records: Sequence[LeakingRecord] = (),
    entered: str = "",
) -> None:
    """Print what was written and found. Exits with code 1 where a claim was refuted."""
    from audits.claims import any_claim_refuted
    from privctl.reports.codec import encode
    from privctl.show.decision import conclusion
    from privctl.show.progress import note
    from privctl.show.text.audit import audit_text

    note(f"wrote {' and '.join(map(str, written))}", quiet=quiet)
    if entered:
        note(entered, quiet=quiet)
    show(
        encode(report) if as_json else audit_text(report, place=written[0], records=records, verbose=verbose()),
        as_json=as_json,
    )
    if as_json:
        note(conclusion(report).sentence, quiet=quiet)
    if any_claim_refuted(report.verdicts):
        raise click.exceptions.Exit(ExitCode.REFUTED)
