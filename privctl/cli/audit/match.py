"""``privctl audit match``: choose members and non-members that look alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.groups import Subcommand
from privctl.cli.options import LABEL_COLUMN, TEXT_COLUMN, common, data_option, force, show

if TYPE_CHECKING:
    from privctl.data.several import DataPath


@click.command("match", cls=Subcommand)
@data_option("--members", "Records the model was trained on; repeatable.", required=True)
@data_option("--nonmembers", "Records it was not trained on; repeatable.", required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write both sides to.")
@TEXT_COLUMN
@LABEL_COLUMN
@force
@common
def match(
    members: DataPath,
    nonmembers: DataPath,
    output: Path,
    text_column: str | None,
    label_column: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Choose members and non-members that look alike, after an audit of both files was confounded.

    Each member is paired with a non-member that looks as much like one, by features of the text alone; no model has a
    part in it. The pairs are written only if the records do not tell members from non-members any more, and if enough
    was learned of their difference to match by it; otherwise the command says so and writes nothing. Sources that read
    much alike may still differ in the pairs (docs/audits.md), so audit them with --reference. A split drawn before
    training (`privctl audit split`) is better: it cannot be confounded.

    \b
    Example:
      privctl audit match --members train.jsonl --nonmembers scraped.jsonl -o matched/
      privctl audit membership model/ --members matched/members.jsonl --nonmembers matched/nonmembers.jsonl
    """
    import json
    from dataclasses import asdict

    from audits.matching.write import MatchRequest, write_matched
    from privctl.data.columns import Columns
    from privctl.domain.shown import counted
    from privctl.show.progress import note

    columns = Columns(text=text_column, label=label_column)
    request = MatchRequest(members=members, nonmembers=nonmembers, folder=output, columns=columns, force=force)
    found = write_matched(request)
    if as_json:
        show(json.dumps(asdict(found), indent=2) + "\n", as_json=True)
    else:
        before, after = found.before, found.after
        click.echo(
            f"{counted(found.pairs, 'pair')} of {found.members} members and {found.nonmembers} non-members\n"
            f"the records alone tell them apart with an AUC of {before.auc:.3f} (p {before.p_value:.2g}) before, and "
            f"{after.auc:.3f} (p {after.p_value:.2g}) after"
        )
    note(f"wrote {' and '.join(map(str, request.written))}", quiet=quiet)
