"""Whole scans: the book, the records of each secret, what is written and with which rights."""

from __future__ import annotations

import gzip
import json
import random
import stat
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import CommandError, InputError
from privctl.secrets.scan.request import ScanRequest
from privctl.secrets.scan.run import ScanResult, scan
from privctl.secrets.table import Secret, read_secrets


def data(folder: Path, *texts: Any) -> Path:
    path = folder / "data.jsonl"
    rows = (text if isinstance(text, dict) else {"text": text} for text in texts)
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    return path


def scanned(path: Path, **asked: Any) -> tuple[ScanResult, list[Secret]]:
    force = asked.pop("force", False)
    request = ScanRequest(data=path, output=asked.pop("output", path.with_name("secrets.jsonl")), **asked)
    done = scan(request, force=force)
    return done, list(read_secrets(request.output)) if done.has_book else []


def summaries(secrets: list[Secret]) -> list[tuple[str, str | None, list[int]]]:
    return [(secret.id, secret.value, secret.records.tolist()) for secret in secrets]


def test_one_secret_written_in_several_ways(tmp_path: Path) -> None:
    path = data(
        tmp_path,
        "Ann@Example.org and bob@example.org",
        "nothing",
        {"prompt": "4242-4242-4242-4242?", "response": "Ask ann@example.org, ANN@EXAMPLE.ORG"},
        "4242 4242 4242 4242 by bob@example.org",
    )
    done, secrets = scanned(path)
    assert summaries(secrets) == [
        ("card-1", "4242-4242-4242-4242", [2, 3]),
        ("email-1", "Ann@Example.org", [0, 2]),
        ("email-2", "bob@example.org", [0, 3]),
    ]
    assert [secret.kind for secret in secrets] == ["card", "email", "email"]
    found = done.report.parameters["found"]
    assert found["email"] == {"secrets": 2, "records": 3, "memberships": 4, "most_records": 2}
    assert found["phone"] == {"secrets": 0, "records": 0, "memberships": 0, "most_records": 0}
    assert done.report.parameters["dataset_size"] == 4


def test_tables_and_packed_books(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"who,text\n\nann,mail a@example.org\nbob,x\nann,y\n"))
    book = tmp_path / "s.jsonl.gz"
    done, secrets = scanned(path, output=book, by="who")
    assert summaries(secrets) == [
        ("email-1", "a@example.org", [0]),
        ("by-who-1", "ann", [0, 2]),
        ("by-who-2", "bob", [1]),
    ]
    assert gzip.decompress(book.read_bytes()).count(b"\n") == 3
    assert done.report.outputs[0].path == "s.jsonl.gz"
    assert (tmp_path / "s.report.json").is_file()


def test_only_its_owner_may_read_the_book_and_the_report_holds_no_secret(tmp_path: Path) -> None:
    path = data(tmp_path, "ann@example.org", {"text": "x"})
    scanned(path)
    book, report = tmp_path / "secrets.jsonl", tmp_path / "secrets.report.json"
    assert stat.S_IMODE(book.stat().st_mode) == 0o600
    assert "ann@" not in report.read_text()
    with pytest.raises(CommandError, match="exists; give --force"):
        scanned(path)
    book.unlink()
    with pytest.raises(CommandError, match=r"secrets\.report\.json exists; give --force"):
        scanned(path)
    _, secrets = scanned(path, force=True)
    assert len(secrets) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"data.jsonl", "secrets.jsonl", "secrets.report.json"}


def test_nothing_found_leaves_a_report_and_no_book_not_even_an_old_one(tmp_path: Path) -> None:
    scanned(data(tmp_path, "ann@example.org"))
    done, _ = scanned(data(tmp_path, "nothing", "at all"), force=True)
    assert not done.has_book
    assert not (tmp_path / "secrets.jsonl").exists()
    assert done.report.outputs == ()
    assert {counts["secrets"] for counts in done.report.parameters["found"].values()} == {0}


def test_a_secret_within_others_only_is_dropped_and_any_other_keeps_all_its_records(tmp_path: Path) -> None:
    path = data(tmp_path, "x ann@example.org y", "carl@example.org", "x carl@example.org y")
    _, secrets = scanned(path, patterns=(r"framed=x \S+ y",))
    assert summaries(secrets) == [
        ("email-1", "carl@example.org", [1, 2]),
        ("framed-1", "x ann@example.org y", [0]),
        ("framed-2", "x carl@example.org y", [2]),
    ]


def test_rare_words_are_counted_exactly_and_not_within_others_only(tmp_path: Path) -> None:
    rng = random.Random(8)
    texts = [" ".join(f"W{int(rng.paretovariate(0.7))}" for _ in range(12)) for _ in range(800)]
    records: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        for word in sorted(set(text.lower().split())):
            records[word].append(number)
    path = data(tmp_path, *texts)
    for least, most in [(1, 1), (1, 4), (2, 4), (30, 60)]:
        _, secrets = scanned(path, kinds=("none",), rare_words=most, rare_least=least, force=True)
        expected = {word: held for word, held in records.items() if least <= len(held) <= most}
        assert expected
        assert {str(secret.value).lower(): secret.records.tolist() for secret in secrets} == expected
    path = data(tmp_path, "Zoe zoe@example.org", "ann@example.org", "the ann", "the the", "the")
    _, secrets = scanned(path, rare_words=2, force=True)
    assert summaries(secrets) == [
        ("email-1", "zoe@example.org", [0]),
        ("email-2", "ann@example.org", [1]),
        ("rare-word-1", "Zoe", [0]),
        ("rare-word-2", "ann", [1, 2]),
    ]


def test_listed_texts_that_are_nowhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("Ann\nBob\nCarl\n")
    done, secrets = scanned(data(tmp_path, "Ann", "Ann and Bob"), literals=tmp_path / "l.txt")
    assert summaries(secrets) == [("literal-1", "Ann", [0, 1]), ("literal-2", "Bob", [1])]
    assert "1 of the listed texts is in no record, and not in the book" in done.report.warnings
    assert [artifact.role for artifact in done.report.inputs] == ["data", "literals"]


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"output": "s.json"}, "ends neither in .jsonl nor .jsonl.gz"),
        ({"output": "data.jsonl"}, "is an input and would be overwritten"),
        ({"kinds": ("none",)}, "leaves nothing to look for"),
        ({"kinds": ("none", "email")}, "--kinds none is not one of"),
        ({"rare_least": 2}, "--rare-least needs --rare-words"),
        ({"rare_words": 0}, "leave no number of records"),
        ({"rare_words": 3, "rare_least": 4}, "leave no number of records"),
        ({"most_secrets": 0}, "--most-secrets is 0"),
        ({"pattern_seconds": float("nan")}, "--pattern-seconds is nan"),
        ({"by": ""}, "is not a field name"),
        ({"patterns": ("literal=x",)}, "has the name of another kind"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, asked: dict[str, Any], fault: str) -> None:
    path = data(tmp_path, "x")
    with pytest.raises(CommandError, match=fault):
        scanned(path, **{**asked, "output": tmp_path / asked.get("output", "secrets.jsonl")})
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize(
    ("texts", "asked", "fault"),
    [
        (
            ["x", "x" * 3000 + "yx"],
            {"patterns": (r"p=(x+x+)+y\b",), "pattern_seconds": 0.2},
            "line 2 keeps --pattern p",
        ),
        (["x", "ya"], {"patterns": ("p=(?=a)",)}, "line 2 is matched by --pattern p in a place of no length"),
        (["a b c", "d e"], {"patterns": (r"p=\w",), "most_secrets": 4}, "line 2 brings more than 4 secrets, .*'p'"),
        (["a"] * 60, {"patterns": ("p=a",), "most_secrets": 1}, "line 51 brings more than 50 records for each .*'p'"),
        (["a b", "c d e"], {"rare_words": 1, "most_secrets": 4}, "holds 5 secrets with its rare words"),
        (["x"], {"by": "who"}, "line 1 lacks 'who'"),
        ([{"text": ""}], {}, "line 1 has an empty 'text'"),
    ],
)
def test_what_the_data_do_not_allow(tmp_path: Path, texts: list[Any], asked: dict[str, Any], fault: str) -> None:
    path = data(tmp_path, *texts)
    with pytest.raises(InputError, match=fault) as caught:
        scanned(path, **asked)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_memory_does_not_grow_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times the records, of words that are in too few of them; 20,000 more words kept would be 3 MB more."""
    monkeypatch.setattr("privctl.secrets.scan.rare._BATCH", 1 << 12)  # a batch is full in both
    peaks = []
    for count in (125, 625):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as stream:
            for i in range(count):
                stream.write(json.dumps({"text": " ".join(f"w{i}x{j}" for j in range(40)) + " ." * 300}) + "\n")
        tracemalloc.start()
        try:
            scanned(path, output=tmp_path / f"{count}.out.jsonl", rare_words=100, rare_least=50)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + (2 << 20)
