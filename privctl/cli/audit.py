"""``privctl audit``: attack a model and show what was found, and what that does not show."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from audits import ATTACKS
from privctl.cli.options import MODEL, common, force

_FILE = click.Path(path_type=Path)
_HELP = "Attack to run, repeatable; all by default: " + "; ".join(f"{n}: {line}" for n, (_, line) in ATTACKS.items())


@click.command()
@click.argument("model", type=MODEL)
@click.option("--members", type=_FILE, required=True, help="JSONL of records the model was trained on.")
@click.option("--nonmembers", type=_FILE, required=True, help="JSONL of records it was not trained on.")
@click.option("-o", "--output", type=_FILE, help="The report; NAME.audit.report.json beside the model by default.")
@click.option("--attack", "attacks", multiple=True, type=click.Choice(list(ATTACKS)), help=_HELP + ".")
@click.option(
    "--max-length", type=click.IntRange(min=2), help="Tokens kept of a record; the model's context up to 2048."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of splits; not private."
)
@click.option("--reference", type=MODEL, help="A model that saw neither file, to compare with.")
@click.option(
    "--least-auc",
    type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
    default=0.55,
    show_default=True,
    help="An AUC the audit must be able to see for its silence to count.",
)
@click.option("--cache", type=_FILE, help="Folder to keep scores in; a private one in the home folder by default.")
@click.option("--no-cache", is_flag=True, help="Keep no scores: every audit runs the model anew.")
@click.option("--device", help="Where to run, such as cpu or cuda:0; a GPU if there is one by default.")
@force
@common
def audit(
    model: str,
    members: Path,
    nonmembers: Path,
    output: Path | None,
    attacks: tuple[str, ...],
    max_length: int | None,
    seed: int,
    reference: str | None,
    least_auc: float,
    cache: Path | None,
    no_cache: bool,
    device: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Attack MODEL: tell members of its training data from records it never saw.

    MODEL is a Hugging Face directory, or a .safetensors file with config.json and tokenizer beside it. Records are
    JSON objects with "text", or with "prompt" and "response". Both files should come from one source and have been
    split at random; a difference otherwise says little about the model.

    \b
    Example:
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl
      privctl audit model/ --members a.jsonl --nonmembers b.jsonl --attack loss --json
    """
    from audits.membership.part import MembershipRequest
    from audits.run import AuditRequest, output_paths, run_audit
    from audits.scoring.cache import default_root
    from privctl.codec import encode
    from privctl.models import choose_device
    from privctl.parallel import crew
    from privctl.progress import note, progress
    from privctl.render.audit import render
    from privctl.storage.atomic import require_absent, write_bytes

    report_path, scores_path = output_paths(Path(model), output)
    for path in (report_path, scores_path):
        require_absent(path, force)
    request = AuditRequest(
        model=Path(model),
        report=report_path,
        scores=scores_path,
        membership=MembershipRequest(
            members=members,
            nonmembers=nonmembers,
            attacks=tuple(dict.fromkeys(attacks)),
            max_length=max_length,
            seed=seed,
            least_auc=least_auc,
        ),
        reference=None if reference is None else Path(reference),
        cache=None if no_cache else cache or default_root(),
        device=device,
    )
    with crew(choose_device(device)) as team:
        report = run_audit(request, partial(progress, quiet=quiet or not team.leads), team)
    if report is None:
        return
    text = encode(report)
    write_bytes(report_path, text.encode())
    click.echo(text if as_json else render(report), nl=False)
    note(f"wrote {report_path} and {scores_path}", quiet=quiet)
