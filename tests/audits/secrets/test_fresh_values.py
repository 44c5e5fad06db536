from __future__ import annotations

import random

import pytest

from audits.secrets.fresh_values import WordFrequencies, account_valid, fresh_value, in_case_of, luhn, words_of

WORDS = WordFrequencies({f"word{'abcdefghij'[i // 26]}{chr(97 + i % 26)}": 3 for i in range(260)})


def fresh_values(value: str, count: int = 30) -> list[str]:
    source = random.Random(4)
    found = [fresh_value(value, WORDS, source) for _ in range(count)]
    assert all(found)
    assert len(set(found)) > 0.8 * count
    return [each for each in found if each]


@pytest.mark.parametrize("number", ["79927398713", "4111111111111111", "378282246310005"])
def test_luhn_of_known_numbers(number: str) -> None:
    """The example of the algorithm's usual description, and card networks' published test numbers."""
    assert luhn(number)
    assert not luhn(number[:-1] + str((int(number[-1]) + 1) % 10))


@pytest.mark.parametrize("number", ["GB82WEST12345698765432", "DE89370400440532013000"])
def test_account_numbers_of_the_standard(number: str) -> None:
    assert account_valid(number)
    assert not account_valid(number[:-1] + str((int(number[-1]) + 1) % 10))


def test_cards_keep_their_shape_and_check() -> None:
    for candidate in fresh_values("4111 1111 1111 1111"):
        assert [len(part) for part in candidate.split(" ")] == [4, 4, 4, 4]
        assert candidate[0] == "4"
        assert luhn(candidate.replace(" ", ""))
    assert not all(luhn(candidate.replace(" ", "")) for candidate in fresh_values("4111 1111 1111 1112")), (
        "it did not check before"
    )


def test_accounts_keep_their_country_and_check() -> None:
    for candidate in fresh_values("GB82 WEST 1234 5698 7654 32"):
        assert candidate[:2] == "GB"
        assert [len(part) for part in candidate.split(" ")] == [4, 4, 4, 4, 4, 2]
        assert account_valid(candidate.replace(" ", ""))


def test_addresses_keep_their_domain_and_keys_their_maker() -> None:
    for candidate in fresh_values("ann.lee7@corp.example"):
        first, second = candidate.removesuffix("@corp.example").split(".")
        assert first.startswith("word")
        assert len(second) == 4
        assert second[-1].isdigit()
    for candidate in fresh_values("AKIAIOSFODNN7EXAMPLE"):
        assert candidate.startswith("AKIA")
        assert candidate.isupper()
        assert candidate.isalnum()
        assert len(candidate) == 20
    for candidate in fresh_values("+1 617-555-0199"):
        assert [len(part) for part in candidate.replace("-", " ").split()] == [2, 3, 3, 4]
        assert candidate.split("-")[-1][0] == "0"


def test_words_are_about_as_frequent_and_in_the_same_case() -> None:
    words = WordFrequencies(
        {f"{a}{b}{c}": ord(a) for a in "abc" for b in "defghijklmn" for c in "opqrstuvwxyz"} | {"rare": 1}
    )
    source = random.Random(0)
    assert words.like("rare", source) != "rare", "there are too few as rare, so that all others serve"
    many = WordFrequencies({f"{a}{b}": 1 if a < "n" else 100 for a in "abcdefghijklmnopqrstuvwxyz" for b in
                  "abcdefghijklmnopqrstuvwxyz"})  # fmt: skip
    assert all((many.like("ab", source) or "z")[0] < "n" for _ in range(50))
    assert all((many.like("xy", source) or "a")[0] >= "n" for _ in range(50))
    assert [in_case_of(model, "word") for model in ("ABC", "Abc", "abc", "A")] == ["WORD", "Word", "word", "Word"]
    assert words_of("Ann's 3rd e-mail") == ["Ann", "s", "rd", "e", "mail"]
    assert WordFrequencies({}).like("x", source) is None
    assert fresh_value("x y", WordFrequencies({}), source) is None
