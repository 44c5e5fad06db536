"""Splits whose coins are tossed for users: whole users on one side, and no audit of anything else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from audits.canaries.design import power_ceiling, register
from audits.split.manifest import read_manifest
from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.storage.digest import file_digest
from tests.audits.split.test_split import drawn, lines
from tests.audits.split.users import SIZES, drawn_users, made_again, split_at, write_users
from tests.audits.tiny import write_jsonl


def users_of(path: Path) -> Counter[str]:
    return Counter(json.loads(line)["user"] for line in lines(path))


def test_all_records_of_a_user_share_a_coin(tmp_path: Path) -> None:
    folder = drawn_users(tmp_path, 180)
    members, others = (users_of(folder / f"{side}.jsonl") for side in ("members", "nonmembers"))
    assert not members.keys() & others.keys()
    assert members + others == users_of(tmp_path / "users.jsonl")
    assert 56 < len(members) < 124  # five standard deviations
    manifest = read_manifest(folder / "manifest.json")
    assert (manifest.group_by, manifest.groups, manifest.included_groups) == ("user", 180, len(members))
    assert (manifest.records, manifest.included) == (sum(SIZES) * 20, members.total())
    split = split_at(folder)
    assert (len(split.included), sum(split.included), split.most) == (180, len(members), 20)
    assert len(split.coins) == manifest.records


def test_so_many_users_are_drawn_and_all_others_trained_on(tmp_path: Path) -> None:
    folder = drawn_users(tmp_path, 90, records=40)
    members, others, train = (users_of(folder / f"{side}.jsonl") for side in ("members", "nonmembers", "train"))
    assert len(members) + len(others) == 40
    assert train == users_of(tmp_path / "users.jsonl") - others
    assert members.items() <= train.items()
    assert split_at(folder).trained_on.digest == file_digest(folder / "train.jsonl")


def test_a_manifest_of_records_says_nothing_of_groups(tmp_path: Path) -> None:
    """As before groups could be drawn, so that its commitment is the same."""
    data = json.loads((drawn(tmp_path) / "manifest.json").read_text())
    assert not {"group_by", "groups", "included_groups"} & data.keys()


def test_what_users_can_refute_is_said_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["audit", "split", str(write_users(tmp_path / "d.jsonl", 300)), "-o", str(tmp_path / "s"), "-q"]
    call += ["--group-by", "user", "--to-see", "3.8", "--force"]
    assert run(call) == 0
    stdout = capfd.readouterr().out
    assert "members in 1" in stdout
    assert "whether 300 groups can refute a claim of epsilon 3.8 at delta 1e-05" in stdout
    assert "by the 6 attacks on a language model, 2 scores each, they cannot" in stdout
    assert "by one attack alone (--attack), 2 scores each, they can," in stdout
    assert run([*call, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["groups"], answer["records"]) == (300, len(lines(tmp_path / "d.jsonl")))
    everything, one = answer["power"]
    assert one["ceiling"] == pytest.approx(power_ceiling(register([1] * 300), 1e-5, 0.025 / 2))
    assert everything["ceiling"] == pytest.approx(power_ceiling(register([1] * 300), 1e-5, 0.025 / 12))
    assert one["needed"] < 300 < everything["needed"]


def test_bad_requests_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", ["one", "two"])
    users = write_users(tmp_path / "u.jsonl", 9)
    for words, code, says in (
        ([str(data), "--group-by", "user"], 3, "d.jsonl line 1 lacks 'user'; give every record one"),
        ([str(users), "--group-by", "user", "--records", "10"], 2, "holds 9 different groups; give fewer"),
        ([str(write_users(tmp_path / "one.jsonl", 1)), "--group-by", "user"], 3, "so few groups that all coins fell"),
    ):
        assert run(["audit", "split", *words, "-o", str(tmp_path / "s")]) == code
        assert says in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def in_both(split: Path) -> None:
    """One record of a user with several is moved to the other side."""
    user = next(name for name, count in users_of(split / "members.jsonl").items() if count > 2)
    kept = lines(split / "members.jsonl")
    moved = next(line for line in kept if json.loads(line)["user"] == user)
    kept.remove(moved)
    (split / "members.jsonl").write_text("\n".join(kept) + "\n")
    with (split / "nonmembers.jsonl").open("a") as file:
        file.write(moved + "\n")
    made_again(split, included=len(kept))


def wholly_moved(split: Path) -> None:
    user = next(iter(users_of(split / "members.jsonl")))
    everyone = lines(split / "members.jsonl")
    moved = [line for line in everyone if json.loads(line)["user"] == user]
    kept = [line for line in everyone if line not in moved]
    (split / "members.jsonl").write_text("\n".join(kept) + "\n")
    with (split / "nonmembers.jsonl").open("a") as file:
        file.write("\n".join(moved) + "\n")
    made_again(split, included=len(kept))


def half_drawn(split: Path) -> None:
    """What is trained on holds another record of a drawn user."""
    user = next(iter(users_of(split / "members.jsonl")))
    with (split / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more", "user": user}) + "\n")
    made_again(split)


def trained_on_a_nonmember(split: Path) -> None:
    with (split / "train.jsonl").open("a") as file:
        file.write(lines(split / "nonmembers.jsonl")[0] + "\n")
    made_again(split)


CHANGES: dict[str, Callable[[Path], None]] = {
    r"the group '.*' of 'user' is on both sides of the split, at .*members\.jsonl line": in_both,
    "is on the other side than the coin of its group": wholly_moved,
    "of which .* were drawn as members; a group is drawn as a whole": half_drawn,
    "of which 0 were drawn as members": trained_on_a_nonmember,
    "states other numbers of groups": lambda split: made_again(split, groups=39),
    "lacks 'name'": lambda split: made_again(split, group_by="name"),
    "is on the other side than its coin": lambda split: made_again(
        split, group_by=None, groups=None, included_groups=None
    ),
}


@pytest.mark.parametrize("says", CHANGES)
def test_a_split_of_users_that_was_changed_is_not_audited(tmp_path: Path, says: str) -> None:
    folder = drawn_users(tmp_path, 90, records=40)
    split_at(folder)
    CHANGES[says](folder)
    with pytest.raises(InputError, match=says):
        split_at(folder)


def test_coins_of_records_are_not_those_of_users(tmp_path: Path) -> None:
    """A split of records is none of users, whatever its manifest is made to say."""
    data = write_users(tmp_path / "users.jsonl", 60)
    assert run(["audit", "split", str(data), "-o", str(tmp_path / "s"), "-q"]) == 0
    made_again(tmp_path / "s", group_by="user", groups=60, included_groups=30)
    with pytest.raises(InputError, match="on both sides of the split|on the other side than the coin of its group"):
        split_at(tmp_path / "s")


def test_only_what_has_coins_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = drawn_users(tmp_path, 60)
    manifest = ["--split", str(folder)]
    for words, says in (
        (
            ["membership", "m", *manifest, "--group-by", "name"],
            "tossed a coin for each value of 'user', and --group-by",
        ),
        (["m", *manifest, "--canaries", "c.json"], "is one about a record, and --split tossed coins for groups"),
    ):
        assert run(["audit", *words]) == 2
        assert says in capsys.readouterr().err
