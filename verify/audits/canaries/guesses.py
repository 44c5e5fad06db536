"""Whether the sets of guesses behind bounds from canaries are the registered ones.

A bound holds for sets that were fixed before training; sets picked afterwards could be those with the most correct
guesses. The manifest that an audit read says which sets were fixed, and its commitment shows that it is unchanged.
Without the manifest, only the default sets of planting are known. Does not import numpy, like a gate over audits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from privctl.storage.digest import NamedFiles, tag
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from verify.audits.canaries.conditions import share_for_exactly_half
from verify.audits.terms import BOUND, METHODS, of_split
from verify.files.places import located

_SUBJECT, _ROLE = "guesses on canaries", "canaries"
_PLANTED, _GRADIENTS = "privctl-canaries", "privctl-gradient-canaries"
#: Fractions of the canaries in the default sets, apart from the set of all; half of each are guessed as included.
_SHARES, _FEWEST = (0.02, 0.2, 0.5), 10
#: Attacks trained on the membership labels.
_WITHOUT_BOUND = {"fused"}
#: Older versions had a single set: this fraction was guessed as included, and as many as left out.
_SINGLE = 0.1
#: The fraction of an audit's failure probability for bounds from planted canaries, or for each gradient observation.
_BOUNDS_SHARE = 0.5
_ROUNDING = 1e-9

#: For canaries of up to a number of copies: how many canaries these are, and the number of guesses in each set.
_Level = tuple[int, tuple[int, ...]]
#: The sets that a file of canaries fixes, by copies.
_Registered = Mapping[int, _Level]


def check_guesses(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Compares the sets of guesses of the audit report at ``path`` with its manifest, or with the default sets."""
    items = [i for i in report.evidence if i.method in METHODS and i.lower is not None]
    if report.step != "audit" or not items:
        return
    try:
        stated = parameters_as(AuditParameters, report)
    except ParametersError:
        return  # reported by another check
    commitment, whole = stated.canary_commitment, stated.confidence
    drawn = [item for item in items if of_split(item, stated)]
    items = [item for item in items if not of_split(item, stated)]
    try:
        registered = _at_hand(path, report, commitment) if items else None
        wrong = [*_wrong(items, registered), *_wrong_of_split(drawn), *_left_out(report, stated)]
        share = share_for_exactly_half(stated.canary_conditions)
        wrong += _wrong_confidence(items, registered, commitment is not None, whole, share)
        wrong += _wrong_confidence(drawn, None, False, whole)
    except (InputError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as fault:
        wrong, registered = [f"what was registered cannot be read ({fault})"], None
    outcome = Outcome.REFUTED
    if registered is None and not wrong:
        outcome, wrong = Outcome.INCONCLUSIVE, list(_unusual_sets(items))
    for reason in wrong:
        yield Verdict(subject=_SUBJECT, outcome=outcome, reason=reason)


def default_set_sizes(canaries: int, *, several: bool = True) -> tuple[int, ...]:
    """The number of guesses in each default set on ``canaries``; ``several`` is false for versions with one set."""
    if not several:
        return (2 * min(canaries // 2, max(_FEWEST, round(_SINGLE * canaries))),)
    halves = dict.fromkeys(max(_FEWEST, round(share * canaries / 2)) for share in _SHARES)
    return (*(2 * half for half in halves if half < canaries // 2), canaries)


def _at_hand(path: Path, report: PrivacyReport, commitment: str | None) -> _Registered | None:
    """The sets fixed by the file of canaries that the audit read; None if it is missing or no longer as recorded."""
    for artifact in report.inputs:
        place = located(path, artifact.path)
        if artifact.role != _ROLE or not os.path.isfile(place) or NamedFiles().digest(place) != artifact.digest:
            continue
        data = parse_json(read_text(place), str(place))
        if data["kind"] == _GRADIENTS:
            count = len(data["included"])
            return {1: (count, default_set_sizes(count))}
        if data["kind"] == _PLANTED:
            return _levels(data, commitment, artifact.path)
    return None


def _levels(manifest: dict[str, Any], commitment: str | None, name: str) -> _Registered:
    """The registered sets by copies. Raises ValueError if the manifest is not the audit's or was changed."""
    if not manifest["commitment"] == commitment == _committed(manifest):
        raise ValueError(f"{name} does not give the commitment {commitment}, which the audit states")
    levels: dict[int, _Level] = {}
    for group in manifest["guesses"]:
        most, guesses = group["copies"], group["included"] + group["excluded"]
        within = sum(canary["copies"] <= most for canary in manifest["canaries"])
        levels[most] = (within, (*levels.get(most, (0, ()))[1], guesses))
    return levels


def _committed(manifest: Mapping[str, Any]) -> str:
    """The commitment: BLAKE3 of the salt and of the other entries as JSON with sorted keys and without spaces."""
    body = {name: value for name, value in manifest.items() if name not in ("kind", "commitment", "salt")}
    body["guesses"] = [
        {name: value for name, value in group.items() if name != "divided" or value} for group in manifest["guesses"]
    ]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return tag(blake3(bytes.fromhex(manifest["salt"]) + text.encode()))


def _stated(item: Evidence) -> _Level:
    canaries = item.samples["canaries"]
    if "sets" not in item.details:
        return canaries, (item.samples["guesses"],)
    return canaries, tuple(int(item.details[f"guesses {i}"]) for i in range(1, int(item.details["sets"]) + 1))


def _wrong(items: Sequence[Evidence], registered: _Registered | None) -> Iterator[str]:
    if registered is None:
        return
    for item in items:
        canaries, guesses = _stated(item)
        known = registered.get(int(item.details["copies"]))
        if known != (canaries, guesses):
            found = "none" if known is None else f"{_joined(known[1])} on {known[0]}"
            yield f"its bound on {item.quantity} is of {_joined(guesses)} guesses on {canaries} canaries; {found} " + (
                "were registered before training"
            )
    missing = registered.keys() - {int(item.details["copies"]) for item in items}
    for copies in sorted(missing):
        yield f"no bound is stated from the guesses that were registered on canaries of up to {copies} copies"


def _wrong_of_split(items: Sequence[Evidence]) -> Iterator[str]:
    """Checks bounds from a drawn split, whose sets follow from the number of its records."""
    for item in items:
        records, guesses = _stated(item)
        if guesses != default_set_sizes(records):
            yield (
                f"its bound on {item.quantity} is of {_joined(guesses)} guesses on {records} records, where a split "
                f"has {_joined(default_set_sizes(records))}"
            )


def _left_out(report: PrivacyReport, stated: AuditParameters) -> Iterator[str]:
    """If a drawn split gives bounds, each score with an AUC must have one, so that the largest cannot be left out."""
    bounded = {item.quantity.partition(", ")[2] for item in report.evidence if item.method == BOUND}
    curves = {item.method for item in report.evidence if item.quantity == "AUC"} - _WITHOUT_BOUND
    if bounded & set(stated.attack):
        for name in sorted((curves & set(stated.attack)) - bounded):
            yield f"no bound is stated from the scores of {name!r}, though other scores of the split have theirs"


def _unusual_sets(items: Sequence[Evidence]) -> Iterator[str]:
    for item in items:
        canaries, guesses = _stated(item)
        usual = default_set_sizes(canaries, several="sets" in item.details)
        if guesses != usual:
            yield (
                f"its bound on {item.quantity} is of {_joined(guesses)} guesses on {canaries} canaries, where "
                f"planting registers {_joined(usual)}; only the manifest, which is not at hand, could show that these "
                "were fixed before training"
            )


def _wrong_confidence(
    items: Sequence[Evidence], registered: _Registered | None, planted: bool, whole: float | None, of_share: float = 1.0
) -> Iterator[str]:
    """Bounds share half of the audit's failure probability, in proportion to their numbers of sets.

    ``of_share`` is the part of their share that they may use.
    """
    if whole is None:
        yield from ["it does not state the confidence that its bounds share"] if items else []
        return
    levels = registered.values() if registered is not None else {_stated(item) for item in items}
    total = sum(len(guesses) for _, guesses in levels)
    for item in items:
        share = of_share * (len(_stated(item)[1]) / total if planted else 1.0)
        if 1 - item.confidence > _BOUNDS_SHARE * (1 - whole) * share + _ROUNDING:
            yield (
                f"its bound on {item.quantity} holds with {item.confidence:.6g}, less than the registered sets leave "
                f"of the audit's {whole:g}"
            )


def _joined(guesses: Sequence[int]) -> str:
    return ", ".join(map(str, guesses))
