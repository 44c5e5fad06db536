"""``privctl canary``: plant random secrets in training data by fair coins, and check what was planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.options import common, force, show
from privctl.domain.errors import ExitCode

if TYPE_CHECKING:
    from audits.canaries.design import CanaryPower
    from audits.canaries.manifest import Manifest
    from privctl.domain.guarantee import Assumption

_FILE = click.Path(path_type=Path)
#: The allowed failure probability of an audit that looks at nothing but canaries.
_ALPHA = 0.05
#: Included canaries that an audit wants before it says that they left no trace.
_WANTED = 100


@click.group()
def canary() -> None:
    """Plant canaries in training data, so that an audit can say what the model gives away of it.

    \b
    Example:
      privctl canary plant train.jsonl -o planted.jsonl --count 1000
      privctl canary check planted.canaries.json
    """


@canary.command("plant")
@click.argument("data", type=_FILE)
@click.option("-o", "--output", type=_FILE, required=True, help="The planted data to write; .gz packs it.")
@click.option("--manifest", type=_FILE, help="What was planted; NAME.canaries.json beside the output by default.")
@click.option("--count", type=int, default=250, show_default=True, help="Canaries; about half are included.")
@click.option(
    "--kind",
    type=click.Choice(["digits", "tokens", "template"]),
    help="What a secret is: random digits, random words of one token each, or a template's slot.  [default: digits]",
)
@click.option("--length", type=int, help="Digits (6 by default) or tokens (8 by default) of a secret.")
@click.option(
    "--template",
    "templates",
    multiple=True,
    help="Text with one slot: {digits:9}, {letters:8} or {hex:16}; repeatable.",
)
@click.option(
    "--copies", multiple=True, type=int, help="Copies of an included canary; several numbers are shared out.  [1]"
)
@click.option("--prefix-from", type=_FILE, help="Records whose beginnings stand before the secrets.")
@click.option("--tokenizer", type=_FILE, help="Model whose tokens --kind tokens draws from.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta of the bounds to come.")
@click.option("--seed", type=int, help="For tests: repeatable coins, which void every bound.")
@force
@common
def plant_command(
    data: Path,
    output: Path,
    manifest: Path | None,
    count: int,
    kind: str | None,
    length: int | None,
    templates: tuple[str, ...],
    copies: tuple[int, ...],
    prefix_from: Path | None,
    tokenizer: Path | None,
    delta: float,
    seed: int | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write DATA with canaries among its records, and a manifest of them.

    Each canary is included, with all its copies, by a fair coin of its own from the operating system. The hash that is
    printed commits to coins, secrets and numbers of guesses: publish it before training, and keep the manifest away
    from whoever trains. DATA is JSON lines with "text", or with "prompt" and "response"; canaries have these fields
    and no others. With --prefix-from each has a beginning of its own, which the model can be asked to complete.

    \b
    Example:
      privctl canary plant train.jsonl -o planted.jsonl --count 1000
      privctl canary plant train.jsonl -o planted.jsonl --count 300 \\
          --copies 1 --copies 10 --copies 100 --template "my card number is {digits:9}"
      privctl canary plant train.jsonl -o planted.jsonl --tokenizer model/ --prefix-from train.jsonl
    """
    import json

    from audits.canaries.design import PlantRequest, bound_alpha, power
    from audits.canaries.formats import SecretAlphabet
    from audits.canaries.plant import plant
    from privctl.show.progress import note

    request = PlantRequest(
        data=data,
        output=output,
        manifest=manifest or _beside(output),
        count=count,
        kind=SecretAlphabet(kind) if kind else None,
        length=length,
        templates=templates,
        copies=tuple(dict.fromkeys(copies)) or (1,),
        prefix_from=prefix_from,
        tokenizer=tokenizer,
        delta=delta,
        seed=seed,
    )
    done = plant(request, force=force)
    powers = [power(group, delta, bound_alpha(_ALPHA, done.guesses)) for group in done.guesses if seed is None]
    if as_json:
        show(json.dumps(_summary(done.commitment, done.planted.digest, powers), indent=2) + "\n", as_json=True)
    else:
        told = _power_text(powers, delta) if powers else "The coins come from --seed, so no bound follows from them.\n"
        click.echo(f"commitment: {done.commitment}\n\n{told}", nl=False)
    note(f"wrote {output} and {request.manifest}", quiet=quiet)
    note("publish the commitment before training, and keep the manifest away from whoever trains", quiet=quiet)
    for doubt in _doubts(done, prefixed=prefix_from is not None):
        note(doubt, quiet=quiet)


def _doubts(done: Manifest, *, prefixed: bool) -> list[str]:
    """What this planting will not be able to show."""
    found = []
    included = sum(each.included for each in done.canaries)
    if included < _WANTED:
        found.append(
            f"{included} canaries are included; an audit wants {_WANTED} before it says that they left no trace, so "
            "plant more with --count"
        )
    if min(each.copies for each in done.canaries) > 1:
        found.append(
            "no canary has one copy, so no claim of an epsilon for single records can be tested; add --copies 1"
        )
    prefixes = len({each.prefix for each in done.canaries})
    if prefixed and prefixes < len(done.canaries):
        found.append(
            f"{len(done.canaries)} canaries share {prefixes} beginnings, and one beginning completes to one secret"
        )
    return found


@canary.command("check")
@click.argument("manifest", type=_FILE)
@click.option("--data", type=_FILE, help="The planted data; by default the file that MANIFEST names, beside it.")
@click.option("--commitment", help="The hash that was published before training.")
@common
def check_command(manifest: Path, data: Path | None, commitment: str | None, as_json: bool, quiet: bool) -> None:
    """Check that the planted data are what MANIFEST says, and MANIFEST what was committed to.

    Exit code 1 says that a condition does not hold.

    \b
    Example:
      privctl canary check planted.canaries.json
      privctl canary check m.json --data planted.jsonl --commitment blake3:6ac1...
    """
    import json

    from audits.canaries.check import conditions, data_conditions, violated
    from audits.canaries.manifest import read_manifest
    from privctl.reports.codec import encode_value
    from privctl.show.text.style import table

    found = read_manifest(manifest)
    path = data or manifest.parent / found.planted.name
    results = [*conditions(found, commitment=commitment), *data_conditions(found, path)]
    if as_json:
        show(json.dumps([encode_value(each) for each in results], indent=2) + "\n", as_json=True)
    else:
        rows = [(each.name, str(each.state), each.statement) for each in _worst_first(results)]
        click.echo(table(("condition", "state", "finding"), rows), nl=False)
    if violated(results):
        click.get_current_context().exit(ExitCode.REFUTED)


def _beside(output: Path) -> Path:
    name = output.name.removesuffix(".gz").removesuffix(".jsonl")
    return output.with_name(f"{name}.canaries.json")


def _summary(commitment: str, planted: str, powers: Sequence[CanaryPower]) -> dict[str, object]:
    from privctl.reports.codec import encode_value

    return {"commitment": commitment, "planted": planted, "power": [encode_value(each) for each in powers]}


def _power_text(powers: Sequence[CanaryPower], delta: float) -> str:
    """What so many canaries could show at best."""
    from privctl.show.text.style import number, table

    rows = [
        (
            "one record" if each.copies == 1 else f"{each.copies} records",
            str(each.canaries),
            str(each.guesses),
            number(each.ceiling, 4),
            number(each.detectable, 4),
        )
        for each in powers
    ]
    headings = ("bound for groups of", "canaries", "guesses", "largest epsilon certifiable", "least detectable")
    return (
        f"What these canaries can show at best (delta {delta:g}, 95 % confidence in the whole audit):\n"
        f"{table(headings, rows)}"
    )


def _worst_first(results: Sequence[Assumption]) -> list[Assumption]:
    order = ("violated", "asserted", "checked", "enforced")
    return sorted(results, key=lambda each: order.index(each.state))
