"""What counts as the same record in two files."""

from __future__ import annotations

import numpy as np
import pytest

from privctl.data.contents import array_content, first_shared, text_content


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The cat sat.", "the  cat\n sat. ", True),
        ("Straße", "STRASSE", True),  # Unicode's own case folding
        ("ﬁle", "file", True),  # a ligature, NFKC
        ("e\u0301t\u00e9", "\u00e9te\u0301", True),
        ("e\u200d\u0301te", "\u00e9te", True),  # an unseen joiner before the accent
        ("e \u0301te", "\u00e9te", True),
        ("\u03aa\u0301", "\u0390", True),  # an upper-case letter of which only the lower-case one is composed
        ("The cat sat.", "The cat sat", False),
        ("ab", "ba", False),
        ("", " \n", True),
    ],
)
def test_case_white_space_and_forms_of_letters_make_no_other_text(one: str, other: str, same: bool) -> None:
    assert (text_content(one) == text_content(other)) is same


def test_arrays_differ_by_their_numbers_their_type_and_their_shape() -> None:
    pixels = np.arange(6, dtype=np.uint8)
    assert array_content(pixels) == array_content(pixels.copy())
    others = [pixels + 1, pixels.astype(np.float32), pixels.reshape(2, 3)]
    assert len({array_content(pixels), *map(array_content, others)}) == 4


def test_the_first_of_a_text_that_stands_in_both_is_named() -> None:
    public = [b"a", b"b", b"a", b"c"]
    assert first_shared(public, [b"x", b"c", b"a"]) == 4  # by the order of the private ones
    assert first_shared(public, [b"a"]) == 1
    assert first_shared(public, [b"x"]) is None
    assert first_shared([], [b"x"]) is None


def test_records_without_text_are_not_shared() -> None:
    empty = text_content(" \n\u200b")
    assert empty == text_content("")
    assert first_shared([empty, b"a"], [empty, b"x"]) is None
    assert first_shared([empty, b"a"], [empty, b"a"]) == 2
