"""``privctl audit split``: draw members and non-members before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.groups import Subcommand
from privctl.cli.numbers import AMOUNT, BELOW_ONE, COUNT
from privctl.cli.options import DATA, PATH, TEXT_COLUMN, common, force, given, show

if TYPE_CHECKING:
    from audits.split.manifest import SplitManifest
    from audits.split.power import SplitPower
    from privctl.data.several import DataPath


@click.command("split", cls=Subcommand)
@DATA
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write the split to.")
@click.option(
    "--records", type=COUNT, metavar="N",
    help="Draw only N records, or groups, and also train on all others.  [default: all]",
)  # fmt: skip
@click.option(
    "--group-by", metavar="FIELD", help="Toss one coin for all records with the same value of FIELD, such as a user's."
)
@click.option(
    "--to-see",
    type=AMOUNT,
    metavar="EPSILON",
    help="Claimed epsilon: says whether this many coins could refute it, and how many could.",
)
@click.option("--delta", type=BELOW_ONE, default=1e-5, show_default=True, help="Delta of that claim, with --to-see.")
@TEXT_COLUMN
@force
@common
def split(
    data: DataPath,
    output: Path,
    records: int | None,
    group_by: str | None,
    to_see: float | None,
    delta: float,
    text_column: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Draw members and non-members from DATA by fair coins, before a model is trained on the members.

    A fair coin decides for each distinct record whether it is a member, so both files come from one distribution by
    construction. Train on members.jsonl, or with --records on train.jsonl, which also holds all other records. Give the
    audit the manifest (--split). Only their owner can read the files and the manifest. Publish the printed commitment
    before training, and keep the manifest secret: it says which records are members.

    With --group-by, the audit is about groups, such as users: all records of a group share a coin. The audit then
    bounds the epsilon of a group, which is what retrain --unit FIELD guarantees.

    The number of coins limits the epsilon that an audit can certify. --to-see says before training whether this many
    coins can refute a claim, and how many records or groups could.

    \b
    Example:
      privctl audit split data.jsonl -o split/ --records 2000 --to-see 4
      privctl audit split chats.jsonl -o split/ --group-by user --to-see 4
      privctl audit membership model/ --split split/manifest.json
    """
    import json

    from audits.split.draw import SplitRequest, draw_split
    from audits.split.drawn import read_split
    from audits.split.manifest import NAME
    from audits.split.power import powers_of
    from privctl.data.columns import Columns
    from privctl.data.names import alike
    from privctl.domain.errors import CommandError
    from privctl.domain.shown import counted
    from privctl.reports.codec import encode_value
    from privctl.show.progress import note

    if to_see is None and given({"delta": delta}):
        raise CommandError("--delta belongs to a claim; add --to-see with its epsilon, or remove --delta")
    columns = Columns(text=text_column)
    request = SplitRequest(data=data, folder=output, records=records, group_by=group_by, columns=columns, force=force)
    drawn = draw_split(request)
    train = drawn.train or drawn.members
    powers = [] if to_see is None else powers_of(read_split(output / NAME), to_see, delta)
    if as_json:
        summary = {
            "commitment": drawn.commitment,
            "records": drawn.records,
            "members": drawn.included,
            **({} if group_by is None else _group_counts(drawn)),
            "train": str(output / train.name),
            "train_digest": train.digest,
            **({} if to_see is None else {"power": [encode_value(power) for power in powers]}),
        }
        show(json.dumps(summary, indent=2) + "\n", as_json=True)
    else:
        members, others = counted(drawn.included, "member"), counted(drawn.records - drawn.included, "non-member")
        if drawn.groups is not None and drawn.included_groups is not None:
            members += f" in {counted(drawn.included_groups, 'group')}"
            others += f" in {counted(drawn.groups - drawn.included_groups, 'group')}"
        click.echo(f"commitment: {drawn.commitment}\n\n{members}, {others}; train on {output / train.name}")
        if to_see is not None:
            click.echo(f"\n{_whether_seen(powers, 'records' if group_by is None else 'groups')}")
    if group_by is not None and drawn.similar_names:
        note(alike(drawn.similar_names, group_by), quiet=False)
    note(f"wrote {' and '.join(map(str, request.written))}", quiet=quiet)
    note("publish the commitment before training, and keep the manifest from the people who train", quiet=quiet)


def _group_counts(drawn: SplitManifest) -> dict[str, int | None]:
    return {
        "groups": drawn.groups,
        "member_groups": drawn.included_groups,
        "similar_names": drawn.similar_names,
    }


def _whether_seen(powers: Sequence[SplitPower], what: str) -> str:
    """Whether an audit could refute the claim, by all attacks or by one; ``what`` is "records" or "groups"."""
    if not powers:
        return "fewer than 2 records occur once, and only these have coins of their own: no claim can be refuted"
    parts = []
    for power in powers:
        attacks = (
            "one attack alone (--attack)" if power.attacks == 1 else f"the {power.attacks} attacks on a language model"
        )
        if power.of_each > 1:
            attacks += f", {power.of_each} scores each,"
        could = "can" if power.ceiling > power.epsilon else "cannot"
        needed = f"it takes {power.needed}" if power.needed is not None else f"no number of {what} does"
        parts.append(
            f"by {attacks} they {could}, as they certify at most {power.ceiling:.4g} if every guess is right; {needed}"
        )
    first = powers[0]
    claim = f"a claim of epsilon {first.epsilon:g} at delta {first.delta:g}"
    unit = "records with a coin of their own" if what == "records" else "groups"
    return f"whether {first.coins} {unit} can refute {claim}: {'. '.join(parts)}"
