"""``privctl.audit_split``: draw members and non-members before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.api.arguments import DataPaths, FilePath, check_numbers, data_or_none, path_at
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
    """Draw by fair coins which records of ``data`` a model is to be trained on, and write both parts to ``output``.

    Train on ``members.jsonl`` in that folder; or, if ``records``, the number of records to draw, is given, on
    ``train.jsonl``, which holds all others too. With ``group_by`` all records with the same value of that field share a
    coin, and ``records`` counts values. Publish the result's ``commitment`` before training, and keep ``manifest.json``
    secret: it says which records are members.

    Returns the manifest. Raises CommandError for existing files and for numbers out of range, InputError for records
    that cannot be read.
    """
    from audits.split.draw import SplitRequest, draw_split
    from privctl.data.columns import Columns

    check_numbers("audit_split", {"records": records})
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
