"""A drawn split as read from its files: the side and the coin of each record, checked against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audits.canaries.manifest import DataFile
from audits.split.manifest import SplitManifest, Use, is_member, read_manifest
from privctl.data import users
from privctl.data.packed import byte_lines
from privctl.domain.errors import InputError
from privctl.domain.shown import counted
from privctl.storage.digest import file_digest
from privctl.storage.json_text import parse_json, shown

#: Whether the record is a member, and its line in the file of that side, from 1.
Place = tuple[bool, int]
_AGAIN = "draw a new split"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSplit:
    """A split whose files are as they were drawn; see ``read_split``.

    ``coins`` maps records to the number of their coin: their own, if their line occurs once, or that of their group.
    ``included`` says for each coin whether its records are members; ``most`` is the largest number of records that
    share one.
    """

    path: Path
    manifest: SplitManifest
    coins: Mapping[Place, int]
    included: tuple[bool, ...]
    most: int = 1

    @property
    def members(self) -> Path:
        """The members' file."""
        return self.path.with_name(self.manifest.members.name)

    @property
    def nonmembers(self) -> Path:
        """The non-members' file."""
        return self.path.with_name(self.manifest.nonmembers.name)

    @property
    def trained_on(self) -> DataFile:
        """The file that a model must be trained on for the split to apply to it."""
        return self.manifest.train or self.manifest.members

    @property
    def group_by(self) -> str | None:
        """The field whose values share a coin; None if each record has its own."""
        return self.manifest.group_by

    @property
    def coin_word(self) -> str:
        """The word for the unit that has a coin."""
        return "record" if self.group_by is None else "group"


def read_split(path: Path) -> DrawnSplit:
    """The split whose manifest is at ``path``.

    Raises InputError unless both files beside it have the manifest's digests and numbers of records, and each record is
    on the side of its coin. Groups must be complete: on one side, and with no other records in the training file.
    """
    manifest = read_manifest(path)
    lines: dict[bytes, list[Place]] = {}
    for side, file in ((True, manifest.members), (False, manifest.nonmembers)):
        for number, content in contents(_checked(path, file)):
            lines.setdefault(content, []).append((side, number))
    if manifest.group_by is not None:
        return _of_groups(path, manifest, manifest.group_by, lines)
    key = bytes.fromhex(manifest.key)
    for content, places in lines.items():
        for place in places:
            if is_member(key, content) is not place[0]:
                raise InputError(
                    f"{_line_of(path, manifest, place)} is on the other side than its coin in {path}; {_AGAIN}"
                )
    _require_counts(path, manifest, lines)
    single = sorted(places[0] for places in lines.values() if len(places) == 1)
    coins = {place: number for number, place in enumerate(single)}
    return DrawnSplit(path=path, manifest=manifest, coins=coins, included=tuple(side for side, _ in single))


def _of_groups(path: Path, manifest: SplitManifest, field: str, lines: Mapping[bytes, list[Place]]) -> DrawnSplit:
    groups: dict[str, list[Place]] = {}
    for content, places in lines.items():
        groups.setdefault(group_of(content, field, _line_of(path, manifest, places[0])), []).extend(places)
    key = bytes.fromhex(manifest.key)
    for name, places in groups.items():
        ends = min(places), max(places)
        if ends[0][0] is not ends[1][0]:
            first, second = (_line_of(path, manifest, place) for place in reversed(ends))
            raise InputError(
                f"the group {shown(name)} of {field!r} is on both sides of the split, at {first} and {second}; {_AGAIN}"
            )
        if is_member(key, name.encode(), Use.GROUP_COIN) is not places[0][0]:
            raise InputError(
                f"{_line_of(path, manifest, min(places))} is on the other side than the coin of its group in {path}; "
                f"{_AGAIN}"
            )
    _require_counts(path, manifest, lines)
    included = sum(places[0][0] for places in groups.values())
    if (len(groups), included) != (manifest.groups, manifest.included_groups):
        raise InputError(f"{path} states other numbers of groups than its files hold; {_AGAIN}")
    if manifest.train is not None:
        _require_whole(path, manifest.train, field, groups)
    ordered = sorted(groups.values(), key=min)
    return DrawnSplit(
        path=path,
        manifest=manifest,
        coins={place: number for number, places in enumerate(ordered) for place in places},
        included=tuple(places[0][0] for places in ordered),
        most=max(map(len, ordered)),
    )


def _require_whole(path: Path, train: DataFile, field: str, groups: Mapping[str, list[Place]]) -> None:
    """Raise InputError if the training file has other records of a drawn group than the members' file."""
    place = _checked(path, train)
    sizes = Counter(group_of(content, field, f"{place} line {number}") for number, content in contents(place))
    for name, places in groups.items():
        drawn = len(places) if places[0][0] else 0
        if sizes[name] != drawn:
            raise InputError(
                f"{place} holds {counted(sizes[name], 'record')} of the group {shown(name)} of {field!r}, of which "
                f"{drawn} were drawn as members; a group is drawn as a whole: {_AGAIN}"
            )


def _checked(path: Path, file: DataFile) -> Path:
    """The path of ``file`` of the manifest at ``path``. Raises InputError if it is missing or changed."""
    place = path.with_name(file.name)
    if not place.is_file():
        raise InputError(f"{place} is missing, which {path} describes; keep the files of a split together")
    if file_digest(place) != file.digest:
        raise InputError(f"{place} is not the file that was drawn, by its digest in {path}; restore it")
    return place


def _require_counts(path: Path, manifest: SplitManifest, lines: Mapping[bytes, list[Place]]) -> None:
    included = sum(places[0][0] for places in lines.values())
    if (len(lines), included) != (manifest.records, manifest.included):
        raise InputError(f"{path} states other numbers of records than its files hold; {_AGAIN}")


def _line_of(path: Path, manifest: SplitManifest, place: Place) -> str:
    side, number = place
    file = manifest.members if side else manifest.nonmembers
    return f"{path.with_name(file.name)} line {number}"


def group_of(content: bytes, field: str, where: str) -> str:
    """The group of a record given as a line of JSON. Raises InputError, naming ``where``, if there is none."""
    try:
        fields = parse_json(content.decode(), where)
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; give records as JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise InputError(f"{where} is not a JSON object; give records with a field {field!r}")
    return users.group_of(fields, field, where)


def contents(path: Path) -> Iterator[tuple[int, bytes]]:
    """The records of a written file with their line numbers, from 1."""
    for number, line in enumerate(byte_lines(path), start=1):
        if content := line.strip():
            yield number, content
