"""Public text that a model learned elsewhere and that stands in one file accuses nobody; what it memorized does."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from audits.extraction.alike import ALIKE, Block, block_numbers, blocks, compared_among_alike, p_value, select_texts
from audits.extraction.prompts import FROM_FILE
from audits.extraction.summary import BEYOND, METHOD, NEAR_BEYOND
from audits.extraction.verdict import verdict
from privctl.cli import run
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.models.language import LanguageModel, load_model
from privctl.reports.files import read_report
from tests.audits.extraction.public_text import PREFIX, SPAN, learn, licences, others
from tests.audits.extraction.test_part import words
from tests.audits.tiny import write_jsonl
from tests.verify.audits.test_reach import report as audit_report
from verify.audits.consistency import faults
from verify.audits.extraction import alike_texts

#: Records of each file, and those learned.
SIDE, LEARNED = 60, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned licences, another that learned as many records of its file, and the files."""
    folder = tmp_path_factory.mktemp("alike")
    public, own = licences(LEARNED), others(LEARNED, 2)
    rest, held = others(SIDE - LEARNED, 3), others(SIDE, 4)
    for name, learned in (("public", public), ("own", own)):
        learn(folder / name, learned)
        write_jsonl(folder / f"{name}.jsonl", [*map(words, learned), *map(words, rest)])
        (folder / f"{name}.txt").write_text("".join(f"{words(row[:3])}\n" for row in learned))
    write_jsonl(folder / "held.jsonl", [*map(words, held)])
    return folder


def audited(folder: Path, name: str) -> PrivacyReport:
    output = folder / f"{name}.audit.report.json"
    call = ["audit", "extraction", str(folder / name), "--train", str(folder / f"{name}.jsonl")]
    call += ["--held-out", str(folder / "held.jsonl"), "--prompts", str(folder / f"{name}.txt"), "--sampling-seed", "3"]
    call += ["--prefix-tokens", str(PREFIX), "--suffix-tokens", str(SPAN), "--device", "cpu", "-q", "-f"]
    assert run([*call, "-o", str(output)]) == 0
    return read_report(output)


@pytest.fixture(scope="module")
def public(folder: Path) -> PrivacyReport:
    return audited(folder, "public")


def confirming(report: PrivacyReport) -> dict[tuple[str, str], Evidence]:
    return {(i.method, i.quantity.removesuffix(ALIKE)): i for i in report.evidence if i.quantity.endswith(ALIKE)}


def test_public_text_on_one_side_accuses_nobody(public: PrivacyReport) -> None:
    found = confirming(public)
    assert {(METHOD, BEYOND), (METHOD, NEAR_BEYOND), (FROM_FILE, BEYOND)} <= found.keys(), "they would have accused it"
    assert not any(item.details["detected"] for item in found.values())
    (decided,) = public.verdicts
    assert decided.outcome is Outcome.INCONCLUSIVE
    assert decided.reason.startswith("confounded")
    without = [item for item in public.evidence if not item.quantity.endswith(ALIKE)]
    assert verdict(without).outcome is Outcome.REFUTED, "without the comparison among texts alike"


def test_what_was_memorized_is_found(folder: Path) -> None:
    report = audited(folder, "own")
    found = confirming(report)
    assert found[METHOD, BEYOND].details["detected"] == 1
    assert found[FROM_FILE, BEYOND].details["detected"] == 1
    assert report.verdicts[0].outcome is Outcome.REFUTED


def test_the_test_within_blocks() -> None:
    """Against all ways to choose the training texts of each block."""
    two = Block(train=2, heldout=2, out=2, found=2)
    assert p_value([two, two]) == pytest.approx(1 / 36)
    assert p_value([two, Block(train=4, heldout=0, out=3, found=3)]) == pytest.approx(1 / 6)
    assert p_value([]) == 1
    several = [Block(train=3, heldout=2, out=2, found=2), two, Block(train=1, heldout=4, out=3, found=0)]
    divisions = [combinations(range(block.train + block.heldout), block.train) for block in several]
    every = [
        [sum(place < block.out for place in chosen) for chosen in each]
        for each, block in zip(divisions, several, strict=True)
    ]
    sums = [sum(counts) for counts in product(*every)]
    assert p_value(several) == pytest.approx(np.mean(np.array(sums) >= 4))


@pytest.mark.slow
def test_sides_drawn_at_random_are_rejected_as_rarely_as_stated() -> None:
    """Of 60 tests at 5 % at most 8 may reject; what comes out resembles something, on both sides."""
    rejected = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        texts = [words(row) for row in (*licences(30), *others(50, seed))]
        out = (np.arange(80) < 25) | (random.random(80) < 0.1)
        train = random.permutation(80) < 40
        number = block_numbers(texts, [random.bytes(8) for _ in texts], train, out)
        rejected += p_value(blocks(number, train, out)) <= 0.05
    assert rejected <= 8


def test_what_is_looked_at_does_not_follow_from_the_sides() -> None:
    digests = [bytes([value]) for value in (5, 1, 4, 2, 3, 0)]
    out = np.array([True, True, True, False, False, False])
    assert select_texts(digests, out, 2).tolist() == [1, 2, 3, 5]
    assert select_texts(digests, out).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


@pytest.fixture(scope="module")
def confirmed(model: LanguageModel) -> Evidence:
    sides = [list(others(40, 1)), list(others(40, 2))]
    accusing = Evidence(method=METHOD, quantity=BEYOND, estimate=0.4, lower=0.1, confidence=0.99)
    return compared_among_alike(accusing, model, sides, [np.arange(40) < 20, np.arange(40) < 2]).evidence


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"p_value": 0.5, "detected": 0.0}, "its blocks give"),
        ({"detected": 0.0}, "is not its p-value's"),
        ({"level": 0.5}, "its confidence another"),
        ({"compared_training": 3.0}, "its blocks give"),
        ({"compared": 3.0}, "as many texts that come out"),
        ({"blocks of 0 and 9, 3 out": 1.0}, "none of texts alike"),
        ({"blocks of 900 and 900, 3 out": 9.0}, "none of texts alike"),
    ],
)
def test_a_changed_number_is_noticed(confirmed: Evidence, change: dict[str, float], complaint: str) -> None:
    assert alike_texts.fault(confirmed) == ""
    assert confirmed.details["detected"] == 1
    forged = replace(confirmed, details={**confirmed.details, **change})
    assert complaint in alike_texts.fault(forged)
    assert complaint in " ".join(faults(audit_report(forged)))


def test_an_estimate_is_recomputed(confirmed: Evidence) -> None:
    for estimate in (0.9, None):
        assert "estimate" in alike_texts.fault(replace(confirmed, estimate=estimate))


def test_a_verdict_follows_from_what_was_confirmed(public: PrivacyReport) -> None:
    (decided,) = public.verdicts
    assert not list(faults(public))
    consistent = replace(public, verdicts=(replace(decided, outcome=Outcome.CONSISTENT),))
    assert any("what comes out is not compared with texts alike" in fault for fault in faults(consistent))
    without = tuple(item for item in public.evidence if not item.quantity.endswith(ALIKE))
    assert any("its evidence refutes that" in fault for fault in faults(replace(public, evidence=without)))
    stray = tuple(item for item in public.evidence if item.quantity not in (BEYOND, NEAR_BEYOND))
    assert any("nothing that it could confirm" in fault for fault in faults(replace(public, evidence=stray)))
