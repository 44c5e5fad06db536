"""What the user names: listed texts, patterns; and rare words, counted exactly."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError, InputError
from privctl.secrets.scan.kinds import LITERAL, SecretKind, select_kinds
from privctl.secrets.scan.kinds.place import Occurrence
from privctl.secrets.scan.literals import Literals, read_literals
from privctl.secrets.scan.occurrences import resolve_matches
from privctl.secrets.scan.patterns import Pattern, PatternError, parse_patterns
from privctl.secrets.scan.rare import Sieve, words
from tests.work import calls, ends


def found(texts: list[str], text: str) -> list[str]:
    return [place.value for place in Literals(texts)(text)]


# Listed texts.


@pytest.mark.parametrize(
    ("texts", "text", "expected"),
    [
        (["Ann"], "Ann, Annual, Joann, Ann's, (Ann)", ["Ann"] * 3),
        (["Ann"], "ANN ann", []),
        (["Ann", "Ann Lee", "Lee"], "Ann Lee", ["Ann", "Ann Lee", "Lee"]),
        (["$x", "#", "C++"], "a$x b# C++ C++11 $xy", ["$x", "#", "C++", "C++"]),
        (["张伟", "王"], "我是张伟和王先生", ["张伟", "王"]),
        (["Ann"], "我是Ann和", ["Ann"]),
        (["New\tYork", "a b"], "New\tYork a b a  b", ["New\tYork", "a b"]),
        (["ab", "abab"], "abab ab", ["abab", "ab"]),
        (["]", "^", "\\", "-"], "a ] ^ b \\ c - d", ["]", "^", "\\", "-"]),
    ],
)
def test_listed_texts(texts: list[str], text: str, expected: list[str]) -> None:
    assert found(texts, text) == expected


def test_listed_texts_as_a_search_for_each_finds_them() -> None:
    rng = random.Random(5)
    listed = {"".join(rng.choices("ab .界é", k=rng.randint(1, 4))).strip() for _ in range(60)} - {""}
    for _ in range(200):
        text = "".join(rng.choices("ab .界é", k=30))
        expected = []
        for literal in listed:
            for start in range(len(text)):
                end = start + len(literal)
                if text[start:end] == literal:
                    before = text[start - 1 : start]
                    joined = (literal[0] in "abé" and before in ("a", "b", "é")) or (
                        literal[-1] in "abé" and text[end : end + 1] in ("a", "b", "é")
                    )
                    if not joined:
                        expected.append((start, literal))
        assert sorted((place.start, place.value) for place in Literals(listed)(text)) == sorted(expected)


@pytest.mark.slow
def test_many_listed_texts_cost_no_more_than_few() -> None:
    rng = random.Random(6)
    listed = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8)) + f" {i}" for i in range(50_000)]
    text = " ".join(rng.choices(listed, k=5_000))
    literals = Literals(listed)
    with ends():  # 50,000 searches of 60,000 characters would be minutes
        places = list(literals(text))
    assert len(places) >= 5_000
    few = Literals(place.value for place in places)
    assert list(few(text)) == places
    assert calls(lambda: list(literals(text))) == calls(lambda: list(few(text)))


def test_reading_a_list(tmp_path: Path) -> None:
    path = tmp_path / "l.txt"
    path.write_bytes("\ufeffAnn\r\n\n  Bob \nAnn\nmüller".encode())
    assert read_literals(path) == ["Ann", "Bob", "müller"]
    packed = tmp_path / "l.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_literals(packed) == ["Ann", "Bob", "müller"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        read_literals(path)
    path.write_bytes(b" \n\n")
    with pytest.raises(InputError, match="lists nothing"):
        read_literals(path)


# Patterns.


def test_a_pattern_and_its_group() -> None:
    whole = Pattern("ticket", r"\bT-\d+\b", 1)
    assert list(whole("T-1, T-22")) == [Occurrence(0, 3, "T-1", "T-1"), Occurrence(5, 9, "T-22", "T-22")]
    group = Pattern("pin", r"(?:PIN|pin) (?P<secret>\d{4})?", 1)
    assert [(place.start, place.value) for place in group("PIN 1234, pin x")] == [(4, "1234")]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("ticket", "is not NAME=REGEX"),
        ("=x", "is not NAME=REGEX"),
        ("a b=x", "is not NAME=REGEX"),
        ("x=", "is not NAME=REGEX"),
        ("email=x", "has the name of another kind"),
        ("by-who=x", "has the name of another kind"),
    ],
)
def test_patterns_that_are_not_given_well(given: str, fault: str) -> None:
    with pytest.raises(CommandError, match=fault):
        parse_patterns([given], ["email"])


def test_a_name_is_given_once_and_an_expression_may_hold_any_sign() -> None:
    assert parse_patterns(["a=x=y", "b==="], []) == {"a": "x=y", "b": "=="}
    with pytest.raises(CommandError, match="--pattern a is given twice"):
        parse_patterns(["a=x", "a=y"], [])


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("(", "--pattern p is not a valid regular expression"),
        ("a{2,1}", "--pattern p is not a valid regular expression"),
        ("(?<=a", "--pattern p is not a valid regular expression"),
        ("a*", "--pattern p matches the empty text"),
        pytest.param(
            *("(?:(?:a{2000}){2000}){2000}", "--pattern p takes too much memory or time to prepare"),
            marks=pytest.mark.slow,
        ),
        ("(?R)", "--pattern p takes too much memory or time to prepare"),
        ("(" * 3000 + ")" * 3000, "--pattern p takes too much memory or time to prepare"),
    ],
)
def test_expressions_that_cannot_be_used(expression: str, fault: str) -> None:
    with pytest.raises(CommandError, match=fault):
        Pattern("p", expression, 1)


@pytest.mark.parametrize(
    ("expression", "text"), [(r"(x+x+)+y\b", "x" * 5000 + "yx"), (r"(a|b|ab)*c\Z", "ab" * 5000 + "c!")]
)
def test_a_pattern_that_explodes_is_stopped(expression: str, text: str) -> None:
    pattern = Pattern("p", expression, 0.2)
    with ends(), pytest.raises(PatternError, match=r"keeps --pattern p busy for more than 0\.2 s"):
        list(pattern(text))
    assert list(pattern("fine")) == []


def test_a_match_of_no_length_is_told() -> None:
    with pytest.raises(PatternError, match="in a place of no length"):
        list(Pattern("p", r"(?=a)|b", 1)("xa"))


# Who has a place.


def test_what_the_user_named_stands_everywhere_and_the_rest_outside_of_it() -> None:
    kinds = [*select_kinds(()), SecretKind(name=LITERAL, find=Literals(["ann", "bob@example.org or so"]), by_user=True)]
    text = "ann@example.org, bob@example.org or so, carl@example.org"
    claims = [(kinds[claim.kind].name, claim.place.value, claim.counts) for claim in resolve_matches(kinds, text)]
    assert claims == [
        ("email", "ann@example.org", True),
        ("literal", "ann", True),
        ("literal", "bob@example.org or so", True),
        ("email", "bob@example.org", False),
        ("email", "carl@example.org", True),
    ]


# Rare words.


def test_words_of_a_text() -> None:
    assert words("The Ünder_score the THE 42, x-ray") == {
        "the": "The", "ünder_score": "Ünder_score", "42": "42", "x": "x", "ray": "ray",
    }  # fmt: skip
    assert list(words("b A a")) == ["b", "a"]


@pytest.mark.parametrize("buckets", [1 << 6, 1 << 10, 1 << 20])
@pytest.mark.parametrize("least", [2, 3, 300])
def test_the_sieve_never_loses_a_word_that_is_in_enough_records(buckets: int, least: int) -> None:
    rng = random.Random(7)
    records = [{f"w{int(rng.paretovariate(0.6))}" for _ in range(10)} for _ in range(2000)]
    counts = Counter(word for record in records for word in record)
    sieve = Sieve(least, buckets)
    for record in records:
        sieve.add(record)
    sieve.flush()
    kept = {word for record in records for word in sieve.filter(record)}
    enough = {word for word, count in counts.items() if count >= least}
    assert enough <= kept
    if buckets == 1 << 20:
        assert len(kept) < 1.01 * len(enough) + 5  # with room enough it loses nearly all others


def test_a_pattern_is_tried_without_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: data that come with a file ``regex.py``, which would be run."""
    for name in ("regex.py", "resource.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    assert [place.value for place in Pattern("p", r"T-\d+", 1.0)("ask T-12")] == ["T-12"]
    assert not (tmp_path / "ran").exists()
