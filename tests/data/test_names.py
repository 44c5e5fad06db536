"""Names of users: which are spelled alike, which are made one, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audits.split.draw import SplitRequest, draw_split
from audits.split.manifest import read_manifest
from privctl.api import accounting
from privctl.api.accounting import CountedData, account
from privctl.data.count import count_examples, similar_names_at
from privctl.data.names import field_of, folded, spelled_alike
from privctl.data.users import group_of, user_of, users_of
from privctl.domain.errors import InputError

#: Four spellings of one name, two of another, and one that has no other.
SPELLINGS = ("Ann Lee", "ann lee", "ANN  LEE", "\uff21nn Lee")
OTHERS = ("Stra\u00dfe", "STRASSE", "Bob")


def test_spellings_of_a_name_fold_to_one_and_are_counted() -> None:
    assert {folded(name) for name in SPELLINGS} == {"ann lee"}
    assert spelled_alike({*SPELLINGS, *OTHERS}) == 6
    assert spelled_alike({"Ann", "Anna", "Bob"}) == 0
    for name in (*SPELLINGS, *OTHERS, "\u0130x", "\u1e9e", "\ufb01", "\u00e9", "e\u0301", "\u03a3\u03c2"):
        assert folded(folded(name)) == folded(name)
    assert folded("\u00e9") == folded("e\u0301") == folded("\u00c9")


def test_names_are_made_one_only_where_that_is_asked_for() -> None:
    rows = [{"who": name} for name in (*SPELLINGS, *OTHERS)]
    assert field_of("fold(who)") == field_of("who") == "who"
    assert len({user_of(row, "who", "a line") for row in rows}) == 7
    assert len({user_of(row, "fold(who)", "a line") for row in rows}) == 3
    assert users_of({"who": [*SPELLINGS, "Bob"]}, "fold(who)", "a line") == ("ann lee", "bob")
    assert len(users_of({"who": [*SPELLINGS, "Bob"]}, "who", "a line")) == 5
    with pytest.raises(InputError, match="has a field 'fold\\(who\\)', which would mean the folded names in 'who'"):
        user_of({"who": "a", "fold(who)": "b"}, "fold(who)", "a line")


@pytest.mark.parametrize("several", [["ann", "bob"], '["ann", "bob"]', ' ["ann"]'])
@pytest.mark.parametrize("unit", ["who", "fold(who)"])
def test_a_list_is_no_name(several: object, unit: str) -> None:
    for read in (user_of, group_of):
        with pytest.raises(InputError, match="has a list as 'who'"):
            read({"who": several}, unit, "a line")
    assert user_of({"who": "[ann"}, "who", "a line") == "[ann"


def test_counts_of_data_tell_of_spellings(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    names = [*SPELLINGS, *OTHERS, *(f"user {i}" for i in range(40))]
    data.write_text("".join(json.dumps({"text": f"t{i}", "who": name}) + "\n" for i, name in enumerate(names)))
    assert (count_examples(data, "who"), count_examples(data, "fold(who)")) == (47, 43)
    assert (similar_names_at(data, "who"), similar_names_at(data, "fold(who)")) == (6, 0)
    messages: list[str] = []
    account(epsilon=8, delta=1e-5, data=data, unit="who", batch_size=5, epochs=1, no_peers=True, notify=messages.append)
    warning = (
        "6 names in 'who' differ from another's only in case, spaces or Unicode form, and count as different users"
    )
    assert sum(message.startswith(warning) for message in messages) == 1
    assert f"counted in {data}: 47 examples, each all records with one value of 'who'" in messages
    assert CountedData(path=data, unit="fold(who)", text_column=None).count(messages.append) == 43
    for unit, groups, alike in (("who", 47, 6), ("fold(who)", 43, 0)):
        folder = tmp_path / unit
        draw_split(SplitRequest(data=data, folder=folder, group_by=unit))
        manifest = read_manifest(folder / "manifest.json")
        assert (manifest.groups, manifest.similar_names) == (groups, alike)
        assert (manifest.group_by, field_of(unit)) == (unit, "who")


def test_a_long_count_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data := tmp_path / "d.jsonl").write_text('{"text": "a record"}\n' * 100)
    messages: list[str] = []
    counting = CountedData(path=data, unit=None, text_column=None)
    assert counting.count(messages.append) == 100
    assert len(messages) == 1
    monkeypatch.setattr(accounting, "_LARGE", 2000)
    assert counting.count(messages.append) == 100
    assert messages[1:] == [
        f"counting the examples in {data}, which has 2.1e-06 GB",
        f"counted in {data}: 100 examples",
    ]
