"""``privctl audit``: attack a model; show what the attacks found, and what that does not prove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audits import ATTACKS
from privctl.cli.numbers import AMOUNT, BELOW_ONE, CHANCE, COUNT, FRACTION, SEED32, Number, Whole
from privctl.cli.options import LABEL_COLUMN, MODEL, TEXT_COLUMN, columns_of, common, force, show, verbose
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.ranges import Range

if TYPE_CHECKING:
    from audits.canaries.audit import CanaryRequest
    from audits.claims import EpsilonClaim
    from audits.extraction.audit import ExtractionRequest
    from audits.membership.audit import MembershipRequest
    from audits.run import AuditRequest
    from audits.secrets.audit import SecretRequest
    from privctl.domain.leaking import LeakingRecord
    from privctl.domain.report import PrivacyReport

_TASKS = ("causal-lm", "masked-lm", "text-classification", "image-classification")
_FILE = click.Path(path_type=Path)
_HELP = "Attack to run, repeatable; all by default: " + "; ".join(f"{n}: {line}" for n, (_, line) in ATTACKS.items())

#: Options about a model, which do not apply to an audit of scores.
_OF_A_MODEL = (
    *("members", "nonmembers", "attacks", "max_length", "reference", "canaries", "commitment", "canary_data"),
    *("references", "exact", "shadow", "task", "resize", "train", "heldout", "least_prefix", "top_k", "top_p"),
    *("greedy_only", "records", "secrets", "data", "plan", "base", "candidates", "most_secrets"),
    *("keep_scores", "cache", "no_cache", "device", "log", "leaks"),
)
#: Option -> the option that it refines, without which it does not apply.
_BELONGS = {
    **dict.fromkeys(("commitment", "canary_data", "references", "exact", "claim", "delta"), "canaries"),
    **dict.fromkeys(("attacks", "reference", "shadow"), "members"),
    **dict.fromkeys(("heldout", "least_prefix", "top_k", "top_p", "greedy_only", "records"), "train"),
    **dict.fromkeys(("data", "plan", "base", "candidates", "most_secrets"), "secrets"),
}


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
    from audits.log_entry import log_path, log_result
    from audits.run import output_paths
    from privctl.reports.codec import encode
    from privctl.show.decision import conclusion
    from privctl.show.progress import note
    from privctl.show.text.audit import audit_text

    report: PrivacyReport | None
    records: list[LeakingRecord] = []
    written: tuple[Path, ...]
    if options["from_scores"] is not None:
        report, written = _of_scores(model, output, force, options)
    else:
        if model is not None:
            options["log"] = log_path(output_paths(Path(model), None)[0], options["log"])
        report, written = _of_model(model, output, force, quiet, options, records.extend)
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


def _of_model(
    model: str | None,
    output: Path | None,
    force: bool,
    quiet: bool,
    options: dict[str, Any],
    on_records: Callable[[Sequence[LeakingRecord]], None],
) -> tuple[PrivacyReport | None, tuple[Path, ...]]:
    from audits.log_entry import is_logged
    from audits.run import output_paths, run_audit
    from privctl.models.language import choose_device
    from privctl.parallel import start_workers
    from privctl.show.progress import note, progress
    from privctl.storage.atomic import require_absent, require_regular

    if model is None:
        raise CommandError("there is nothing to audit; give MODEL, or --from-scores FILE")
    for name, owner in _BELONGS.items():
        if options[name] not in (None, (), False) and options[owner] is None:
            raise CommandError(f"{_flag(name)} needs {_flag(owner)}; give both")
    if options["leaks"] is not None:
        if options["members"] is None and options["train"] is None:
            raise CommandError("--leaks lists the records of --members and --train; give one of them")
        require_regular(options["leaks"], option="--leaks")
        require_absent(options["leaks"], force, option="--leaks")
    if options["no_cache"] and (options["keep_scores"] or options["cache"] is not None):
        raise CommandError("--no-cache contradicts --keep-scores and --cache; remove one")
    if options["greedy_only"] and (options["top_k"] is not None or options["top_p"] is not None):
        raise CommandError("--greedy-only does not sample; remove --top-k and --top-p")
    written = output_paths(Path(model), output)
    for path in written:
        require_regular(path)
        require_absent(path, force)
    if is_logged(options["log"], written[0]):
        said = f"{written[0]} is in {options['log']}, and is replaced: a gate that asks for every audit will miss it"
        note(said, quiet=quiet)
    request = _request(Path(model), written, force, options)
    with start_workers(choose_device(options["device"]), together=False) as workers:
        shown = partial(progress, quiet=quiet or not workers.is_main)
        report = run_audit(request, shown, workers, on_records=on_records)
    return report, written if options["leaks"] is None else (*written, options["leaks"])


def _request(model: Path, written: tuple[Path, Path], force: bool, options: dict[str, Any]) -> AuditRequest:
    from audits.run import AuditRequest
    from audits.scores.cache import default_root

    report, scores = written
    return AuditRequest(
        model=model,
        report=report,
        scores=scores,
        membership=_membership(options),
        canaries=_canaries(options),
        extraction=_extraction(options),
        secrets=_secrets(options),
        claim=_claim(options["claim"]),
        task=options["task"],
        max_length=options["max_length"],
        resize=options["resize"],
        columns=columns_of(options),
        reference=None if options["reference"] is None else Path(options["reference"]),
        base=None if options["base"] is None else Path(options["base"]),
        cache=options["cache"] or (default_root() if options["keep_scores"] else None),
        device=options["device"],
        force=force,
        log=options["log"],
        leaks=options["leaks"],
    )


def _membership(options: dict[str, Any]) -> MembershipRequest | None:
    from audits.membership.audit import MembershipRequest

    members, nonmembers = options["members"], options["nonmembers"]
    if members is None and nonmembers is None:
        return None
    if members is None or nonmembers is None:
        raise CommandError("a membership audit compares two files; give both --members and --nonmembers")
    return MembershipRequest(
        members=members,
        nonmembers=nonmembers,
        attacks=tuple(dict.fromkeys(options["attacks"])),
        shadow=options["shadow"],
        seed=options["seed"],
        least_auc=options["least_auc"],
    )


def _canaries(options: dict[str, Any]) -> CanaryRequest | None:
    from audits.canaries.audit import CanaryRequest

    if options["canaries"] is None:
        return None
    claim = _claim(options["claim"])
    delta = options["delta"] if options["delta"] is not None or claim is None else claim.delta
    return CanaryRequest(
        manifest=options["canaries"],
        references=options["references"],
        exact=options["exact"],
        delta=delta,
        commitment=options["commitment"],
        planted=options["canary_data"],
        seed=options["seed"],
    )


def _extraction(options: dict[str, Any]) -> ExtractionRequest | None:
    from audits.extraction.audit import ExtractionRequest
    from audits.extraction.law import SamplingLaw
    from audits.extraction.summary import QueryBudget

    if options["train"] is None:
        return None
    return ExtractionRequest(
        train=options["train"],
        heldout=options["heldout"],
        prefix_tokens=options["prefix_tokens"],
        suffix_tokens=options["suffix_tokens"],
        least_prefix=options["least_prefix"],
        law=SamplingLaw(temperature=options["temperature"], top_k=options["top_k"], top_p=options["top_p"]),
        queries=QueryBudget(count=options["queries"], probability=options["query_probability"]),
        greedy_only=options["greedy_only"],
        records=options["records"],
        seed=options["seed"],
    )


def _secrets(options: dict[str, Any]) -> SecretRequest | None:
    from audits.extraction.summary import QueryBudget
    from audits.secrets.audit import SecretRequest

    if options["secrets"] is None:
        return None
    if options["data"] is None:
        raise CommandError("--secrets needs the records that hold the secrets; give --data too")
    sizes = {"candidates": options["candidates"], "most": options["most_secrets"]}
    return SecretRequest(
        secrets=options["secrets"],
        data=options["data"],
        plan=options["plan"],
        manifest=options["canaries"],
        commitment=options["commitment"],
        queries=QueryBudget(count=options["queries"], probability=options["query_probability"]),
        seed=options["seed"],
        **{name: value for name, value in sizes.items() if value is not None},
    )


def _of_scores(
    model: str | None, output: Path | None, force: bool, options: dict[str, Any]
) -> tuple[PrivacyReport, tuple[Path, ...]]:
    from audits.from_scores import run_scores
    from privctl.reports.codec import encode
    from privctl.storage.atomic import require_absent, write_bytes

    given = [name for name in _OF_A_MODEL if options[name]]
    if model is not None or given:
        what = "MODEL" if model is not None else _flag(given[0])
        raise CommandError(f"--from-scores audits no model; remove {what}")
    source: Path = options["from_scores"]
    path = output or source.with_name(f"{source.stem}.audit.report.json")
    require_absent(path, force)
    report = run_scores(source, path, claim=_claim(options["claim"]), delta=options["delta"], seed=options["seed"])
    write_bytes(path, encode(report).encode(), replace=force)
    return report, (path,)


def _flag(name: str) -> str:
    return "--attack" if name == "attacks" else f"--{name.replace('_', '-')}"


def _claim(text: str | None) -> EpsilonClaim | None:
    from audits.claims import EpsilonClaim

    if text is None:
        return None
    try:
        epsilon, delta = map(float, text.split(","))
    except ValueError:
        raise CommandError(f"--claim {text} is not an epsilon and a delta; give both, such as --claim 1,1e-5") from None
    if not (0 <= epsilon < float("inf") and 0 <= delta < 1):
        raise CommandError(
            f"--claim {text} is out of range; epsilon must be finite and at least 0, delta from 0 to below 1"
        )
    return EpsilonClaim(epsilon=epsilon, delta=delta)
