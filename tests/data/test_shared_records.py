"""Records of several users: how they are read, how many of a user's are chosen, and what changes without a user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.data.bounded import BoundedRecords
from privctl.data.columns import USUAL
from privctl.data.count import count_examples, possible_counts
from privctl.data.rows import Stretch
from privctl.data.selection import first_records, greedy, most_records, records_upper_bound, select
from privctl.data.sharing import Sharing
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.errors import InputError
from privctl.domain.shared_records import SharedRecords

Named = Sequence[tuple[str, ...]]
Choice = Callable[[Sequence[TextRecord], int], list[bool]]
CHOSEN = (SharedRecords.FIRST, SharedRecords.GREEDY, SharedRecords.MOST)
PEOPLE = [["ann", "bob"], ["bob"], ["ann", "cy", "dan"], ["ann"]]


def graphs(count: int, records: int = 9, people: int = 6) -> Iterator[Named]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 4, records)
        yield [tuple(f"u{u}" for u in rng.choice(people, size, replace=False)) for size in sizes]


def texts(named: Named, contents: Sequence[str] | None = None) -> list[TextRecord]:
    contents = contents or [f"text {i}" for i in range(len(named))]
    return [TextRecord(stretch=Stretch("a"), text=t, users=u) for t, u in zip(contents, named, strict=True)]


def by(rule: SharedRecords) -> Choice:
    return lambda records, most: select(Sharing.of(r.users for r in records), most, rule).tolist()


def shortest_first(records: Sequence[TextRecord], most: int) -> list[bool]:
    """A planted fault: a greedy choice that goes by what records say."""
    kept, load = [False] * len(records), dict.fromkeys((u for r in records for u in r.users), 0)
    for place in sorted(range(len(records)), key=lambda i: (len(records[i].text), i)):
        if all(load[user] < most for user in records[place].users):
            kept[place] = True
            load.update({user: load[user] + 1 for user in records[place].users})
    return kept


def changed_contents(choice: Choice, named: Named, most: int) -> int:
    """The most examples that differ where one user's records say something else, at any of a few contents."""
    base, worst = texts(named), 0
    before = [r.text if kept else None for r, kept in zip(base, choice(base, most), strict=True)]
    for user in {user for users in named for user in users}:
        for other in ("", "x" * 50):
            edited = texts(named, [other if user in r.users else r.text for r in base])
            after = [r.text if kept else None for r, kept in zip(edited, choice(edited, most), strict=True)]
            worst = max(worst, sum(a != b for a, b in zip(before, after, strict=True)))
    return worst


def changed_others(choice: Choice, named: Named, most: int, user: str) -> tuple[int, int]:
    """How many records of others are used only without the user's records, and only with them."""
    everyone = texts(named)
    others = [record for record in everyone if user not in record.users]
    with_user = [kept for r, kept in zip(everyone, choice(everyone, most), strict=True) if user not in r.users]
    without = choice(others, most)
    pairs = list(zip(without, with_user, strict=True))
    return pairs.count((True, False)), pairs.count((False, True))


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet"])
def test_users_are_read_from_every_format(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"mails.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"text": ["t"] * 4, "who": PEOPLE}), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"text": "t", "who": who}) + "\n" for who in [*PEOPLE[:3], "ann"]))
    else:
        cells = [json.dumps(who) for who in PEOPLE[:3]] + ["ann"]
        quoted = [cell.replace('"', '""') for cell in cells]
        lines = [f't,"{cell}"' for cell in quoted] if form == "csv" else [f"t\t{cell}" for cell in cells]
        path.write_text("\n".join(["text,who" if form == "csv" else "text\twho", *lines]))
    assert [list(r.users) for r in iter_texts(path, unit="who", shared=True)] == PEOPLE
    assert all(r.unit is None for r in iter_texts(path, unit="who", shared=True))
    assert count_examples(path, "who", most=3, shared=SharedRecords.ALL) == 4
    with pytest.raises(InputError, match=r"1 user in more than 2 records \(one is in 3\).*uses 3 of 4"):
        count_examples(path, "who", most=2, shared=SharedRecords.ALL)


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ([], "an empty list as 'who'"),
        (["ann", 1.5], "a number with a fraction"),
        ([["ann"]], "a list as 'who'"),
        ("[ann]", "no JSON array"),
        (None, "null as 'who'"),
    ],
)
def test_what_names_no_users_is_refused(field: object, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "t", "who": field}))
    with pytest.raises(InputError, match=fault):
        list(iter_texts(path, unit="who", shared=True))


def test_a_list_is_not_taken_for_one_user(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "t", "who": ["ann"]}))
    with pytest.raises(InputError, match="--shared-records"):
        list(iter_texts(path, unit="who"))


def test_nobody_is_in_too_many_and_most_is_the_most() -> None:
    """Against every subset of the records of small graphs."""
    best_of_all = best_of_greedy = 0
    for named in graphs(25):
        sharing = Sharing.of(named)
        matrix = np.zeros((len(named), 6), int)
        matrix[sharing.records, sharing.users] = 1
        subsets = (np.arange(2 ** len(named))[:, None] >> np.arange(len(named))) & 1
        for most in (1, 2, 3):
            fits = (subsets @ matrix <= most).all(axis=1)
            best = int(subsets[fits].sum(axis=1).max())
            for rule in (first_records, greedy, most_records):
                assert matrix.T[:, rule(sharing, most)].sum(axis=1).max(initial=0) <= most
            by_greed = greedy(sharing, most)
            left = np.flatnonzero(~by_greed)
            assert not any((matrix[by_greed].sum(axis=0) + matrix[i] <= most).all() for i in left), "one more would fit"
            assert int(most_records(sharing, most).sum()) == best <= records_upper_bound(sharing, most)
            assert first_records(sharing, most).sum() <= best
            best_of_all, best_of_greedy = best_of_all + best, best_of_greedy + int(by_greed.sum())
    assert 0.97 * best_of_all < best_of_greedy < best_of_all


def test_exchanges_alone_better_the_greedy_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privctl.data.selection._PROGRAM", 0)
    gained = [most_records(s, 2).sum() - greedy(s, 2).sum() for s in map(Sharing.of, graphs(40, 40, 20))]
    assert min(gained) >= 0 < max(gained)


def test_a_choice_that_leaves_the_bound_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {SharedRecords.GREEDY: lambda sharing, _: np.ones(len(sharing), np.bool_)}
    monkeypatch.setattr("privctl.data.selection._RULES", rules)
    with pytest.raises(RuntimeError, match="a user in 3 records, where 1 are allowed"):
        select(Sharing.of([("a",)] * 3), 1, SharedRecords.GREEDY)


@pytest.mark.parametrize("rule", CHOSEN)
def test_what_a_user_says_changes_no_more_than_the_bound(rule: SharedRecords) -> None:
    count = 3 if rule is SharedRecords.MOST else 12  # a program for each choice
    assert max(changed_contents(by(rule), named, most) - most for named in graphs(count) for most in (1, 2)) == 0


def test_a_choice_by_what_records_say_is_noticed() -> None:
    assert max(changed_contents(shortest_first, named, 1) for named in graphs(12)) > 1


def test_using_all_records_is_stable_when_a_user_goes() -> None:
    for named in graphs(12):
        most = int(Sharing.of(named).counts().max())
        for user in {user for users in named for user in users}:
            assert changed_others(by(SharedRecords.ALL), named, most, user) == (0, 0)


@pytest.mark.parametrize("rule", CHOSEN)
def test_no_other_rule_is_stable_when_a_user_goes(rule: SharedRecords) -> None:
    """Which is why their guarantees are not for removal: more of the others' records change than the bound."""
    assert any(
        sum(changed_others(by(rule), named, 1, user)) > 1
        for named in graphs(40, 14, 8)
        for user in sorted({user for users in named for user in users})
    )


def test_without_a_user_only_more_are_among_the_first_and_of_who_shared_records() -> None:
    added = 0
    for named in graphs(30, 14, 8):
        for user, most in [(u, k) for u in {u for users in named for u in users} for k in (1, 2)]:
            more, fewer = changed_others(by(SharedRecords.FIRST), named, most, user)
            assert fewer == 0
            assert more <= sum(len(users) - 1 for users in named if user in users)
            added += more
    assert added > 0


def test_records_are_those_that_were_chosen_and_changes_are_noticed() -> None:
    named = [("a", "b"), ("a",), ("b",), ("c", "a")]
    reads = [texts(named), texts(named), texts(named[:3])]
    bounded = BoundedRecords(lambda: reads.pop(0), 1, SharedRecords.GREEDY, "mails.jsonl")
    used = list(bounded())
    assert [r.text for r, kept in zip(texts(named), bounded.kept, strict=True) if kept] == [r.text for r in used]
    assert all(r.users == () and r.unit is None for r in used)
    with pytest.raises(InputError, match=r"mails\.jsonl changed while it was read"):
        list(bounded())
    reads += [texts(named), texts([*named, ("d",)])]
    bounded = BoundedRecords(lambda: reads.pop(0), 1, SharedRecords.GREEDY, "mails.jsonl")
    with pytest.raises(InputError, match="changed"):
        list(bounded())


def test_what_a_solver_may_choose_elsewhere_is_bounded(tmp_path: Path) -> None:
    (named,) = graphs(1, 40, 12)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "t", "who": list(users)}) for users in named))
    found = possible_counts(path, "who", USUAL, 2, SharedRecords.MOST)
    assert found is not None
    least, most = found
    assert least <= count_examples(path, "who", most=2, shared=SharedRecords.MOST) <= most
    # At one record more a user, more are chosen than are possible here: an understated bound is seen.
    assert count_examples(path, "who", most=3, shared=SharedRecords.MOST) > most
    assert possible_counts(path, "who", USUAL, 2, SharedRecords.GREEDY) is None


def test_the_linear_program_bounds_every_choice() -> None:
    """A triangle of three users: half of each record is 1.5, so one record is best and one is possible."""
    sharing = Sharing.of([*combinations("abc", 2)])
    assert (int(most_records(sharing, 1).sum()), records_upper_bound(sharing, 1)) == (1, 1)
    assert records_upper_bound(sharing, 2) == 3
