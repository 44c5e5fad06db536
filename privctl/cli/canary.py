"""``privctl canary``: plant random secrets in training data by fair coin tosses, and check what was planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.groups import SuggestingGroup
from privctl.cli.numbers import AMOUNT, BELOW_ONE, COUNT, SEED
from privctl.cli.options import DATA, PATH, common, data_option, force, show
from privctl.domain.errors import ExitCode
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from audits.canaries.design import CanaryPower
    from audits.canaries.manifest import Manifest
    from privctl.data.several import DataPath
    from privctl.domain.guarantee import Assumption

#: The significance level of an audit of canaries alone.
_ALPHA = 0.05
#: Included canaries that an audit needs to conclude that they left no trace.
_ENOUGH = 100


@click.group(cls=SuggestingGroup)
def canary() -> None:
    """Plant canaries in training data, so that an audit can certify what a model reveals.

    \b
    Example:
      privctl canary plant train.jsonl -o planted.jsonl --count 1000
      privctl canary check planted.canaries.json
    """


@canary.command("plant")
@DATA
@click.option("-o", "--output", type=PATH, required=True, help="File to write the planted data to; .gz compresses it.")
@click.option(
    "--manifest", type=PATH, help="File to write the manifest to.  [default: NAME.canaries.json beside the output]"
)
@click.option(
    "--count", type=COUNT, default=250, show_default=True, help="Number of canaries; about half are included."
)
@click.option(
    "--kind",
    type=click.Choice(["digits", "tokens", "template"]),
    help="Form of the secrets: random digits, random words of one token each, or a template's slot.  [default: digits]",
)
@click.option("--length", type=COUNT, help="Number of digits (6 by default) or tokens (8 by default) of a secret.")
@click.option(
    "--template",
    "templates",
    multiple=True,
    help="Text with one slot: {digits:9}, {letters:8} or {hex:16}; repeatable.",
)
@click.option(
    "--copies",
    multiple=True,
    type=COUNT,
    help="Copies of each included canary; repeat it to use several numbers of copies.  [default: 1]",
)
@data_option("--prefix-from", "Records whose first words precede the secrets (repeatable).")
@click.option("--tokenizer", type=PATH, help="Model whose tokenizer --kind tokens draws from.")
@click.option(
    "--delta", type=BELOW_ONE, default=1e-5, show_default=True, help="Delta of the bounds that the audit will give."
)
@click.option(
    "--to-see",
    type=AMOUNT,
    metavar="EPSILON",
    help="Claimed epsilon: says whether these canaries could refute it, and how many could.",
)
@click.option("--seed", type=SEED, help="For tests only: repeatable coin tosses, which void every bound.")
@force
@common
def plant_command(
    data: DataPath,
    output: Path,
    manifest: Path | None,
    count: int,
    kind: str | None,
    length: int | None,
    templates: tuple[str, ...],
    copies: tuple[int, ...],
    prefix_from: DataPath | None,
    tokenizer: Path | None,
    delta: float,
    to_see: float | None,
    seed: int | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write DATA with canaries among its records, and a manifest of them.

    A fair coin from the operating system decides for each canary whether it is included, with all its copies. The
    printed hash commits to the coins, the secrets and the numbers of guesses. Publish it before training, and keep the
    manifest from the people who train. DATA holds records with "text", or with "prompt" and "response"; canaries have
    these fields and no others. With --prefix-from, each canary has its own prefix, which the model can be asked to
    complete.

    The number of canaries limits the epsilon that an audit can certify. --to-see says before training whether these
    canaries can refute a claim, and how many could. The audit also tests the mechanism that the training's report
    states, which needs far fewer canaries.

    \b
    Example:
      privctl canary plant train.jsonl -o planted.jsonl --count 1000 --to-see 4
      privctl canary plant train.jsonl -o planted.jsonl --count 300 \\
          --copies 1 --copies 10 --copies 100 --template "my card number is {digits:9}"
      privctl canary plant train.jsonl -o planted.jsonl --tokenizer model/ --prefix-from train.jsonl
    """
    import json

    from audits.canaries.design import PlantRequest, bound_alpha, canaries_to_refute, levels, power
    from audits.canaries.formats import SecretAlphabet
    from audits.canaries.plant import plant
    from privctl.show.progress import note

    request = PlantRequest(
        data=data,
        output=output,
        manifest=manifest or _text_path(output),
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
    planted = plant(request, force=force)
    groups = planted.guesses if seed is None else ()
    powers = [power(sets, delta, bound_alpha(_ALPHA, groups, sets)) for sets in levels(groups)]
    needed = None if to_see is None else canaries_to_refute(to_see, delta, _ALPHA)
    if as_json:
        summary = _summary(planted.commitment, planted.planted.digest, powers)
        if to_see is not None:
            summary["to_see"] = {"epsilon": to_see, "canaries": needed}
        show(json.dumps(summary, indent=2) + "\n", as_json=True)
    else:
        outlook = _power_text(powers, delta) if powers else "The coins come from --seed, so they give no bound.\n"
        click.echo(f"commitment: {planted.commitment}\n\n{outlook}", nl=False)
        if to_see is not None:
            click.echo(f"\n{_whether_seen(to_see, delta, powers, needed)}\n{_STRONGEST}")
    note(f"wrote {output} and {request.manifest}", quiet=quiet)
    note("publish the commitment before training, and keep the manifest from the people who train", quiet=quiet)
    for limitation in _limitations(planted, prefixed=prefix_from is not None):
        note(limitation, quiet=quiet)


#: Advice on the kind of canary.
_STRONGEST = (
    "planted text certifies only what the model learns of it, and copies only bound the epsilon of groups of that many "
    "records; for training by dp-sgd or dpquant, canary gradients certify the most: privctl retrain dp-sgd "
    "--gradient-canaries N"
)


def _whether_seen(epsilon: float, delta: float, powers: Sequence[CanaryPower], needed: int | None) -> str:
    """Whether these canaries could refute (``epsilon``, ``delta``)-DP for one record, and how many could."""
    highest = max((power.ceiling for power in powers if power.copies == 1), default=0.0)
    claim = f"a claim of epsilon {epsilon:g} at delta {delta:g}"
    if highest > epsilon:
        return f"these canaries could refute {claim}: they certify up to {highest:.4g} if every guess is right"
    cannot = (
        f"these canaries cannot refute {claim}, even if the model shows every coin: they certify {highest:.4g} at most"
    )
    if needed is None:
        return f"{cannot}, and no number of canaries that can be planted does"
    return f"{cannot}; it takes {needed} of one copy (--count {needed})"


def _limitations(manifest: Manifest, *, prefixed: bool) -> list[str]:
    """What an audit of these canaries cannot show: one sentence for each limitation."""
    from audits.canaries.conditions import is_exact_half

    limitations = []
    included = sum(canary.included for canary in manifest.canaries)
    if included < _ENOUGH:
        limitations.append(
            f"{counted(included, 'canary is', 'canaries are')} included; an audit needs "
            f"{_ENOUGH} to conclude that they left no trace, so plant more with --count"
        )
    if is_exact_half(included, len(manifest.canaries)):
        limitations.append(
            "exactly half of the canaries are included, as a draw of a fixed number gives too: to hold for that as "
            "well, bounds will be a little lower; an odd number (--count) avoids this"
        )
    if min(canary.copies for canary in manifest.canaries) > 1:
        limitations.append(
            "no canary has a single copy, so no claimed epsilon for single records can be tested; add --copies 1"
        )
    prefixes = len({canary.prefix for canary in manifest.canaries})
    if prefixed and prefixes < len(manifest.canaries):
        limitations.append(
            f"{len(manifest.canaries)} canaries share {prefixes} prefixes, and a prefix can complete to one secret "
            "only; give more records with --prefix-from"
        )
    return limitations


@canary.command("check")
@click.argument("manifest", type=PATH)
@click.option("--data", type=PATH, help="Planted data.  [default: the file beside MANIFEST that it names]")
@click.option("--commitment", help="Hash of the manifest that was published before training.")
@common
def check_command(manifest: Path, data: Path | None, commitment: str | None, as_json: bool, quiet: bool) -> None:
    """Check that the planted data match MANIFEST, and that MANIFEST matches the commitment.

    The exit code is 1 if a condition does not hold.

    \b
    Example:
      privctl canary check planted.canaries.json
      privctl canary check m.json --data planted.jsonl --commitment blake3:6ac1...
    """
    import json

    from audits.canaries.conditions import conditions, data_conditions, violated_conditions
    from audits.canaries.manifest import read_manifest
    from privctl.reports.codec import encode_value
    from privctl.show.text.style import table

    planted = read_manifest(manifest)
    path = data or manifest.parent / planted.planted.name
    results = [*conditions(planted, commitment=commitment), *data_conditions(planted, path)]
    if as_json:
        show(json.dumps([encode_value(condition) for condition in results], indent=2) + "\n", as_json=True)
    else:
        rows = [(condition.name, str(condition.state), condition.statement) for condition in _worst_first(results)]
        click.echo(table(("condition", "state", "finding"), rows), nl=False)
    if violated_conditions(results):
        click.get_current_context().exit(ExitCode.REFUTED)


def _text_path(output: Path) -> Path:
    from privctl.storage.atomic import require_name

    require_name(output)
    name = output.name.removesuffix(".gz").removesuffix(".jsonl")
    return output.with_name(f"{name}.canaries.json")


def _summary(commitment: str, planted: str, powers: Sequence[CanaryPower]) -> dict[str, object]:
    from privctl.reports.codec import encode_value

    return {"commitment": commitment, "planted": planted, "power": [encode_value(power) for power in powers]}


def _power_text(powers: Sequence[CanaryPower], delta: float) -> str:
    """The table of what these canaries could show at best."""
    from privctl.show.text.style import number, table

    rows = [
        (
            "one record" if power.copies == 1 else f"{power.copies} records",
            str(power.canaries),
            ", ".join(map(str, power.guesses)),
            number(power.ceiling, 4),
            number(power.detectable, 4),
        )
        for power in powers
    ]
    headings = ("bound for groups of", "canaries", "guesses", "largest epsilon certifiable", "least detectable")
    return (
        f"What these canaries can show at best (delta {delta:g}, 95 % confidence in the whole audit):\n"
        f"{table(headings, rows)}"
    )


def _worst_first(results: Sequence[Assumption]) -> list[Assumption]:
    order = ("violated", "asserted", "checked", "enforced")
    return sorted(results, key=lambda condition: order.index(condition.state))
