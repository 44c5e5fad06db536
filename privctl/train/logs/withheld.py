"""Withholds exact metrics of the private examples from everything that may be released.

Losses, norms and fractions of the training examples are exact functions of private data, and no guarantee covers them.
Held-out metrics stay, on the assumption, which the report states, that the held-out data is public.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from privctl.domain.report import Omission
from privctl.storage.atomic import PendingFile
from privctl.train.preparation.places import private_path
from privctl.train.settings.request import RetrainRequest

HELD_OUT_IS_PUBLIC = "held-out measures are exact and no guarantee covers them: the held-out data is taken to be public"
_WITHHELD = Omission(
    what="losses, norms and fractions measured on the training examples",
    reason="they are exact, so no guarantee covers them; --show-unprotected writes them to a private file",
)
#: Prefixes of metrics of records that are taken to be public.
_PREFIXES = ("held_out_", "public_")
EXACT_MEASURES = "not for release: exact measures of private training examples, which no guarantee covers"


def withholds(request: RetrainRequest) -> bool:
    """Whether exact metrics of the examples are withheld, as in every private run."""
    return request.method.private


def released(request: RetrainRequest, history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The parts of ``history`` (one entry per epoch) that a report may contain."""
    everything = not withholds(request)
    return [
        {key: value for key, value in entry.items() if everything or key.startswith(_PREFIXES)} for entry in history
    ]


def omissions(request: RetrainRequest) -> tuple[Omission, ...]:
    """The report's note on withheld metrics."""
    return (_WITHHELD,) if withholds(request) else ()


def caveats(request: RetrainRequest) -> Iterator[str]:
    """The report's warning about metrics that are not withheld."""
    if withholds(request) and request.data.held_out is not None:
        yield HELD_OUT_IS_PUBLIC


@contextmanager
def staged_private(
    request: RetrainRequest, history: Sequence[Mapping[str, float]], notes: Sequence[str]
) -> Iterator[list[PendingFile]]:
    """The private file of withheld metrics, before it gets its final name; an empty list unless it was requested."""
    if not request.show_unprotected:
        yield []
        return
    data: dict[str, Any] = {"warning": EXACT_MEASURES, "model": request.output.name, "history": [*map(dict, history)]}
    text = json.dumps({**data, "notes": list(notes)}, indent=1) + "\n"
    with PendingFile(private_path(request.output)) as pending:
        pending.write_at(0, text.encode())
        yield [pending]
