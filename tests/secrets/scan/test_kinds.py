"""What the detectors find and what they leave: planted secrets in many ways of writing, near misses, known numbers."""

from __future__ import annotations

import math
import random

import click
import pytest

from privctl.cli.secrets import secrets
from privctl.domain.errors import CommandError
from privctl.secrets.scan.kinds import KINDS, cards, emails, ibans, keys, phones, select_kinds
from privctl.secrets.scan.kinds.keys.beside_words import entropy, looks_random
from privctl.secrets.scan.occurrences import resolve_matches
from tests.secrets.scan.corpus import PLANTED, bad_luhn, near_misses, planted
from tests.work import ends

ALL = select_kinds(())


def standing(text: str) -> set[tuple[str, str]]:
    return {(ALL[claim.kind].name, claim.place.key) for claim in resolve_matches(ALL, text) if claim.counts}


def test_the_help_and_the_corpus_know_every_kind() -> None:
    (option,) = [parameter for parameter in secrets.commands["scan"].params if parameter.name == "kinds"]
    assert isinstance(option, click.Option)
    assert option.help is not None
    assert option.help.startswith(f"Some of {','.join(KINDS)};")
    assert set(PLANTED) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_planted_secret_is_found_once_however_it_is_written(kind: str) -> None:
    for texts in planted(kind, 300, seed=1):
        found = [standing(text) for text in texts]
        assert {len(each) for each in found} == {1}, texts
        ((name, _),) = set.union(*found)
        assert name == kind


def test_near_misses_are_left_alone() -> None:
    for text in near_misses(6000, seed=2):
        assert standing(text) == set(), text


def test_the_corpus_of_near_misses_can_fail() -> None:
    """A number whose check digit is right is found where the same number with another digit is not."""
    rng = random.Random(3)
    for _ in range(50):
        wrong = bad_luhn(rng, 16)
        repaired = [wrong[:-1] + digit for digit in "0123456789"]
        assert sum(bool(standing(number)) for number in repaired) == 1
        assert not standing(wrong)


@pytest.mark.parametrize(
    "number",
    # Test numbers that payment processors publish, by issuer.
    [
        "4242424242424242", "4000056655665556", "4222222222222", "5555555555554444", "2223003122003222",
        "5105105105105100", "378282246310005", "371449635398431", "6011111111111117", "6011000990139424",
        "30569309025904", "36227206271667", "3566002020360505", "6200000000000005", "6759649826438453",
    ],
)  # fmt: skip
def test_published_card_numbers(number: str) -> None:
    assert [place.key for place in cards.find(f"card {number}.")] == [number]
    assert [place.key for place in cards.find(f"{number}0{number}")] == []


@pytest.mark.parametrize(
    "number",
    # The registry's examples.
    [
        "GB29 NWBK 6016 1331 9268 19", "DE89 3704 0044 0532 0130 00", "FR14 2004 1010 0505 0001 3M02 606",
        "NO93 8601 1117 947", "MT84 MALT 0110 0001 2345 MTLC AST0 01S", "SA03 8000 0000 6080 1016 7519",
        "BR18 0036 0305 0000 1000 9795 493C 1", "CH93 0076 2011 6238 5295 7", "NL91 ABNA 0417 1643 00",
        "ES91 2100 0418 4502 0005 1332", "IT60 X054 2811 1010 0000 0123 456", "BE68 5390 0754 7034",
        "SE45 5000 0000 0583 9825 7466", "AT61 1904 3002 3457 3201", "TR33 0006 1005 1978 6457 8413 26",
        "PL61 1090 1014 0000 0712 1981 2874", "LC55 HEMM 0001 0001 0012 0012 0002 3015",
    ],
)  # fmt: skip
def test_the_registry_s_account_numbers(number: str) -> None:
    for text in (number, f"IBAN:{number}.", f"{number} OR LATER", number.replace(" ", "")):
        assert [place.key for place in ibans.find(text)] == [number.replace(" ", "")]
    wrong = number[:3] + str((int(number[3]) + 1) % 10) + number[4:]
    assert list(ibans.find(wrong)) == []


def test_the_token_of_rfc_7519() -> None:
    head = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9"
    body = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
    token = f"{head}.{body}.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert [place.value for place in keys.find(f"Authorization: Bearer {token}")] == [token]
    assert keys.find("see eyJubyI6ICJhbGdvcml0aG0ifQ.eyJ4IjogMX0.x for how it looks") == []


def test_entropy_and_what_looks_random() -> None:
    assert entropy("aaaa") == 0
    assert entropy("aabb") == 1
    assert entropy("0123456789abcdef") == 4
    assert math.isclose(entropy("aab"), math.log2(3) - 2 / 3)  # 2/3 log2(3/2) + 1/3 log2(3)
    assert looks_random("7f3a9c0d12e4b586")
    assert looks_random("hG7kQ2mZ9xW4vB6nT1rY")
    assert not looks_random("a1a1a1a1a1a1a1a1")
    assert not looks_random("1234567890123456")
    assert not looks_random("get_user_by_id_2_or_name")
    assert not looks_random("HouseOfCommonsLibrary")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ann@example.org, Ann@Example.ORG", {"ann@example.org"}),
        ("<mailto:ann@example.org>", {"ann@example.org"}),
        ("email=ann@example.org&x=1", {"ann@example.org"}),
        ("'ann@example.org' ...bob@example.org.", {"ann@example.org", "bob@example.org"}),
        ("a@b, @ann, ann@, ann@localhost, ann@10.0.0.1, x@y.z", set()),
        ("a" * 65 + "@example.org", set()),
        ("a" * 64 + "@example.org", {"a" * 64 + "@example.org"}),
        ("邮箱是ann@example.org。", {"ann@example.org"}),
    ],
)
def test_borders_of_addresses(text: str, keys: set[str]) -> None:
    assert {place.key for place in emails.find(text)} == keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("(408) 247-8880 or 408.247.8880 or +1 408 247 8880", ["+14082478880"] * 3),
        ("+44 20 7946 0958 10 minutes ago", ["+442079460958"]),
        ("+4420794609581234567", []),
        ("0161 496 0000 20 people", ["01614960000"]),
        ("06 12 34 56 78 10", ["0612345678"]),
        ("911-555-0100 and 408-911-0100", []),
        ("call 2020-01-02, call 1.5, tel 12", []),
        ("my number is 20 7946 0958", ["2079460958"]),
        ("1234567 and phone 1234567", ["1234567"]),
        ("300 400 5000 6000", []),
    ],
)
def test_borders_of_phone_numbers(text: str, keys: list[str]) -> None:
    assert [place.key for place in phones.find(text)] == keys


def test_a_place_is_the_longest_one_s() -> None:
    secret = "pa55word!"
    assert standing(f"postgres://ann:{secret}@db.example.org/x") == {("key", secret)}
    account = "DE89 3704 0044 0532 0130 00"
    assert standing(f"phone or account {account}") == {("iban", account.replace(" ", ""))}
    assert standing("call 4242 4242 4242 4242") == {("card", "4242424242424242")}


def test_kinds_are_chosen_by_name() -> None:
    assert [kind.name for kind in select_kinds(())] == list(KINDS)
    assert [kind.name for kind in select_kinds(("phone", "email"))] == ["email", "phone"]
    assert select_kinds(("none",)) == []
    with pytest.raises(
        CommandError, match="--kinds mail is not one of card, iban, nhs, ssn, mrn, dob, key, email, phone"
    ):
        select_kinds(("mail",))


HOSTILE = {
    "digits": "1" * 75_000,
    "short groups": "1 " * 25_000,
    "four digits": "4111 " * 10_000,
    "signs": "@" * 25_000,
    "dots": "a." * 25_000 + "@" + "b." * 25_000,
    "addresses": "a@b." * 12_500,
    "spelled": "ann (at) " * 7_500,
    "words": "key " * 15_000,
    "base64": "aB3" * 25_000,
    "behind a word": "key: " + "aB3" * 25_000,
    "passwords": "password" * 7_500,
    "begins": "-----BEGIN PRIVATE KEY-----" * 1_250,
    "tokens": "eyJabcdefgh." * 5_000,
    "addresses with passwords": "://a:b" * 7_500,
    "accounts": "DE89 " * 10_000,
    "plus": "+1(" * 15_000,
    "zeros": "0" * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    """Each holds some 25,000 characters; a look for each pair of them would take more than so many seconds."""
    with ends(6.0):
        resolve_matches(ALL, HOSTILE[name])
