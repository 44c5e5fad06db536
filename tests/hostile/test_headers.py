"""privctl's reader of headers beside the official one: what we take it takes; what we refuse alone has a reason."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.hostile.headers import STRICTER, cases, handmade, official, ours, reason_for

HANDMADE = dict(handmade())


def compared(data: bytes) -> str:
    """What the two parsers make of the same bytes, in a word; fails where they differ without a reason."""
    theirs, sentence = official(data), ours(data)
    if not sentence:
        assert theirs, f"only privctl takes {data!r}"
        return "taken"
    if not theirs:
        return "refused"
    why = reason_for(sentence)
    assert why, f"privctl alone refuses {data!r}: {sentence}"
    return why


@pytest.mark.parametrize("name", HANDMADE)
def test_cases_made_by_hand(name: str) -> None:
    compared(HANDMADE[name])


def test_what_the_official_parser_refuses_is_refused() -> None:
    for name in ("product past 2^64 beside 0", "bits past 2^64", "-0 as a dimension", "-0 as an offset"):
        assert not official(HANDMADE[name])
        assert ours(HANDMADE[name])


def test_what_the_official_parser_takes_is_taken() -> None:
    for name in ("0 beside a product past 2^64", "-0 within a name", "dtype F8_E4M3FNUZ", "dtype F8_E5M2FNUZ"):
        assert official(HANDMADE[name])
        assert ours(HANDMADE[name]) == ""


def agree(seed: int, count: int) -> None:
    outcomes = Counter(compared(data) for data in cases(seed, count))
    assert outcomes["taken"] > count // 20
    assert outcomes["refused"] > count // 5
    assert set(STRICTER.values()) <= outcomes.keys(), "every deliberate difference was met"


def test_thousands_of_damaged_headers() -> None:
    agree(1, 12_000)


@pytest.mark.slow
def test_hundreds_of_thousands_of_damaged_headers() -> None:
    for seed in range(2, 22):
        agree(seed, 20_000)
