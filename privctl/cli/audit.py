"""``privctl audit``: attack a model and show what was found, and what that does not show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audits import ATTACKS
from privctl.cli.options import MODEL, common, force
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport

_TASKS = ("causal-lm", "masked-lm", "text-classification", "image-classification")
_FILE = click.Path(path_type=Path)
_HELP = "Attack to run, repeatable; all by default: " + "; ".join(f"{n}: {line}" for n, (_, line) in ATTACKS.items())


@click.command()
@click.argument("model", type=MODEL)
@click.option("--members", type=_FILE, required=True, help="JSONL of records the model was trained on.")
@click.option("--nonmembers", type=_FILE, required=True, help="JSONL of records it was not trained on.")
@click.option("-o", "--output", type=_FILE, help="The report; NAME.audit.report.json beside the model by default.")
@click.option("--attack", "attacks", multiple=True, type=click.Choice(list(ATTACKS)), help=_HELP + ".")
@click.option(
    "--task",
    type=click.Choice(["causal-lm", "masked-lm", "text-classification", "image-classification"]),
    help="What MODEL is for; by its config.json by default.",
)
@click.option("--shadow", type=_FILE, help="Folder of shadow models, as privctl shadow writes it.")
@click.option("--resize", type=int, nargs=2, help="Height and width that images are brought to.")
@click.option(
    "--max-length", type=click.IntRange(min=2), help="Tokens kept of a record; the model's context up to 2048."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of splits; not private."
)
@click.option("--device", help="Where to run, such as cpu or cuda:0; a GPU if there is one by default.")
@force
@common
def audit(
    model: str,
    members: Path,
    nonmembers: Path,
    output: Path | None,
    attacks: tuple[str, ...],
    task: str | None,
    shadow: Path | None,
    resize: tuple[int, int] | None,
    max_length: int | None,
    seed: int,
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
    from privctl.codec import encode
    from privctl.progress import note, progress
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
            shadow=shadow,
            seed=seed,
        ),
        task=task,
        resize=resize,
        max_length=max_length,
        device=device,
    )
    report = run_audit(request, partial(progress, quiet=quiet))
    text = encode(report)
    write_bytes(report_path, text.encode())
    click.echo(text if as_json else render(report), nl=False)
    note(f"wrote {report_path} and {scores_path}", quiet=quiet)


def render(report: PrivacyReport) -> str:
    """The findings, worst on top, and what they do not show."""
    from privctl.render.text import number, table

    rows = [
        (
            item.method,
            item.quantity,
            number(item.estimate, 4),
            "-" if item.lower is None else f"{number(item.lower, 4)} to {number(item.upper, 4)}",
            str(item.samples["members"]),
            str(item.samples["nonmembers"]),
        )
        for item in sorted(report.evidence, key=_excess, reverse=True)
    ]
    confidence = f"{100 * report.evidence[0].confidence:g} % interval"
    found = table(("attack", "quantity", "estimate", confidence, "members", "non-members"), rows)
    notes = [f"{item.method}, {item.quantity}: {item.reason}" for item in report.evidence if item.reason]
    paragraphs = [conclusion(report.evidence), *notes]
    limits = "".join(f"  - {line}\n" for line in report.warnings)
    return (
        f"{found}\n"
        + "".join(f"{line}\n" for line in paragraphs)
        + f"\nWhat this does not show, and on what it rests:\n{limits}"
    )


def conclusion(evidence: Sequence[Evidence]) -> str:
    """One sentence that claims no more than the first quantity of each attack supports."""
    first = {item.method: item for item in reversed(evidence)}
    judged = sorted(first.values(), key=_excess, reverse=True)
    worst = judged[0]
    if worst.lower is not None and worst.lower > worst.details["chance"]:
        return (
            f"Members can be told from non-members: {worst.method} {worst.quantity} {_span(worst)}, "
            f"where chance gives {worst.details['chance']:.3g}."
        )
    spans = [f"{item.method} {item.quantity} up to {item.upper:.3f}" for item in judged if item.upper is not None]
    shown = f" Still possible, going by the intervals: {', '.join(spans)}." if spans else ""
    return "No difference was found, which does not make the model safe." + shown


def _span(item: Evidence) -> str:
    return f"{item.estimate:.3f} ({item.lower:.3f} to {item.upper:.3f})"


def _excess(item: Evidence) -> tuple[bool, float]:
    """Resolved quantities first, then by how far the interval lies above what chance gives, if it does."""
    if item.lower is None or "chance" not in item.details:
        return item.estimate is not None, 0.0
    return True, max(0.0, item.lower - item.details["chance"])
