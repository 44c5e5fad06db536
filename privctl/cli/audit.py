"""``privctl audit``: attack a model; show what the attacks found, and what that does not prove."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audits import ATTACKS
from privctl.cli.numbers import AMOUNT, BELOW_ONE, CHANCE, COUNT, FRACTION, SEED32, Number, Whole
from privctl.cli.options import LABEL_COLUMN, MODEL, TEXT_COLUMN, common, force, show, verbose
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.ranges import Range

if TYPE_CHECKING:
    from privctl.domain.leaking import LeakingRecord
    from privctl.domain.report import PrivacyReport

_TASKS = ("causal-lm", "masked-lm", "text-classification", "image-classification")
_FILE = click.Path(path_type=Path)
_HELP = "Attack to run, repeatable; all by default: " + "; ".join(f"{n}: {line}" for n, (_, line) in ATTACKS.items())


@click.command()
@click.argument("model", type=MODEL, required=False)
@click.option("--members", type=_FILE, help="Records the model was trained on.")
@click.option("--nonmembers", type=_FILE, help="Records it was not trained on.")
@click.option("-o", "--output", type=_FILE, help="Report to write; NAME.audit.report.json beside the model by default.")
@click.option("--log", type=_FILE, help="Log of audits; NAME.audits.jsonl beside the model by default.")
@click.option(
    "--leaks",
    type=_FILE,
    help="File of JSON lines to write, for your eyes only: the records of --members and --train by line number, with "
    "their scores, those that leak most first.",
)
@click.option("--attack", "attacks", multiple=True, type=click.Choice(list(ATTACKS)), help=_HELP + ".")
@click.option("--reference", type=MODEL, help="A model trained on neither file, to compare with.")
@click.option(
    "--task",
    type=click.Choice(_TASKS),
    help="What MODEL does; read from its config.json by default.",
)
@click.option("--shadow", type=_FILE, help="Folder of shadow models, as privctl shadow writes it.")
@TEXT_COLUMN
@LABEL_COLUMN
@click.option("--resize", type=COUNT, nargs=2, help="Height and width to resize images to.")
@click.option(
    "--max-length",
    type=Whole(Range(low=2, high=1e12)),
    help="Tokens kept of a record; the model's context, at most 2048, by default.",
)
@click.option(
    "--least-auc",
    type=Number(Range(low=0.5, high=1, open_low=True, open_high=True)),
    default=0.55,
    show_default=True,
    help="AUC that the audit must be able to detect before a negative result counts.",
)
@click.option("--canaries", type=_FILE, help="Manifest of canaries, as privctl canary plant writes it.")
@click.option("--commitment", help="Hash of the manifest, as published before training.")
@click.option("--canary-data", type=_FILE, help="The planted data, to check the manifest against.")
@click.option(
    "--references", type=COUNT, help="Fresh secrets to compare each canary with; about 20,000 in all by default."
)
@click.option(
    "--exact/--no-exact",
    default=None,
    help="Rank each canary among all possible secrets; by default where that is cheap.",
)
@click.option(
    "--train", type=_FILE, help="Training records; tests whether the model completes them from their prefixes."
)
@click.option("--heldout", type=_FILE, help="Similar records that were not trained on, to compare extraction with.")
@click.option(
    "--prefix-tokens", type=COUNT, default=50, show_default=True, help="Tokens of a record given to the model."
)
@click.option(
    "--suffix-tokens", type=COUNT, default=50, show_default=True, help="Tokens that the model must reproduce."
)
@click.option(
    "--least-prefix", type=COUNT, help="Shortest prefix to accept of short records; --prefix-tokens by default."
)
@click.option("--temperature", type=AMOUNT, default=1.0, show_default=True, help="Sampling temperature.")
@click.option("--top-k", type=COUNT, help="Sample from the K likeliest tokens.")
@click.option("--top-p", type=CHANCE, help="Sample from the likeliest tokens whose probabilities sum to P.")
@click.option(
    "--queries", type=COUNT, default=100, show_default=True, help="How often an attacker may query the model."
)
@click.option(
    "--query-probability",
    type=FRACTION,
    default=0.5,
    show_default=True,
    help="Probability with which at least one query must succeed.",
)
@click.option("--greedy-only", is_flag=True, help="Only the likeliest continuation, no sampling; faster.")
@click.option("--records", type=COUNT, help="Records drawn from each file for extraction; all by default.")
@click.option("--secrets", type=_FILE, help="Book of secrets in the training data, as privctl secrets scan writes it.")
@click.option("--data", type=_FILE, help="Training data that the book of secrets was made from.")
@click.option("--plan", type=_FILE, help="Plan that MODEL was trained with, as privctl secrets plan writes it.")
@click.option("--base", type=MODEL, help="MODEL before training, to measure what it knew of the secrets already.")
@click.option("--candidates", type=COUNT, help="Values to rank each secret among, itself included; 100 by default.")
@click.option(
    "--most-secrets", type=COUNT, help="Secrets to draw, of those trained on and of controls; 1000 by default."
)
@click.option("--from-scores", type=_FILE, help="Scores of many models instead of a MODEL: safetensors, JSON or CSV.")
@click.option("--claim", metavar="EPS,DELTA", help="A claimed (epsilon, delta) to test.")
@click.option(
    "--delta", type=BELOW_ONE, help="Delta of the bound on epsilon; that of the claim or manifest by default."
)
@click.option("--seed", type=SEED32, default=0, show_default=True, help="Seed of splits; not private.")
@click.option(
    "--keep-scores",
    is_flag=True,
    help="Keep every token's score for later audits, in a private folder; the texts can be rebuilt from these scores.",
)
@click.option("--cache", type=_FILE, help="Folder for the scores of --keep-scores, which this option implies.")
@click.option("--no-cache", is_flag=True, hidden=True)  # the default now; scripts may still give it
@click.option("--device", help="Where to run, such as cpu or cuda:0; by default a GPU if there is one.")
@force
@common
def audit(model: str | None, output: Path | None, force: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Attack MODEL: measure what it reveals about its training data.

    MODEL is a Hugging Face directory, or a .safetensors file with config.json and tokenizer beside it. Records are
    JSON objects with "text", or with "prompt" and "response".

    --members and --nonmembers test whether the model distinguishes the two files. They should be a random split of one
    source; otherwise the difference may have nothing to do with the model. --canaries tests what the model remembers of
    secrets planted before training, the only way to a certified lower bound on epsilon. --train tests which training
    records the model completes from their prefixes. --secrets tests whether the true value of a secret ranks above
    other values it could have had, and with --plan whether the planned protection held. Only values drawn at random can
    refute a plan, so plant canaries and give --canaries too. The exit code is 1 if a claim was refuted (the model's
    own, --claim or --plan) and 0 for other findings, which are for a gate to judge. The first line says what all of it
    means for a release, the last one what to run next.

    --from-scores takes one score for each of many models: a CSV file with the columns score,member (1 or 0), JSON
    {"with": [...], "without": [...]}, or safetensors with these two tensors.

    Every audit of a MODEL is entered into a log before the first attack, and again with the digest of its report, so
    that a report left out shows. Keep the log and all reports: `privctl gate --require-audit-log` asks for each of
    them. Sign it (`privctl sign LOG`) or give its head away, as whoever holds it can write another one.

    \b
    Example:
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl
      privctl audit model/ --canaries planted.canaries.json --commitment blake3:...
      privctl audit model/ --train train.jsonl --heldout held-out.jsonl
      privctl audit model/ --secrets secrets.jsonl --data train.jsonl --base old/
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl --log model.audits.jsonl
      privctl audit --from-scores scores.csv --claim 1,1e-5
    """
    from audits.claims import any_claim_refuted
    from audits.log_entry import log_result
    from audits.request import request_of
    from privctl.api.auditing import audit_model, audit_scores
    from privctl.reports.codec import encode
    from privctl.show.decision import conclusion
    from privctl.show.progress import note, progress
    from privctl.show.text.audit import audit_text

    records: list[LeakingRecord] = []
    report: PrivacyReport | None
    options |= {"model": model, "force": force}
    told, shown = partial(note, quiet=quiet), partial(progress, quiet=quiet)
    written: tuple[Path, ...]
    if options["from_scores"] is not None:
        report, place = audit_scores(options, output)
        written = (place,)
    elif model is None:
        raise CommandError("there is nothing to audit; give MODEL, or --from-scores FILE")
    else:
        request = request_of(Path(model), output, options)
        options["log"], written = request.log, request.written
        report = audit_model(request, progress=shown, notify=told, on_records=records.extend)
    if report is None:  # only the main process prints
        return
    line = log_result(report, options["log"])
    note(f"wrote {' and '.join(map(str, written))}", quiet=quiet)
    if line is not None:
        note(f"entered into {options['log']}, whose head is now line {line.number}, {line.digest}", quiet=quiet)
    show(
        encode(report) if as_json else audit_text(report, place=written[0], records=records, verbose=verbose()),
        as_json=as_json,
    )
    if as_json:
        note(conclusion(report).sentence, quiet=quiet)
    if any_claim_refuted(report.verdicts):
        raise click.exceptions.Exit(ExitCode.REFUTED)
