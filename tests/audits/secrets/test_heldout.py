"""Secrets of held-out records as the control: exact where chance decided the sides, and guarded where it did not."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.secrets import trace
from audits.secrets.audit import SecretRequest
from audits.secrets.blind import APART, BASELINE, doubt, over_the_records
from audits.secrets.heldout import ControlBook, _comparable, fold
from audits.secrets.trace import _permutation_test
from privctl.cli import run
from privctl.domain.errors import CommandError, InputError
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import new_model, train
from tests.audits.secrets.small import book, judged, of, pins, prefixes, protect, records
from tests.audits.secrets.test_part import traced
from verify.audits.extraction.alike_texts import is_doubtful

SEEN, HELD = 40, 40
PINS = pins(SEEN + HELD, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learnt the first records by heart, the one before, and books of both files."""
    folder = tmp_path_factory.mktemp("heldout")
    texts = [f"{a} {b}" for a, b in zip(prefixes(SEEN + HELD, 1), PINS, strict=True)]
    other = [f"{a} {b}" for a, b in zip(prefixes(60, 5), pins(60, 6), strict=True)]
    records(folder, "seen.jsonl", texts[:SEEN])
    records(folder, "held.jsonl", texts[SEEN:])
    train(new_model(folder / "before"), records(folder, "other.jsonl", other), epochs=5)
    shutil.copytree(folder / "before", folder / "after")
    train(folder / "after", folder / "seen.jsonl", epochs=70)
    book(folder / "book.jsonl", [(value, [i]) for i, value in enumerate(PINS[:SEEN])])
    book(folder / "held-book.jsonl", [(value, [i]) for i, value in enumerate(PINS[SEEN:])])
    return folder


def request(folder: Path, **more: object) -> SecretRequest:
    fields = {
        "secrets": folder / "book.jsonl",
        "data": folder / "seen.jsonl",
        "held_out": ControlBook(book=folder / "held-book.jsonl", data=folder / "held.jsonl"),
        "candidates": 40,
    }
    return SecretRequest(**{**fields, **more})


def test_what_was_learnt_is_found_against_held_out_secrets_and_an_untouched_model_is_not(folder: Path) -> None:
    found = judged(folder / "after", request(folder))
    assert traced(found.verdicts).outcome is Outcome.REFUTED
    assert "bits more than held-out ones" in traced(found.verdicts).reason
    assert of(found, "told first, trained").estimate == 1
    control = of(found, "told first, held out (control)")
    assert control.samples == {"secrets": HELD}
    assert control.estimate is not None
    assert control.estimate < 0.2
    assert found.arrays["secret.held_out"].tolist() == [False] * SEEN + [True] * HELD
    assert found.arrays["secret.position"].tolist() == list(range(SEEN + HELD)), "held-out ones count on"
    spent = sum(1 - item.confidence for item in found.evidence)
    assert spent == pytest.approx(0.05 * (0.25 + 0.25))
    untouched = judged(folder / "before", request(folder))
    assert traced(untouched.verdicts).outcome is Outcome.INCONCLUSIVE
    assert "with 40 secrets to compare" in traced(untouched.verdicts).reason


@pytest.mark.parametrize(("by_records", "caught"), [(True, False), (False, True)])
def test_the_level_where_each_record_fell_by_itself(
    by_records: bool, caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that stand in more records are easier for any model, and more often wholly on the larger side.

    Planted: a comparison that does not look at the number of records.
    """
    monkeypatch.setattr(trace, "_DRAWS", 199)
    random = np.random.default_rng(3)
    called, sets = 0, 150
    for _ in range(sets):
        held_out = random.random(140) < 0.3
        rows: dict[bool, list[tuple[str, list[int]]]] = {False: [], True: []}
        bits = {}
        for i in range(80):
            where = random.choice(140, size=random.choice([1, 1, 3]), replace=False)
            bits[f"v{i}"] = 2.0 * len(where) + random.exponential()
            for side in (False, True):
                inside = [int(r) for r in where if held_out[r] == side]
                if inside:
                    rows[side].append((f"v{i}", inside))
        books = [book(tmp_path / f"{side}.jsonl", rows[side]) for side in (False, True)]
        alone, _ = _comparable(*books)
        chosen = [(side, *rows[side][position]) for side, position in sorted(alone)]
        outcome = _permutation_test(
            np.array([bits[value] for _, value, _ in chosen]),
            np.array([side for side, _, _ in chosen]),
            np.array([f"{len(where) if by_records else ''} pin" for _, _, where in chosen]),
            seed=1,
        )
        called += outcome is not None and outcome[2] <= 0.05
    assert (called > 0.05 * sets + 3 * math.sqrt(0.05 * sets)) is caught


def test_one_secret_of_a_record_is_compared_and_none_that_stands_on_both_sides(tmp_path: Path) -> None:
    trained_on = book(tmp_path / "a.jsonl", [("(555) 01-23", [0]), ("one", [1]), ("two", [1]), ("three", [2, 3])])
    held = book(tmp_path / "b.jsonl", [("5550123", [0]), ("four", [1]), ("FOUR", [2])])
    alone, both = _comparable(trained_on, held)
    assert both == {"(555) 01-23", "5550123"}
    assert len(alone & {(False, 1), (False, 2)}) == 1, "they share a record"
    assert alone - {(False, 1), (False, 2)} == {(False, 3), (True, 2)}, "spellings of a value count once"
    assert (fold("(555) 01-23"), fold("Ann Lee"), fold("--")) == ("5550123", "annlee", "--")


def test_a_held_out_value_in_training_text_is_no_control(folder: Path, tmp_path: Path) -> None:
    """The scan missed it there; and where the scan missed a trained value in held-out text, it is not compared."""
    lines = [line["text"] for line in map(json.loads, (folder / "seen.jsonl").read_text().splitlines())]
    more = records(tmp_path, "seen.jsonl", [*lines, f"wal wak {PINS[SEEN]}"])
    found = judged(folder / "before", request(folder, data=more))
    assert of(found, "told first, held out (control)").samples == {"secrets": HELD - 1}
    assert ("1 secret of kind pin", "held out, in training records too") in {
        (o.what, o.reason) for o in found.omissions
    }
    assert of(found, "told first, kind pin").details["skipped"] == 0, "no secret of the training data"
    others = [line["text"] for line in map(json.loads, (folder / "held.jsonl").read_text().splitlines())]
    held = records(tmp_path, "held.jsonl", [*others, f"wal wak {PINS[0]}"])
    control = ControlBook(book=folder / "held-book.jsonl", data=held)
    found = judged(folder / "before", request(folder, held_out=control))
    (test,) = [item for item in found.evidence if item.method == "secret trace"]
    assert test.samples == {"secrets": SEEN - 1, "compared_with": HELD}
    assert of(found, "told first, trained").samples == {"secrets": SEEN}


def test_records_that_differ_by_themselves_make_no_control(folder: Path, tmp_path: Path) -> None:
    """Planted: held-out records of another kind. Of such files the verdict says that they are no comparison."""
    texts = [f"wal wal wal wal {front} {pin}" for front, pin in zip(prefixes(HELD, 8), PINS[SEEN:], strict=True)]
    held = ControlBook(book=folder / "held-book.jsonl", data=records(tmp_path, "held.jsonl", texts))
    found = judged(folder / "after", request(folder, held_out=held))
    assert traced(found.verdicts).outcome is Outcome.INCONCLUSIVE
    assert "confounded: the records of both files differ without the model" in traced(found.verdicts).reason
    (compared,) = [item for item in found.evidence if item.method == "secret trace"]
    assert compared.details["detected"] == 1
    assert is_doubtful(compared, found.evidence)


def test_a_doubt_yields_where_the_model_tells_more(folder: Path) -> None:
    found = judged(folder / "after", request(folder))
    (compared,) = [item for item in found.evidence if item.method == "secret trace"]
    blind = {item.quantity: item for item in found.evidence if item.method == BASELINE}
    own = replace(blind[APART], details={**blind[APART].details, "p_value": 0.1})
    over = blind[over_the_records("loss")]
    assert over.lower is not None
    assert over.lower > 0
    for beyond, doubtful in ((over, False), (replace(over, lower=-0.1), True)):
        assert bool(doubt((own, beyond), "loss")) is doubtful
        assert is_doubtful(compared, (own, beyond)) is doubtful
    assert is_doubtful(compared, ()), "a comparison whose records nobody looked at"


def test_controls_that_are_none(folder: Path, tmp_path: Path) -> None:
    same = ControlBook(book=folder / "held-book.jsonl", data=folder / "seen.jsonl")
    with pytest.raises(InputError, match=r"--held-out-data .*seen.jsonl is --data itself"):
        judged(folder / "before", request(folder, held_out=same))
    trained_on = tuple(file_digest(folder / name) for name in ("seen.jsonl", "held.jsonl"))
    with pytest.raises(InputError, match=r"names --held-out-data .*held.jsonl as trained on"):
        judged(folder / "before", request(folder, trained_on=trained_on))
    plan = protect(
        tmp_path / "plan.safetensors", folder / "seen.jsonl", [[i] for i in range(SEEN)], [0.1] * 30 + [0.0] * 10,
        information=1e-3,
    )  # fmt: skip
    with pytest.raises(CommandError, match=r"--plan leaves secrets out, which are its control"):
        judged(folder / "before", request(folder, plan=plan))


def test_by_command(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The held-out records are those of --nonmembers where none are named; the report passes verify."""
    asked = ["--secrets", str(folder / "book.jsonl"), "--data", str(folder / "seen.jsonl"), "--device", "cpu", "-q"]
    control = ["--held-out-secrets", str(folder / "held-book.jsonl")]
    report = tmp_path / "after.audit.report.json"
    log = ["--log", str(tmp_path / "log.jsonl"), "-o", str(report)]
    assert run(["audit", "secrets", str(folder / "after"), *asked, *control, *log]) == 2
    assert "--held-out-secrets needs the records that hold these secrets" in capfd.readouterr().err
    assert run(["audit", "secrets", str(folder / "after"), *asked, "--held-out-data", str(folder / "held.jsonl")]) == 2
    assert "--held-out-data needs --held-out-secrets" in capfd.readouterr().err
    sides = ["--train", str(folder / "seen.jsonl"), "--held-out", str(folder / "held.jsonl"), "--prefix-tokens", "3"]
    more = ["--suffix-tokens", "3", "--exact-only"]
    assert run(["audit", str(folder / "after"), *asked, *control, *log, *sides, *more]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "bits more than held-out ones" in out
    assert "told first, control" in out
    roles = {item.role: Path(item.path).name for item in decode(report.read_text(), "report").inputs}
    assert (roles["heldout secrets"], roles["heldout data"]) == ("held-book.jsonl", "held.jsonl")
    assert run(["verify", str(report)]) == 0
