"""``privctl secrets scan``: what is shown, what is not, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.codec import decode
from privctl.reports.files import read_report
from privctl.show.text.secrets_scan import mask

SECRETS = ("ann.lee@example.org", "4242 4242 4242 4242", "T-123456", "408-247-8880")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    texts = [f"mail {SECRETS[0]}, card {SECRETS[1]}", f"see {SECRETS[2]}", f"call {SECRETS[3]}", SECRETS[0].upper()]
    path.write_text("".join(json.dumps({"text": text, "who": "ann"}) + "\n" for text in texts))
    return path


def scan(data: Path, *more: str) -> int:
    return run(["secrets", "scan", str(data), "-o", str(data.with_name("secrets.jsonl")), *more])


def test_the_table_shows_how_much_and_no_secret(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scan(data, "--pattern", r"ticket=\bT-\d{6}\b", "--by", "who") == 0
    captured = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:4] for line in captured.out.splitlines()[2:13]}
    assert rows == {
        "card": ["1", "1", "1"],
        **{kind: ["0", "0", "0"] for kind in ("iban", "nhs", "ssn", "mrn", "dob")},
        "key": ["0", "0", "0"],
        "email": ["1", "2", "2"],
        "phone": ["1", "1", "1"],
        "ticket": ["1", "1", "1"],
        "by-who": ["1", "4", "4"],
    }
    assert "5 secrets; 4 records were searched." in captured.out
    assert "an*****rg" in captured.out
    assert "secrets.jsonl, which holds the secrets: protect it like the data" in captured.err
    book, planned = (data.with_name(name) for name in ("secrets.jsonl", "secrets-plan.safetensors"))
    command = f"privctl secrets plan {data} --secrets {book} --steps 1 --batch-size 64 -o {planned}"
    assert f"plan their protection: {command}\n" in captured.err
    for secret in SECRETS:
        assert secret not in captured.out + captured.err
    rows_of_book = [json.loads(line) for line in book.read_text().splitlines()]
    assert [(row["id"], row["records"]) for row in rows_of_book] == [
        ("card-1", [0]),
        ("email-1", [0, 3]),
        ("phone-1", [2]),
        ("ticket-1", [1]),
        ("by-who-1", [0, 1, 2, 3]),
    ]


def test_a_summary_alone_writes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(data.parent.iterdir())
    assert run(["secrets", "scan", str(data)]) == 0
    captured = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:4] for line in captured.out.splitlines()[2:11]}
    assert (rows["email"], rows["card"], rows["ssn"]) == (["1", "2", "2"], ["1", "1", "1"], ["0", "0", "0"])
    assert "nothing is written" in captured.err
    assert run(["secrets", "scan", str(data), "--json", "-q"]) == 0
    json_run = capsys.readouterr()
    assert decode(json_run.out, "told").parameters["found"]["email"] == {
        "secrets": 1, "records": 2, "memberships": 2, "most_records": 2,
    }  # fmt: skip
    for secret in SECRETS:
        assert secret not in captured.out + captured.err + json_run.out
    assert sorted(data.parent.iterdir()) == before


@pytest.mark.parametrize("more", [(), ("-q",)])
def test_what_was_not_looked_for_is_said(data: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    assert scan(data, "--kinds", "email,phone", *more) == 0
    stdout = capsys.readouterr().out
    (report,) = (read_report(path) for path in data.parent.glob("*.report.json"))
    (warning,) = (line for line in report.warnings if line.startswith("not looked for"))
    for text in (" ".join(stdout.split()).partition("Not searched for: ")[2], warning):
        for kind in ("card", "iban", "ssn", "mrn", "dob", "key"):
            assert f"the kind {kind};" in text
        for what in ("names of people", "dates of birth and record numbers without", "account numbers", "SSN and NHS"):
            assert what in text
        assert "the kind email" not in text
    assert scan(data, "-f", *more) == 0
    assert "the kind" not in capsys.readouterr().out.partition("Not searched for: ")[2]


def test_json_is_the_report_that_lies_beside_the_book(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scan(data, "--json", "--quiet", "--kinds", "email, phone") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = decode(captured.out, "stdout")
    assert report == read_report(data.with_name("secrets.report.json"))
    assert (report.step, report.parameters["kinds"]) == ("secrets-scan", ["email", "phone"])
    assert not any(secret in captured.out for secret in SECRETS)


def test_nothing_found_is_no_fault(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scan(data, "--kinds", "iban") == 0
    captured = capsys.readouterr()
    assert "No secret was found; 4 records were searched." in captured.out
    assert "secrets.jsonl is not written" in captured.err
    assert not data.with_name("secrets.jsonl").exists()
    assert read_report(data.with_name("secrets.report.json")).outputs == ()


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--kinds", "mail"], 2, "--kinds mail is not one of"),
        (["--kinds", "email,"], 2, "has an empty name"),
        (["--pattern", "x"], 2, "is not NAME=REGEX"),
        (["--pattern", "p=("], 2, "--pattern p is not a valid regular expression"),
        (["--pattern", "p=x*"], 2, "--pattern p matches the empty text"),
        (["--most-secrets", "1"], 3, "brings more than 1 secret,"),
        (["--literals", "absent.txt"], 3, "absent.txt"),
        (["--by", "author"], 3, "line 1 lacks 'author'"),
    ],
)
def test_mistakes_are_one_sentence(
    data: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, says: str
) -> None:
    assert scan(data, "--quiet", *more) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
    assert [path.name for path in data.parent.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12345", "*****"),
        ("123456", "1*****"),
        ("123456789012", "12*****12"),
        ("\x1b[31mabcdefgh\n", "?[*****h?"),
        ("x" * 1000, "xx*****xx"),
    ],
)
def test_a_value_is_masked(value: str, expected: str) -> None:
    assert mask(value) == expected


def test_shards_are_merged_into_what_one_scan_shows_and_writes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scan(data) == 0
    once, book = capsys.readouterr().out, data.with_name("secrets.jsonl")
    written = book.read_bytes()
    parts = [data.with_name(f"part-{shard}.jsonl") for shard in (1, 2)]
    for shard, part in enumerate(parts, start=1):
        assert run(["secrets", "scan", str(data), "--shard", f"{shard}/2", "-o", str(part)]) == 0
    captured = capsys.readouterr()
    assert "Shard 1 of 2: 2 records, 2 candidates for secrets.\nShard 2 of 2: 2 records" in captured.out
    assert f"wrote {parts[1]}, which holds secrets: protect it like the data" in captured.err
    assert not any(secret in captured.out + captured.err for secret in SECRETS)
    merge = ["secrets", "merge", *map(str, parts), "-o", str(book)]
    assert run(merge) == 2  # it is there
    assert run([*merge, "-f"]) == 0
    assert capsys.readouterr().out == once
    assert book.read_bytes() == written
    assert run(merge[:3]) == 3
    assert "shard 2 of 2 is missing" in capsys.readouterr().err


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(shard: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["secrets", "scan", str(data), "--shard", shard, "-o", str(data.with_name("p.jsonl"))]) == 2
    assert f"--shard '{shard}' is not I/N with I from 1 to N, such as 2/4" in capsys.readouterr().err
