"""``privctl secrets scan`` and ``privctl secrets merge``: find the secrets in a data set and their records."""

from __future__ import annotations

import json
import re
import shlex
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import AMOUNT, COUNT
from privctl.cli.options import DATA, PATH, TEXT_COLUMN, common, force, show
from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from privctl.data.several import DataPath
    from privctl.domain.report import PrivacyReport
    from privctl.secrets.scan.request import ScanRequest
    from privctl.secrets.scan.run import ScanResult
    from privctl.secrets.scan.shard import ShardResult

#: The defaults of ``privctl retrain dp-sgd``.
_EPOCHS, _BATCH = 3, 64


@DATA
@click.option("-o", "--output", type=PATH, help="Book of secrets to write, .jsonl or .jsonl.gz.  [default: none]")
@click.option(
    "--kinds",
    help="Some of card,iban,nhs,ssn,mrn,dob,key,email,phone; or none, for the options below only.  [default: all]",
)
@click.option(
    "--pattern", "patterns", multiple=True, metavar="NAME=REGEX", help="Each match of REGEX is a secret; repeatable."
)
@click.option("--literals", type=PATH, help="File of texts, one per line, that are secrets wherever they occur.")
@click.option("--by", metavar="FIELD", help="Each value of FIELD is a secret of the records that have it.")
@click.option("--rare-words", type=COUNT, metavar="N", help="Words that are in at most N records are secrets.")
@click.option("--rare-least", type=COUNT, default=1, show_default=True, help="Fewest records of a rare word.")
@click.option(
    "--most-secrets", type=COUNT, default=1_000_000, show_default=True, help="Fail if there are more secrets than this."
)
@click.option(
    "--pattern-seconds",
    type=AMOUNT,
    default=1.0,
    show_default=True,
    help="Time limit for each pattern and record, in seconds.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Scan the I-th of N shards only, and write a partial result for privctl secrets merge.",
)
@click.option(
    "--presidio", is_flag=True, help="Use the recognizers of Presidio too (names, places, ...), if it is installed."
)
@TEXT_COLUMN
@force
@common
def scan(
    data: DataPath,
    text_column: str | None,
    output: Path | None,
    kinds: str | None,
    patterns: tuple[str, ...],
    literals: Path | None,
    by: str | None,
    rare_words: int | None,
    rare_least: int,
    most_secrets: int,
    pattern_seconds: float,
    shard: str | None,
    presidio: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the secrets in DATA and the records that hold them.

    \b
    Example:
      privctl secrets scan train.jsonl
      privctl secrets scan train.jsonl -o secrets.jsonl
    \f
    DATA is what a training reads: JSON lines, Parquet, a datasets folder, CSV, text and more (see docs/data.md), with
    "text", or "prompt" and "response", or the field that --text-column names. Several are read as one. The scan looks
    for payment cards, IBANs and NHS numbers (with valid check digits); US social security numbers (ssn), medical record
    numbers (mrn) and dates of birth (dob) after a word that announces them; keys, tokens and passwords; e-mail
    addresses and phone numbers; and whatever --pattern, --literals, --by and --rare-words describe. Spellings of one
    secret (the case of an e-mail address, the separators of a number) count as one. If matches of several kinds
    overlap, the longest wins; your own patterns and literals are found everywhere.

    Names of people, addresses and other national numbers have no kind. Only --pattern, --literals and --by find them,
    and the recognizers of Microsoft Presidio, which --presidio adds if presidio-analyzer is installed (English; guesses
    of its language model, with a score of 0.4 or more).

    A pattern is a regular expression; if it has a group (?P<secret>...), that group is the secret. Literals match
    whole words and are case-sensitive.

    Without --output, the number of secrets of each kind is printed, and nothing is written. The book that --output
    names holds the secrets themselves, so only its owner can read it. A report without them is written beside it. If no
    secret is found, only the report is written, and the exit code is 0.

    With --shard I/N, only one of N shards of the data is read; together, the shards hold each record once. --output
    then names a partial result, which is as private as the book. `privctl secrets merge` joins the results of all N
    shards (see docs/scale.md).

    \b
    More examples:
      privctl secrets scan train.jsonl -o secrets.jsonl --kinds email,phone \\
          --pattern 'ticket=\\bT-\\d{6}\\b' --literals names.txt
      privctl secrets scan 'notes/*.parquet' --text-column body -o secrets.jsonl
      privctl secrets scan abstracts.jsonl -o rare.jsonl --kinds none --rare-words 100 --rare-least 50
      privctl secrets scan posts.jsonl -o authors.jsonl --kinds none --by author
      privctl secrets scan train.jsonl --shard 2/4 -o part-2.jsonl.gz
    """
    from privctl.data.columns import Columns
    from privctl.secrets.scan.request import ScanRequest
    from privctl.secrets.scan.run import scan as run
    from privctl.show.progress import note, progress

    request = ScanRequest(
        data=data,
        columns=Columns(text=text_column),
        output=output,
        kinds=_names(kinds),
        patterns=patterns,
        literals=literals,
        by=by,
        rare_words=rare_words,
        rare_least=rare_least,
        most_secrets=most_secrets,
        pattern_seconds=pattern_seconds,
        presidio=presidio,
        shard=None if shard is None else _shard(shard),
    )
    seen = None if quiet else progress
    if request.shard is not None:
        from privctl.secrets.scan.shard import scan_shard

        _show_shard(request, scan_shard(request, seen, force=force), as_json=as_json, quiet=quiet)
    else:
        scanned = run(request, seen, force=force)
        show_scan(scanned, output, as_json=as_json, quiet=quiet)
        if output is not None and scanned.has_book:
            note(f"plan their protection: {_planned(data, text_column, output, scanned.report)}", quiet=quiet)


def _planned(data: DataPath, text_column: str | None, book: Path, report: PrivacyReport) -> str:
    """The command that plans for the number of steps that ``privctl retrain`` makes by default."""
    from privctl.data.several import paths_of
    from privctl.reports.parameters import ScanParameters, parameters_as

    steps = ceil(_EPOCHS * parameters_as(ScanParameters, report).dataset_size / _BATCH)
    named = [] if text_column is None else ["--text-column", text_column]
    words = [*map(str, paths_of(data)), "--secrets", str(book), *named, "--steps", str(steps)]
    output = book.with_name(f"{book.name.removesuffix('.gz').removesuffix('.jsonl')}-plan.safetensors")
    return shlex.join(["privctl", "secrets", "plan", *words, "--batch-size", str(_BATCH), "-o", str(output)])


@click.argument("parts", type=PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, help="Book of secrets to write, .jsonl or .jsonl.gz.  [default: none]")
@force
@common
def merge(parts: tuple[Path, ...], output: Path | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Join the partial results PARTS of all shards of a scan.

    The result is the same as that of one scan of all data. PARTS are what `privctl secrets scan --shard I/N` wrote for
    each I from 1 to N, in any order. Parts of other data, options or versions, and missing parts, are refused. The data
    are not read again. The parts hold secrets: remove them afterwards.

    \b
    Example:
      privctl secrets merge part-*.jsonl.gz -o secrets.jsonl
    """
    from privctl.secrets.scan.merge import merge_parts
    from privctl.show.progress import progress

    merged = merge_parts(parts, output, None if quiet else progress, force=force)
    show_scan(merged, output, as_json=as_json, quiet=quiet)


def show_scan(scanned: ScanResult, output: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Print what was found, and note on standard error what was written."""
    from privctl.reports.codec import encode
    from privctl.secrets.scan.request import report_beside
    from privctl.show.progress import note

    show(encode(scanned.report) if as_json else _rendered(scanned), as_json=as_json)
    if output is None:
        note("nothing is written; privctl secrets plan needs the book of secrets, which --output writes", quiet=quiet)
        return
    if scanned.has_book:
        note(f"wrote {output}, which holds the secrets: protect it like the data", quiet=quiet)
    else:
        note(f"no secret was found, so {output} is not written", quiet=quiet)
    note(f"wrote {report_beside(output)}", quiet=quiet)


def _show_shard(request: ScanRequest, result: ShardResult, *, as_json: bool, quiet: bool) -> None:
    from privctl.domain.shown import counted
    from privctl.show.progress import note

    shard, count = request.shard or (1, 1)
    if as_json:
        summary = {"shard": shard, "of": count, "records": result.records, "candidates": result.candidates}
        show(json.dumps(summary), as_json=True)
    else:
        show(
            f"Shard {shard} of {count}: {counted(result.records, 'record')}, "
            f"{counted(result.candidates, 'candidate')} for secrets.\n",
            as_json=False,
        )
    note(f"wrote {request.output}, which holds secrets: protect it like the data", quiet=quiet)


def _shard(given: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", given)
    if match is None or int(match[1]) > int(match[2]):
        raise CommandError(f"--shard {given!r} is not I/N with I from 1 to N, such as 2/4")
    return int(match[1]), int(match[2])


def _names(kinds: str | None) -> tuple[str, ...]:
    if kinds is None:
        return ()
    names = tuple(name.strip() for name in kinds.split(","))
    if "" in names:
        raise CommandError(f"--kinds {kinds!r} has an empty name; give names separated by single commas")
    return names


def _rendered(scanned: ScanResult) -> str:
    from privctl.secrets.scan.kinds import not_looked_for
    from privctl.show.text.secrets_scan import scan_text

    examples = {group.kind: group.values[0] for group in scanned.groups if len(group)}
    return scan_text(scanned.report, examples, not_looked_for([group.kind for group in scanned.groups]))
