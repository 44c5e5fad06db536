"""The option of canary gradients, which methods share, and what it does not go with; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privctl.domain.errors import CommandError
from privctl.domain.ranges import Range
from privctl.train.settings.method_settings import option

if TYPE_CHECKING:
    from privctl.train.settings.request import RetrainRequest


def canaries_option() -> Any:
    """The field ``gradient_canaries``."""
    return option(
        None,
        "Audit run: mix in this many canary gradients, each by a coin toss, for a lower bound on epsilon; not for "
        "release. They take part in the steps like records, or like users.",
        within=Range(low=2, high=100_000),
    )


def check_canaries(request: RetrainRequest) -> None:
    """Raise CommandError for what canary gradients do not go together with."""
    if request.secrets is not None and request.method.canaries(request) is not None:
        raise CommandError(
            "--gradient-canaries are drawn at one rate, and --secrets sets one for each record; remove one"
        )
