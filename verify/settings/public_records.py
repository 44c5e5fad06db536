"""Public records mixed into a training: whether the report's entries on them agree, and match the given files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict

_ROLE, _DATA, _HELD_OUT, _MEASURED = "public", "data", "held-out", "measured"
_FIELDS = ("public_weight", "public_batch_size", "public_examples", "public_overlap")
#: The ways to treat a public record that is also a private one.
_REFUSED, _KEPT = "refuse", "keep"
#: The assumption on how public records take part, and the one that none of them is private.
MIXED, APART = "public data", "separate public data"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicAtHand:
    """The number of ``records`` in the given public files, and the files' ``digests``.

    ``shared`` is whether one of their texts also occurs in the given private data, or None if that was not checked.
    """

    name: str
    records: int
    digests: tuple[str, ...]
    shared: bool | None = None


def premises(parameters: Any) -> Iterator[str]:
    """Yields the assumptions that a guarantee rests on if public records take part."""
    if parameters.public_weight is not None:
        yield MIXED
        if parameters.public_overlap != _KEPT:
            yield APART


def _taken_for_public(report: PrivacyReport, parameters: Any) -> Iterator[str]:
    """Yields one sentence for each use of the training data where public records are required."""
    private = {artifact.digest for artifact in report.inputs if artifact.role == _DATA}
    held_out = {artifact.digest for artifact in report.inputs if artifact.role == _HELD_OUT}
    if getattr(parameters, "search", None) is not None and private & held_out:
        yield "the best of several runs was chosen by results on the training data, and not on public records"
    elif getattr(parameters, "search", None) is not None and not held_out:
        yield "it is the best of several runs, and names no held-out records by which it was chosen"
    digest = getattr(parameters, "measured_public_digest", None)
    measured = {each.digest for each in report.inputs if each.role == _MEASURED}
    if digest in private or private & measured:
        yield "layers were measured on the training data itself, without noise, and not on public records"
    if measured and digest is None:
        yield "it read records to measure layers on, and its parameters say of none"
    elif len(measured) == 1 and digest not in measured:  # of several files it is a digest of their digests
        yield "measured_public_digest is not the digest of the file that it names for these records"


def disagreements(report: PrivacyReport, parameters: Any) -> Iterator[str]:
    """Yields one sentence for each entry on public records that is missing, impossible or inconsistent."""
    yield from _taken_for_public(report, parameters)
    read = any(artifact.role == _ROLE for artifact in report.inputs)
    missing = [name for name in _FIELDS if getattr(parameters, name, None) is None]
    if len(missing) == len(_FIELDS):
        if read:
            yield "it read public records, but no parameter says how they took part"
        return
    if missing:
        yield f"public records took part, but {', '.join(missing)} is not stated"
        return
    if not read:
        yield "public records took part, but it names no public file among its inputs"
    weight, size, records = parameters.public_weight, parameters.public_batch_size, parameters.public_examples
    if not (math.isfinite(weight) and weight >= 0):
        yield f"public_weight is {weight:g}, which no training takes"
    if not 1 <= size <= records:
        yield f"batches of {size} different ones cannot be drawn from {counted(records, 'public record')}"
    if parameters.public_overlap not in (_REFUSED, _KEPT):
        yield f"public_overlap is {parameters.public_overlap!r}, which is nothing that a training does"
    if parameters.plan is not None:
        yield "public records took part beside a plan of secrets, for which nobody searched them"


def misstated(parameters: Any, statements: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence if the assumption on public records disagrees with the parameters."""
    if (statement := statements.get(MIXED)) is None:
        return
    weight, size = getattr(parameters, "public_weight", None), getattr(parameters, "public_batch_size", None)
    records = getattr(parameters, "public_examples", None)
    expected = (
        f"the {records} public records were chosen without looking at the private ones, and nothing in them needs "
        f"protection: each step adds {weight} times the mean gradient of {size} of them, neither clipped nor noised, "
        "and no guarantee covers them"
    )
    if statement != expected:
        yield f"its assumption {MIXED!r} says {statement!r}, but by its parameters {expected}"


def check_public(report: PrivacyReport, public: PublicAtHand, parameters: Any) -> Iterator[Verdict]:
    """Compares the given public records with the report: their number, their digests, and that none is private."""
    count = getattr(parameters, "public_examples", None)
    recorded = sorted(artifact.digest for artifact in report.inputs if artifact.role == _ROLE)
    if count is None or not recorded:
        yield _verdict(Outcome.REFUTED, f"no public records took part by the report, but {public.name} is given")
        return
    same = public.records == count
    agreement = "as the report says" if same else f"and the report says {count}"
    yield _verdict(
        Outcome.PROVED if same else Outcome.REFUTED,
        f"{public.name} holds {counted(public.records, 'record')}, {agreement}",
    )
    same = sorted(public.digests) == recorded
    agreement = "is what was mixed in" if same else "is not what was mixed in: its digest differs"
    yield _verdict(Outcome.PROVED if same else Outcome.REFUTED, f"{public.name} {agreement}")
    if public.shared is None or parameters.public_overlap == _KEPT:
        return
    if public.shared:
        yield _verdict(Outcome.REFUTED, f"a record of {public.name} stands in the private data too")
    else:
        yield _verdict(
            Outcome.PROVED,
            f"no record of {public.name} stands in the private data: whole texts were compared, but for case and white "
            "space",
        )


def _verdict(outcome: Outcome, reason: str) -> Verdict:
    return Verdict(subject="public data", outcome=outcome, reason=reason)
