"""``privctl audit``: a command that runs all attacks, and a group with a subcommand for each kind of attack."""

from __future__ import annotations

from privctl.cli.audit import commands
from privctl.cli.audit.split import split
from privctl.cli.groups import GroupWithCommand

audit = GroupWithCommand(
    commands.audit,
    {
        "membership": commands.membership,
        "canaries": commands.canaries,
        "extraction": commands.extraction,
        "secrets": commands.secrets,
        "split": split,
        "score-records": commands.score_records,
        "scores": commands.scores,
    },
)
