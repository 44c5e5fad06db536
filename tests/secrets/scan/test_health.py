"""The secrets of a hospital: published examples that are found, and those that their issuers never give out."""

from __future__ import annotations

import pytest

from privctl.secrets.scan.kinds import health, select_kinds
from privctl.secrets.scan.occurrences import resolve_matches
from tests.work import ends

ALL = select_kinds(())


def standing(text: str) -> list[tuple[str, str]]:
    return [(ALL[claim.kind].name, claim.place.key) for claim in resolve_matches(ALL, text) if claim.counts]


@pytest.mark.parametrize(
    "number",
    # Of the tests of Presidio's UsSsnRecognizer, and the first number that was ever given out, 055-09-0001.
    ["078-05-1126", "078-05-1123", "055-09-0001", "899-99-9999"],
)
def test_social_security_numbers(number: str) -> None:
    digits = number.replace("-", "")
    for text in (number, f"his number {number}.", f"SSN {digits}", f"Social Security No: {number.replace('-', ' ')}"):
        assert standing(text) == [("ssn", digits)], text
    assert list(health.find_ssn(f"order {digits}, {number.replace('-', ' ')} pieces")) == []


@pytest.mark.parametrize(
    "number",
    [
        # SSA, POMS RM 10201.035: areas 000, 666 and 900-999, group 00 and serial 0000 are not valid.
        "000-12-3456", "666-12-3456", "900-12-3456", "999-99-9999", "123-00-4567", "123-45-0000",
        # Kept for advertisements (987-65-4320 to 4329); Woolworth's wallet; a pamphlet of 1940; anybody's example.
        "987-65-4320", "078-05-1120", "219-09-9999", "123-45-6789",
        "078-05-11267", "1078-05-1126", "078-051126", "3.078-05-1126", "078-05-1126-1",
    ],
)  # fmt: skip
def test_numbers_that_are_no_social_security_numbers(number: str) -> None:
    assert list(health.find_ssn(f"SSN: {number}")) == []


# The first is the NHS's usual example; the others are of the tests of Presidio's NhsRecognizer.
@pytest.mark.parametrize("number", ["943 476 5919", "401 023 2137", "221 395 1837"])
def test_nhs_numbers(number: str) -> None:
    digits = number.replace(" ", "")
    for text in (f"NHS {digits}", f"NHS number: {number}", f"nhs no. {number.replace(' ', '-')}", f"(NHS:{digits})"):
        assert standing(text) == [("nhs", digits)], text
    for last in set("0123456789") - {digits[-1]}:
        assert list(health.find_nhs(f"NHS number: {digits[:-1]}{last}")) == [], "the check digit is another"
    assert list(health.find_nhs(f"call {number}")) == [], "the word is missing"
    assert list(health.find_nhs(f"NHS {digits}1")) == []


def test_numbers_that_are_no_nhs_numbers() -> None:
    for text in ("NHS 0000000000", "NHS 1111111111", "NHS\n9434765919", "NHS ward 3, 9434765919", "NHSX 9434765919"):
        assert list(health.find_nhs(text)) == [], text


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("MRN 12345", ["12345"]),  # the patient of FHIR's examples
        ("MRN: 000-5234-22, seen", ["000523422"]),
        ("mrn#a1234567", ["A1234567"]),
        ("Medical Record Number is MH-1234567.", ["MH1234567"]),
        ('"patient_id": "P0012345"', ["P0012345"]),
        ("hospital no. 44-1234 and chart number 99887", ["441234", "99887"]),
        ("MRN 123, MRN unknown, MRN ABCDEF", []),
        ("the patient 12345 had 20000 platelets", []),
        ("patient identity 12345", []),
        ("MRNA 123456 and mRNA 123456", []),
    ],
)
def test_medical_record_numbers(text: str, keys: list[str]) -> None:
    assert [place.key for place in health.find_records(text)] == keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("DOB 1974-12-25", ["1974-12-25"]),  # the patient of FHIR's examples
        ("born on 25 December 1974 in Erewhon", ["1974-12-25"]),
        ("Date of birth: Dec. 25, 1974", ["1974-12-25"]),
        ("D.O.B.: 25-Dec-1974", ["1974-12-25"]),
        ("birthday, the 25th of December 1974", ["1974-12-25"]),
        ("née le 25.12.1974", ["1974-12-25"]),
        ("geboren am 25.12.1974", ["1974-12-25"]),
        ("DOB 3/4/1980; DOB: 03/04/1980", ["1980-03/04"] * 2),
        ("DOB 12/25/74", ["74-12-25"]),
        ("born 29 February 1980", ["1980-02-29"]),
        ("born 29 February 1981, born 31.4.1980, DOB 1980-13-01, DOB 00/00/1980", []),
        ("admitted 25 December 1974; born in 1974", []),
        ("Bornholm 1974-12-25, reborn 1974-12-25, stillborn 25.12.1974", []),
        ("born\n1974-12-25", []),
        ("DOB 1974-12-251, DOB: 5 mg", []),
    ],
)
def test_dates_of_birth(text: str, keys: list[str]) -> None:
    assert [place.key for place in health.find_births(text)] == keys


@pytest.mark.parametrize(
    "text", ["born " * 60_000, "DOB: " + "1" * 300_000, "SSN " * 75_000, "078-05-" * 40_000, "MRN " + "1-" * 150_000]
)
def test_long_texts_take_no_long_time(text: str) -> None:
    with ends():
        for find in (health.find_births, health.find_ssn, health.find_nhs, health.find_records):
            list(find(text))
