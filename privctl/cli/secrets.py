"""``privctl secrets``: find secrets in training data, and plan their protection."""

from __future__ import annotations

import click

from privctl.cli.groups import SuggestingGroup, WithRareOptions
from privctl.cli.secrets_plan import plan
from privctl.cli.secrets_scan import merge, scan


@click.group(cls=SuggestingGroup)
def secrets() -> None:
    """Find the secrets in a data set, and plan a training that protects each of them to a chosen degree.

    \b
    Example:
      privctl secrets scan train.jsonl -o secrets.jsonl
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 --batch-size 64 \\
          --cap 5 -o plan.safetensors
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
    """


#: What ``--help`` lists; ``--help-all`` shows the other options too.
_OF_SCAN = (
    "output", "kinds", "patterns", "literals", "by", "rare_words", "text_column", "force", "as_json", "quiet",
)  # fmt: skip
_OF_PLAN = (
    "secrets", "steps", "batch_size", "output", "prior", "posterior", "cap", "text_column", "force", "as_json", "quiet",
)  # fmt: skip

secrets.command("scan", cls=WithRareOptions, shown=_OF_SCAN)(scan)
secrets.command("merge")(merge)
secrets.command("plan", cls=WithRareOptions, shown=_OF_PLAN)(plan)
