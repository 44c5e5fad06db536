"""``privctl.audit_split``: draw members and non-members before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.api.arguments import DataPaths, FilePath, check, data_or_none, path_at
from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from audits.split.manifest import SplitManifest


def audit_split(
    data: DataPaths,
    *,
    output: FilePath,
    records: int | None = None,
    group_by: str | None = None,
    text_column: str | None = None,
    force: bool = False,
) -> SplitManifest:
    """Draw by coins which records of ``data`` a model is trained on, into the folder ``output``.

    Train on ``members.jsonl`` there, or with ``records``, the number of records to draw, on ``train.jsonl``, which
    holds all others too. ``group_by`` names a field whose values share a coin; ``records`` counts these then. Publish
    the result's ``commitment`` before training, and keep ``manifest.json``: whoever has it knows who is a member.

    Raises CommandError for files in the way and numbers out of range, InputError for records that cannot be read.
    """
    from audits.split.draw import SplitRequest, draw_split
    from privctl.data.columns import Columns

    check("audit_split", {"records": records})
    given = data_or_none(data)
    if given is None:
        raise CommandError("there is nothing to split; give data")
    columns = Columns(text=text_column)
    return draw_split(
        SplitRequest(
            data=given,
            folder=path_at(output, "output"),
            records=records,
            group_by=group_by,
            columns=columns,
            force=force,
        )
    )
