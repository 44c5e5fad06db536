"""Scans of real texts, against counts made in the simplest way."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from privctl.secrets.scan.request import ScanRequest
from privctl.secrets.scan.run import scan
from privctl.secrets.table import Secret, read_secrets

pytestmark = pytest.mark.slow


def book_of(folder: Path, texts: Iterable[str], **asked: object) -> list[Secret]:
    path, output = folder / "data.jsonl", folder / "secrets.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    request = ScanRequest(data=path, output=output, **asked)  # type: ignore[arg-type]
    return list(read_secrets(output)) if scan(request).has_book else []


@pytest.mark.parametrize(("least", "most"), [(50, 100), (1, 3)])
def test_rare_words_of_abstracts(shared_data: Path, tmp_path: Path, least: int, most: int) -> None:
    csv.field_size_limit(1 << 28)
    with lzma.open(shared_data / "text" / "20200101-cs.CR.tsv.xz", "rt", encoding="utf-8", newline="") as stream:
        texts = [row["abstract"] for row in csv.DictReader(stream, delimiter="\t") if row["abstract"].strip()]
    assert len(texts) > 12_000
    records: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        for word in {word.lower() for word in re.findall(r"\w+", text)}:
            records[word].append(number)
    expected = {word: held for word, held in records.items() if least <= len(held) <= most}
    found = book_of(tmp_path, texts, kinds=("none",), rare_words=most, rare_least=least)
    assert {str(secret.value).lower(): secret.records.tolist() for secret in found} == expected
    assert len(expected) > 1_000


def test_phone_numbers_of_dialogues(shared_data: Path, tmp_path: Path) -> None:
    with gzip.open(shared_data / "text" / "sgd_dialogues.jsonl.gz", "rt", encoding="utf-8") as stream:
        texts = [" ".join(turn[1] for turn in json.loads(line)["turns"]) for line in stream]
    found = book_of(tmp_path, texts)
    assert {secret.kind for secret in found} == {"phone"}
    numbers: dict[str, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for written in re.findall(r"\b\d{3}-\d{3}-\d{4}\b", text):
            numbers[written.replace("-", "")].add(number)
    held = {re.sub(r"\D", "", str(secret.value))[-10:]: set(secret.records.tolist()) for secret in found}
    assert len(numbers) > 1_000
    for digits, where in numbers.items():
        assert where <= held[digits]
    # Whatever else was found has a word before it that says so, or a country's code.
    for secret in found:
        if re.sub(r"\D", "", str(secret.value))[-10:] not in numbers and not str(secret.value).startswith("+"):
            text = texts[secret.records[0]]
            before = text[: text.index(str(secret.value))][-40:].lower()
            assert re.search(r"phone|call|dial|contact|reach|number", before), secret.value


def test_addresses_and_keys_of_commands(shared_data: Path, tmp_path: Path) -> None:
    with gzip.open(shared_data / "text" / "tldr_pairs.jsonl.gz", "rt", encoding="utf-8") as stream:
        texts = [f"{row['instruction']}\n{row['output']}" for row in map(json.loads, stream)]
    found = book_of(tmp_path, texts)
    addresses = {str(secret.value) for secret in found if secret.kind == "email"}
    assert len(addresses) > 20
    assert {
        address for address in addresses if not re.search(r"@(example|gmail|email)\.(com|org|net)$", address)
    } == set()
    every = {match for text in texts for match in re.findall(r"[\w.]+@example\.(?:com|org|net)\b", text)}
    assert every <= addresses
    assert len(found) < len(addresses) + 5
