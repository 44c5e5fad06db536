"""Whether privctl drew an audit's split: checks its manifest, the files it names, and each coin.

For other files, checks that the model was not trained on those that the audit takes as unseen.

An audit of a drawn split may find a leak even if its two files can be told apart without the model, so a report that
states a drawn split must prove it. Does not import numpy, like a gate over audits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from privctl.storage.digest import NamedFiles, tag
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from verify.audits.split import groups as split_groups
from verify.audits.split.choice import has_skipped_units
from verify.audits.terms import BEYOND, BOUND, METHODS, NO_BOUNDS, of_split, sides_by_coins
from verify.consistency.begun_with import LEARNED
from verify.files.places import as_recorded
from verify.methods.expected import EXTERNAL, TRAINING

_SUBJECT, _ROLE, _KIND = "drawn split", "split", "privctl-split"
#: Part of the reason why a split that the model was not trained on bounds nothing.
_OTHER_DATA = "names other training data than"
#: The roles of files that the model must not have been trained on.
UNSEEN = ("nonmembers", "heldout")
#: The fraction of an audit's failure probability that its bounds share.
_BOUNDS_SHARE, _ROUNDING = 0.5, 1e-9
#: For the roles of files in membership and in extraction audits, their names in the manifest.
_MEMBERSHIP = {"members": "members", "nonmembers": "nonmembers"}
_EXTRACTION = {"train": "members", "heldout": "nonmembers"}


def check_split(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Compares the split stated by the audit report at ``path`` with its manifest and files, if they are present."""
    if report.step != "audit":
        return
    try:
        stated = parameters_as(AuditParameters, report)
    except ParametersError:
        return  # reported by another check
    if stated.split_commitment is None:
        return
    try:
        outcome, reason = _judge_split(path, report, stated, parents)
    except (InputError, ValueError, TypeError, KeyError, AttributeError) as fault:
        outcome, reason = Outcome.REFUTED, f"its manifest cannot be read ({fault})"
    yield Verdict(subject=_SUBJECT, outcome=outcome, reason=reason)


def check_unseen(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes each file of supposedly unseen records that a training of the model names as its data, by digest."""
    if report.step != "audit":
        return
    trained = _files_of_trainings(parents, LEARNED)
    for artifact in report.inputs:
        if artifact.role in UNSEEN and artifact.digest in trained:
            reason = (
                "the audit took it as records that the model was not trained on, and a report that it builds on says "
                "that the model was trained on it"
            )
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=reason)


def drawn_from(path: Path, report: PrivacyReport) -> str:
    """The digest of the training file that contains every member of the audit's split and none of its non-members.

    If a split covers only some records, its members are a part of the training data. The file is the one the manifest
    names by digest. Returns "" if a file is missing or does not show this.
    """
    try:
        place, stated = _at_hand(path, report, _ROLE), parameters_as(AuditParameters, report)
        sides = [_at_hand(path, report, role) for role in next(iter(_roles(report, stated)), _MEMBERSHIP)]
        if place is None or None in sides:
            return ""
        manifest = parse_json(read_text(place), str(place))
        train = manifest["train"]
        if manifest["kind"] != _KIND or _committed(manifest) != stated.split_commitment or train is None:
            return ""
        whole = place.with_name(train["name"])
        if whole.parent != place.parent or not whole.is_file() or NamedFiles().digest(whole) != train["digest"]:
            return ""
        members, others = (set(_record_digests(file)) for file in sides if file is not None)
        missing = set(members)
        for name in _record_digests(whole):
            if name in others:
                return ""
            missing.discard(name)
        return str(train["digest"]) if members and not missing else ""
    except (InputError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""


def _roles(report: PrivacyReport, stated: AuditParameters) -> list[dict[str, str]]:
    """For each part of the audit that uses a drawn split, the roles of its two sides."""
    roles = [_MEMBERSHIP] if any(item.role in _MEMBERSHIP for item in report.inputs) else []
    return roles + ([_EXTRACTION] if sides_by_coins(stated.extraction) else [])


def _record_digests(file: Path) -> Iterator[bytes]:
    """Yields a 16-byte digest of each record of ``file``."""
    with file.open("rb") as lines:
        yield from (blake3(content).digest(length=16) for line in lines if (content := line.strip()))


def _judge_split(
    path: Path, report: PrivacyReport, stated: AuditParameters, parents: Sequence[PrivacyReport]
) -> tuple[Outcome, str]:
    place = _at_hand(path, report, _ROLE)
    if place is None:
        return Outcome.INCONCLUSIVE, "its manifest is not at hand, without which nothing shows that privctl drew it"
    manifest = parse_json(read_text(place), str(place))
    if manifest["kind"] != _KIND or _committed(manifest) != stated.split_commitment:
        return Outcome.REFUTED, "its manifest does not give the commitment that the audit states"
    if manifest["records"] != stated.split_records:
        return Outcome.REFUTED, f"it states {stated.split_records} records, its manifest {manifest['records']}"
    if wrong := split_groups.unit_mismatch(manifest, stated):
        return Outcome.REFUTED, wrong
    if wrong := _overspent(report, stated.confidence) or _said_elsewhere(report, stated, manifest, parents):
        return Outcome.REFUTED, wrong
    return _check_coins(path, report, stated, manifest)


def _check_coins(
    path: Path, report: PrivacyReport, stated: AuditParameters, manifest: dict[str, Any]
) -> tuple[Outcome, str]:
    """Recomputes each coin from the key of ``manifest`` and compares it with the files."""
    key, field = bytes.fromhex(manifest["key"]), manifest.get("group_by")
    records, included = Counter[bytes](), 0
    groups: dict[str, Counter[bool]] = {}
    parts = _roles(report, stated)
    if fault := _other_files(report, parts, manifest):
        return Outcome.REFUTED, fault
    for role, side in ((role, name == "members") for role, name in parts[0].items()):
        file = _at_hand(path, report, role)
        if file is None:
            return Outcome.INCONCLUSIVE, f"the {role} are not at hand, so that their coins cannot be tossed again"
        lines = Counter(content for line in file.read_bytes().split(b"\n") if (content := line.strip()))
        if field is None:
            wrong = any(_coin(key, content) is not side for content in lines)
        else:
            of_side = split_groups.counted(lines, field)
            wrong = any(split_groups.coin(key, name) is not side for name in of_side)
            for name, number in of_side.items():
                groups.setdefault(name, Counter())[side] = number
        if wrong:
            coins = "their coins" if field is None else "the coins of their groups"
            return Outcome.REFUTED, f"some of its {role} are on the other side than {coins}"
        records += lines
        included += side * len(lines)
    if (len(records), included) != (manifest["records"], manifest["included"]):
        return Outcome.REFUTED, "its manifest counts other records than its files hold"
    if field is not None:
        return _of_groups(path, report, stated, manifest, groups)
    return _judge_records(path, report, stated, manifest, records)


def _judge_records(
    path: Path, report: PrivacyReport, stated: AuditParameters, manifest: dict[str, Any], records: Counter[bytes]
) -> tuple[Outcome, str]:
    """The answer for a split of ``records``, with their numbers of occurrences, once each is on its coin's side."""
    key, included = bytes.fromhex(manifest["key"]), manifest["included"]
    if manifest["train"] is not None:
        whole = _trained_on(path, report, manifest)
        if whole is None:
            return Outcome.INCONCLUSIVE, f"{manifest['train']['name']} is not at hand, which shows who got coins"
        if fault := _not_drawn(key, whole, records):
            return Outcome.REFUTED, fault
    fault = _miscounted(report, stated, sum(count == 1 for count in records.values()), "records that occur once")
    if fault := fault or _more_texts(report, stated, included, len(records) - included, "records"):
        return Outcome.REFUTED, fault
    return Outcome.CONSISTENT, f"the coins of all {len(records)} records are those of the manifest's key"


def _other_files(report: PrivacyReport, parts: Sequence[Mapping[str, str]], manifest: Mapping[str, Any]) -> str:
    """A sentence on a side of the audit whose file is not the one in ``manifest``; "" if both are."""
    for part in parts:
        for role, side in part.items():
            if [item.digest for item in report.inputs if item.role == role] != [manifest[side]["digest"]]:
                return f"the {role} that it audited are not those that were drawn"
    return "" if parts else "it audits neither membership nor extraction by the split that it states"


def _of_groups(
    path: Path,
    report: PrivacyReport,
    stated: AuditParameters,
    manifest: dict[str, Any],
    groups: dict[str, Counter[bool]],
) -> tuple[Outcome, str]:
    """The answer for a split of ``groups``, with their records by side, once each is on its coin's side."""
    members = Counter({name: count[True] for name, count in groups.items() if count[True]})
    if (len(groups), len(members)) != (manifest["groups"], manifest["included_groups"]):
        return Outcome.REFUTED, "its manifest counts other groups than its files hold"
    fault = _miscounted(report, stated, len(groups), "groups")
    fault = fault or split_groups.size_mismatch(report, max(count.total() for count in groups.values()))
    if fault := fault or _more_texts(report, stated, len(members), len(groups) - len(members), "groups"):
        return Outcome.REFUTED, fault
    if manifest["train"] is not None:
        whole = _trained_on(path, report, manifest)
        if whole is None:
            name = manifest["train"]["name"]
            return Outcome.INCONCLUSIVE, f"{name} is not at hand, without which no group is seen to be whole"
        if fault := split_groups.partial_group(whole, manifest, groups, members):
            return Outcome.REFUTED, fault
    return (
        Outcome.CONSISTENT,
        f"the coins of all {len(groups)} groups are those of the manifest's key, and none is split",
    )


def _trained_on(path: Path, report: PrivacyReport, manifest: Mapping[str, Any]) -> Path | None:
    """The training file that ``manifest`` names; None if it is missing or changed."""
    place, train = _at_hand(path, report, _ROLE), manifest["train"]
    whole = None if place is None else place.with_name(train["name"])
    return whole if whole and whole.is_file() and NamedFiles().digest(whole) == train["digest"] else None


def _not_drawn(key: bytes, whole: Path, drawn: Mapping[bytes, int]) -> str:
    """How the training file ``whole`` shows that the key did not choose the ``drawn`` records; "" if it does not.

    Every record must be in it as often as it occurs if its coin says member or if it has no coin, otherwise not at all.
    """
    trained = Counter(split_groups.nonempty_lines(whole))
    if any(trained[content] != number * _coin(key, content) for content, number in drawn.items()):
        return f"{whole.name} does not hold the members as they were drawn, and no non-member"
    if has_skipped_units(key, drawn, trained, of_groups=False):
        return f"{whole.name} holds records without a coin that the manifest's key puts before some that have one"
    return ""


def _miscounted(report: PrivacyReport, stated: AuditParameters, coins: int, what: str) -> str:
    """What is wrong with the bounds if there is one coin for each of ``coins`` ``what``; "" if nothing is."""
    curves = {item.method for item in report.evidence if item.quantity == "AUC"} - {"midpoint", "fused"}
    if coins > 1 and curves & set(stated.attack) and any(omission.what == NO_BOUNDS for omission in report.omissions):
        return f"it omits its bounds, and there are {coins} {what}"
    for item in report.evidence:
        if item.method in METHODS and of_split(item, stated) and item.samples["canaries"] != coins:
            return f"its bound on {item.quantity} does not count all {coins} {what}"
    return ""


def _more_texts(report: PrivacyReport, stated: AuditParameters, members: int, others: int, what: str) -> str:
    """A sentence if an extraction audit compares more than ``members`` or ``others`` units; "" if not."""
    if not sides_by_coins(stated.extraction):
        return ""
    for item in (item for item in report.evidence if item.quantity in BEYOND):
        for side, most in (("training", members), ("held_out", others)):
            if item.details.get(f"{side}_texts", 0) > most:
                return f"its {item.quantity} counts more {what} than the {most} of that side"
    return ""


def _overspent(report: PrivacyReport, confidence: float | None) -> str:
    """A sentence if the bounds exceed half of the audit's failure probability together; "" if not."""
    bounds = [item for item in report.evidence if item.method == BOUND and item.lower is not None]
    spent = sum(1 - item.confidence for item in bounds if ", " in item.quantity)
    if spent <= _BOUNDS_SHARE * (1 - (confidence or 1.0)) + _ROUNDING:
        return ""
    return f"its {len(bounds)} bounds are wrong with chance {spent:.3g} together, more than half of the audit's"


def _said_elsewhere(
    report: PrivacyReport, stated: AuditParameters, manifest: Mapping[str, Any], parents: Sequence[PrivacyReport]
) -> str:
    """A sentence if bounds are withheld since the model was trained on other data, and its report names the split's."""
    trained = _files_of_trainings(parents, ("data",))
    withheld = any(of_split(item, stated) and _OTHER_DATA in item.reason for item in report.evidence)
    drawn = manifest["train"] or manifest["members"]
    if withheld and trained == {drawn["digest"]}:
        return "it withholds its bounds as if the model was trained on other data, and its report names the split's"
    return ""


def _files_of_trainings(parents: Sequence[PrivacyReport], roles: Collection[str]) -> set[str]:
    """The digests of the files with these roles that the trainings among ``parents`` name."""
    trainings = (parent for parent in parents if parent.step in (TRAINING, EXTERNAL))
    return {item.digest for training in trainings for item in training.inputs if item.role in roles}


def _at_hand(path: Path, report: PrivacyReport, role: str) -> Path | None:
    """The file of this role; None if it is missing or no longer as recorded."""
    return next((place for item in report.inputs if item.role == role and (place := as_recorded(path, item))), None)


def _committed(manifest: dict[str, Any]) -> str:
    """The commitment: BLAKE3 of the other entries as JSON with sorted keys and without spaces."""
    body = {name: value for name, value in manifest.items() if name not in ("kind", "commitment")}
    return tag(blake3(json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()))


def _coin(key: bytes, content: bytes) -> bool:
    return blake3(b"coin\0" + content, key=key).digest(length=1)[0] % 2 == 1
