from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from audits.canaries.conditions import conditions, data_conditions, violated_conditions
from audits.canaries.design import bound_alpha, canaries_to_refute, power, register
from audits.canaries.manifest import Coins, read_manifest
from privctl.cli import run
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import new_model, texts
from tests.audits.tiny import write_jsonl


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "data.jsonl", texts(50, 1))


def plant(data: Path, *more: str, output: str = "planted.jsonl") -> int:
    return run(["canary", "plant", str(data), "-o", str(data.parent / output), *more])


def check(data: Path, *more: str) -> int:
    return run(["canary", "check", str(data.parent / "planted.canaries.json"), *more])


def test_planting_and_checking(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert plant(data, "--count", "60", "--copies", "1", "--copies", "7") == 0
    out, err = capfd.readouterr()
    commitment = out.splitlines()[0].removeprefix("commitment: ")
    assert "certifiable" in out
    assert "one record" in out
    assert "7 records" in out
    assert "keep the manifest from the people who train" in err
    manifest = read_manifest(data.parent / "planted.canaries.json")
    assert manifest.commitment == commitment
    assert manifest.coins is Coins.OPERATING_SYSTEM
    assert manifest.source.digest == file_digest(data)
    assert [(g.copies, g.canaries, g.included, g.excluded) for g in manifest.guesses] == [
        (1, 30, 10, 10),
        (1, 30, 15, 15),
        (7, 60, 10, 10),
        (7, 60, 15, 15),
        (7, 60, 30, 30),
    ]

    planted = (data.parent / "planted.jsonl").read_bytes().splitlines(keepends=True)
    original = data.read_bytes().splitlines(keepends=True)
    assert [line for line in planted if line in set(original)] == original, "the lines themselves are untouched"
    counts = Counter(json.loads(line)["text"] for line in planted if line not in set(original))
    assert counts == {manifest.text(c): c.copies for c in manifest.canaries if c.included}
    assert len({canary.secret for canary in manifest.canaries}) == 60

    assert check(data, "--commitment", commitment) == 0
    out = capfd.readouterr().out
    assert "violated" not in out
    assert "asserted  each canary was included by a fair coin" in out
    assert check(data, "--commitment", "blake3:" + "0" * 64) == 1
    assert capfd.readouterr().out.splitlines()[2].startswith("commitment")


def test_included_and_places_are_random(data: Path) -> None:
    places = set()
    for number in range(4):
        assert plant(data, "-q", output=f"{number}.jsonl") == 0
        manifest = read_manifest(data.parent / f"{number}.canaries.json")
        places.add((manifest.salt, tuple(canary.included for canary in manifest.canaries)))
        assert not violated_conditions(conditions(manifest))
        lines = (data.parent / f"{number}.jsonl").read_text().splitlines()
        where = [i for i, line in enumerate(lines) if "secret number" in line]
        assert where[0] < len(lines) / 4
        assert where[-1] > len(lines) * 3 / 4
    assert len(places) == 4


def test_prompts_and_packed_files(tmp_path: Path) -> None:
    rows = [{"prompt": f"Ask {i}\u2028", "response": f"é {i}"} for i in range(20)]
    body = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()  # no end after the last line
    data = tmp_path / "data.jsonl.gz"
    data.write_bytes(gzip.compress(body))
    more = ["--count", "60", "--template", "my card is {digits:9}, yes", "--template", "key: {hex:8}"]
    assert plant(data, *more, "--prefix-from", str(data), output="planted.jsonl.gz") == 0
    manifest = read_manifest(tmp_path / "planted.canaries.json")
    text = gzip.decompress((tmp_path / "planted.jsonl.gz").read_bytes())
    lines = [json.loads(line) for line in text.split(b"\n")]
    canaries = [line for line in lines if line not in rows]
    assert len(canaries) == sum(canary.included for canary in manifest.canaries)
    for canary in canaries:
        assert canary["prompt"].endswith(("my card is", "key:"))
        assert canary["prompt"].startswith("Ask ")
    assert any(canary["response"].endswith(", yes") for canary in canaries)
    assert check(data) == 0


def test_tokens_of_a_model(tmp_path: Path, data: Path) -> None:
    new_model(tmp_path / "model")
    more = ["--tokenizer", str(tmp_path / "model"), "--length", "5", "--prefix-from", str(data)]
    assert plant(data, "--count", "30", *more) == 0
    manifest = read_manifest(tmp_path / "planted.canaries.json")
    (form,) = manifest.formats
    assert "pin" in form.alphabet
    assert form.space == len(form.alphabet) ** 5
    first = {json.loads(line)["text"] for line in data.read_text().splitlines()}
    for canary in manifest.canaries:
        assert len(canary.secret.split()) == 5
        assert any(text.startswith(canary.prefix.strip()) for text in first)
    assert len({canary.prefix for canary in manifest.canaries}) == 30
    assert check(data) == 0


def test_a_seed_repeats_and_voids(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manifests = []
    for _ in range(2):
        assert plant(data, "--seed", "5", "-f") == 0
        text = (data.parent / "planted.canaries.json").read_text()
        manifests.append([line for line in text.splitlines() if "created" not in line and "commitment" not in line])
    assert manifests[0] == manifests[1]
    assert "they give no bound" in capfd.readouterr().out
    assert check(data) == 1
    assert "the coins come from a given seed" in capfd.readouterr().out


def test_a_secret_that_the_data_hold_is_drawn_again(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", [f"number {i} here" for i in range(1000) if i % 10])
    assert plant(data, "--count", "20", "--length", "3", "--seed", "1") == 0
    manifest = read_manifest(tmp_path / "planted.canaries.json")
    assert all(canary.secret[0] == "0" or canary.secret[2] == "0" for canary in manifest.canaries)
    full = write_jsonl(tmp_path / "full.jsonl", [f"{i:03}" for i in range(1000)])
    assert plant(full, "--count", "20", "--length", "3", output="x.jsonl") == 2


def test_nothing_is_replaced_unasked(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (data.parent / "planted.canaries.json").write_text("mine")
    assert plant(data) == 2
    assert "give --force" in capfd.readouterr().err
    assert not (data.parent / "planted.jsonl").exists()
    assert plant(data, output="data.jsonl") == 2
    assert plant(data, "-f", "--manifest", str(data)) == 2
    assert (data.parent / "planted.canaries.json").read_text() == "mine"
    assert plant(data, "--force") == 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--count", "0"], "--count is 0"),
        (["--delta", "1"], "--delta is 1"),
        (["--copies", "0"], "--copies is 0"),
        (["--template", "no slot"], "has 0 slots"),
        (["--template", "{digits:3} {hex:2}"], "has 2 slots"),
        (["--template", "{digits:3}"], "needs words before its secret"),
        (["--template", "x {digits:0}"], "--length is 0"),
        (["--kind", "template"], "--template goes with --kind template"),
        (["--kind", "tokens"], "--tokenizer goes with --kind tokens"),
        (["--length", "2"], "only 100 secrets"),
        (["--count", "3", "--copies", "1", "--copies", "2", "--copies", "3", "--copies", "4"], "--copies names 4"),
        (["--seed", "-1"], "--seed is -1"),
    ],
)
def test_settings_that_cannot_be(data: Path, more: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert plant(data, *more) == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in data.parent.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no records"),
        ('{"text": 3}\n', "line 1 has a number as 'text'"),
        ('{"text": "a"}\n{"prompt": "a", "response": "b"}\n', "line 2 has other fields"),
    ],
)
def test_data_that_are_no_records(data: Path, content: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    data.write_text(content)
    assert plant(data) == 3
    assert sentence in capfd.readouterr().err


def test_numbers_of_guesses() -> None:
    def numbers(copies: list[int]) -> list[tuple[int, int, int]]:
        return [(g.copies, g.canaries, g.included) for g in register(copies)]

    assert numbers([1] * 1001) == [(1, 1001, 10), (1, 1001, 100), (1, 1001, 250), (1, 1001, 500)]
    assert numbers([1] * 20) == [(1, 20, 10)]
    assert numbers([1] * 5) == [(1, 5, 2)]
    assert numbers([1, 10] * 100)[:3] == [(1, 100, 10), (1, 100, 25), (1, 100, 50)]
    assert numbers([1, 10] * 100)[3:] == [(10, 200, 10), (10, 200, 20), (10, 200, 50), (10, 200, 100)]
    assert numbers([1, 2, 2]) == [(2, 3, 1)]
    assert [(g.guesses, g.divided) for g in register([1] * 25)] == [(20, False), (25, True)]


@pytest.mark.parametrize(
    ("epsilon", "alpha", "needed"), [(1.6, 0.05, 21), (2.2, 0.05, 42), (3.05, 0.05, 104), (1.2, 0.05 / 6, 21)]
)
def test_fewer_canaries_with_fewer_sets_may_refute_more(epsilon: float, alpha: float, needed: int) -> None:
    """From 22, 43 and 106 canaries on, there is one more set of guesses, and the sets share the error."""

    def could(count: int) -> bool:
        sets = register([1] * count)
        return power(sets, 1e-5, bound_alpha(alpha, sets, sets)).ceiling > epsilon

    assert canaries_to_refute(epsilon, 1e-5, alpha) == needed
    assert could(needed)
    assert not could(needed - 1)
    assert not could(needed + 2), "where bisection over all numbers would go on"


def test_what_can_be_refuted_is_said_before_training(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert plant(data, "--count", "31", "--to-see", "4", "-q") == 0
    out = capfd.readouterr().out
    assert "cannot refute a claim of epsilon 4" in out
    assert "canary gradients certify the most: privctl retrain dp-sgd --gradient-canaries N" in out
    needed = int(out.partition("(--count ")[2].partition(")")[0])
    assert plant(data, "--count", "301", "--to-see", "4", "--force") == 0
    assert "could refute a claim of epsilon 4 at delta 1e-05" in capfd.readouterr().out
    assert 250 < needed < 301
    for count, can in ((needed, True), (needed - 1, False)):
        sets = register([1] * count)
        assert (power(sets, 1e-5, bound_alpha(0.05, sets, sets)).ceiling > 4) is can
    assert canaries_to_refute(8, 1e-5, 0.05) == pytest.approx(15_140, abs=20)
    assert canaries_to_refute(30, 1e-5, 0.05) is None
    assert plant(data, "--count", "31", "--to-see", "40", "--json", "--force") == 0
    assert json.loads(capfd.readouterr().out)["to_see"] == {"epsilon": 40, "canaries": None}
    assert plant(data, "--count", "31", "--to-see", "0", "--force") == 2


def test_the_whole_file_is_checked(data: Path) -> None:
    assert plant(data, "--count", "10") == 0
    manifest = read_manifest(data.parent / "planted.canaries.json")
    assert not violated_conditions(data_conditions(manifest, data.parent / "planted.jsonl"))
    assert {condition.name for condition in violated_conditions(data_conditions(manifest, data))} == {
        "planted data",
        "copies",
        "secrets",
    }


def test_what_a_planting_cannot_show_is_said(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert plant(data, "--count", "20", "--copies", "10") == 0
    err = capfd.readouterr().err
    assert "an audit needs 100 to conclude that they left no trace" in err
    assert "no claimed epsilon for single records can be tested" in err
    one = write_jsonl(data.parent / "one.jsonl", ["a single record to begin with"])
    assert plant(data, "--count", "20", "--prefix-from", str(one), "-f") == 0
    assert "20 canaries share 1 prefixes" in capfd.readouterr().err
    assert (data.parent / "planted.canaries.json").stat().st_mode & 0o077 == 0
