"""Figures of planted canaries: those that the kept scores, or other figures, contradict are noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of
from audits.canaries.design import levels, register
from audits.canaries.evidence import completions, exposures_by_copies, extrapolation, leak_tests
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.storage.arrays import write_arrays
from privctl.storage.digest import NamedFiles
from verify.audits.canaries.figures import planted_faults as faults
from verify.audits.canaries.kept_scores import recount_planted

COUNT, REFERENCES = 240, 63
#: How many references the canaries of each prefix share; 0 if they are ranked among all secrets.
SHARED = (REFERENCES, 40, 0)
COMMITMENT = "blake3:" + 64 * "0"


def arrays() -> dict[str, Any]:
    """Scores and coins of canaries with 1 or 4 copies, after three prefixes; a few have no score."""
    source = np.random.default_rng(3)
    included, copies = source.random(COUNT) < 0.5, np.where(source.random(COUNT) < 0.5, 1, 4)
    scored = source.random(COUNT) < 0.95
    rank = 1 + source.integers(0, REFERENCES + 1, COUNT)
    completion = source.choice([0, 1, 2], COUNT, p=[0.7, 0.2, 0.1]).astype(np.uint8)
    return {
        "canary.exposure": np.where(scored, np.log2((REFERENCES + 1) / rank), 0.0),
        "canary.among": np.full(COUNT, REFERENCES + 1, np.int64),
        "canary.score": np.where(scored, source.normal(size=COUNT) + included, 0.0),
        "canary.completion": np.where(scored, completion, 0).astype(np.uint8),
        "canary.scored": scored,
        "canary.included": included,
        "canary.copies": copies.astype(np.int64),
        "canary.group": np.where(scored, np.arange(COUNT) % len(SHARED), -1),
        "canary.references": np.where(scored, np.array(SHARED)[np.arange(COUNT) % len(SHARED)], 0),
    }


def evidence() -> list[Evidence]:
    kept = {name.removeprefix("canary."): array for name, array in arrays().items()}
    pairs = zip(kept["included"].tolist(), kept["copies"].tolist(), strict=True)
    manifest: Any = SimpleNamespace(canaries=[SimpleNamespace(included=a, copies=b) for a, b in pairs])
    peers = [
        SimpleNamespace(members=np.flatnonzero(kept["group"] == number), references=shared or None)
        for number, shared in enumerate(SHARED)
    ]
    scores: Any = SimpleNamespace(peers=peers, **kept)
    found = [*leak_tests(manifest, scores, 0.0125), *completions(manifest, scores, 0.0125)]
    found += exposures_by_copies(manifest, scores)
    for sets in levels(register(kept["copies"].tolist())):
        inside = kept["copies"] <= sets[0].copies
        found += bounds_of(sets, kept["score"][inside], kept["scored"][inside], kept["included"][inside], 1e-5, 0.0125)
    return found


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PrivacyReport]:
    path = tmp_path_factory.mktemp("canaries") / "a.report.json"
    scores = path.with_name("a.scores.safetensors")
    write_arrays(scores, arrays(), {})
    named = Artifact(role="scores", path=scores.name, digest=NamedFiles().digest(scores), bytes=scores.stat().st_size)
    return path, PrivacyReport(
        step="audit", created="2030-01-01T00:00:00Z", versions={}, outputs=(named,), evidence=tuple(evidence()),
        parameters={"canary_commitment": COMMITMENT, "canary_groups": len(SHARED), "canary_exact_groups": 1},
    )  # fmt: skip


def found_in(audited: tuple[Path, PrivacyReport], place: int, item: Evidence) -> tuple[list[str], list[str]]:
    """The faults by the figures alone, and by the kept scores, with ``item`` in the place of another."""
    path, report = audited
    changed = replace(report, evidence=(*report.evidence[:place], item, *report.evidence[place + 1 :]))
    return list(faults(changed)), list(recount_planted(path, changed, NamedFiles()).wrong)


def test_genuine_figures_stand_and_all_are_counted_again(audited: tuple[Path, PrivacyReport]) -> None:
    path, report = audited
    recounted = recount_planted(path, report, NamedFiles())
    assert (list(faults(report)), recounted.wrong) == ([], ())
    assert recounted.items == report.evidence
    assert len(report.evidence) == 12


def test_a_changed_number_is_noticed_by_the_kept_scores(audited: tuple[Path, PrivacyReport]) -> None:
    tried = 0
    for index, item in enumerate(audited[1].evidence):
        names = {"p_value", "effective", "mean", "max", "ceiling", "disclosed", "undecided"}
        names |= {name for name in item.details if name.startswith(("correct ", "made "))}
        if item.method.startswith("one run"):
            names.remove("ceiling")  # of the bound, which follows from the number of canaries
        for name in sorted(names & item.details.keys()):
            changed = replace(item, details={**item.details, name: item.details[name] + 1})
            assert found_in(audited, index, changed)[1], (item.quantity, name)
            tried += 1
        if not item.method.startswith("one run") and item.estimate:
            assert found_in(audited, index, replace(item, estimate=0.5 * item.estimate))[1]
        assert found_in(audited, index, replace(item, samples={**item.samples, "canaries": 7}))[1]
    assert tried >= 30


def test_what_a_test_found_is_a_truth_and_no_confidence_is_claimed_without_an_interval(
    audited: tuple[Path, PrivacyReport],
) -> None:
    for index, item in enumerate(audited[1].evidence):
        if item.quantity.startswith("mean bits"):
            changed = replace(item, details={**item.details, "detected": 0.5})
            assert any("neither 0 nor 1" in fault for fault in found_in(audited, index, changed)[0])
        if item.quantity.startswith("median bits"):
            assert any("at 0.9" in fault for fault in found_in(audited, index, replace(item, confidence=0.999))[0])


def test_a_bound_without_its_counts_is_noticed(audited: tuple[Path, PrivacyReport]) -> None:
    for index, item in enumerate(audited[1].evidence):
        if item.method.startswith("one run"):
            left = {name: value for name, value in item.details.items() if name != "guesses 1"}
            assert any("lacks the entry" in fault for fault in found_in(audited, index, replace(item, details=left))[1])


def test_other_coins_than_the_manifest_s_are_noticed(audited: tuple[Path, PrivacyReport]) -> None:
    path, report = audited
    manifest = path.with_name("m.json")
    pairs = list(zip(arrays()["canary.included"].tolist(), arrays()["canary.copies"].tolist(), strict=True))
    for flip in (False, True):
        stated = [(not a if flip and i == 3 else a, b) for i, (a, b) in enumerate(pairs)]
        entries = ", ".join(f'{{"included": {str(a).lower()}, "copies": {b}}}' for a, b in stated)
        manifest.write_text(f'{{"canaries": [{entries}]}}')
        named = Artifact(
            role="canaries", path=manifest.name, digest=NamedFiles().digest(manifest), bytes=manifest.stat().st_size
        )
        wrong = recount_planted(path, replace(report, inputs=(named,)), NamedFiles()).wrong
        assert any("other coins or copies" in fault for fault in wrong) is flip


def test_an_entry_left_out_is_noticed_without_the_scores(audited: tuple[Path, PrivacyReport]) -> None:
    needed = {"disclosed", "undecided", "safe", "p_value", "level", "detected", "effective", "mean", "max", "ceiling"}
    for index, item in enumerate(audited[1].evidence):
        if item.method.startswith("one run"):
            continue
        for name in needed & item.details.keys():
            left = {key: value for key, value in item.details.items() if key != name}
            assert found_in(audited, index, replace(item, details=left))[0], (item.quantity, name)
        assert found_in(audited, index, replace(item, samples={}))[0]
        assert found_in(audited, index, replace(item, estimate=None))[0]
        if item.method == "canary completion":
            assert found_in(audited, index, replace(item, upper=None))[0]
            assert found_in(audited, index, replace(item, interval="another"))[0]


def test_canaries_by_copies_add_up(audited: tuple[Path, PrivacyReport]) -> None:
    _, report = audited
    for index, item in enumerate(report.evidence):
        if item.method.startswith("one run") or item.quantity.startswith("mean"):
            continue
        left = replace(report, evidence=(*report.evidence[:index], *report.evidence[index + 1 :]))
        assert any("by copies" in fault for fault in faults(left))
        if "max" in item.details:
            for changed in ({"mean": 0.5 * item.details["mean"]}, {"max": 0.1}, {"max": item.details["max"] + 9}):
                assert found_in(audited, index, replace(item, details={**item.details, **changed}))[0]


def extrapolated() -> Evidence:
    """Of 16 sets of 1000 references: a share p of secrets is not reached by any with probability (1 - p)^1000."""
    references = np.random.default_rng(1).normal(30, 2, 1000)
    peers = [
        SimpleNamespace(members=np.array([number]), losses=references, exact=False, bits=26.6) for number in range(16)
    ]
    manifest: Any = SimpleNamespace(canaries=list(range(16)))
    scores: Any = SimpleNamespace(
        exposure=np.full(16, np.log2(1001)), among=np.full(16, 1001), nll=np.full(16, 20.0), peers=peers
    )
    found, _ = extrapolation(manifest, scores)
    return found[0]


def test_limits_of_an_extrapolated_exposure_follow_from_ranks(audited: tuple[Path, PrivacyReport]) -> None:
    item, report = extrapolated(), audited[1]
    assert (1 - 2.0 ** -(item.lower or 0)) ** 1000 == pytest.approx(0.1 / 16)
    assert not [*faults(replace(report, evidence=(*report.evidence, item)))]
    for forged in (
        replace(item, lower=(item.lower or 0) + 0.1),
        replace(item, estimate=(item.upper or 0) + 0.1),
        replace(item, details={**item.details, "sets": 1}),
        replace(item, details={**item.details, "references": 4000}),
        replace(item, details={}),
        replace(item, upper=None),
        replace(item, interval="percentile bootstrap of a fitted skew normal law"),
    ):
        assert [*faults(replace(report, evidence=(*report.evidence, forged)))]


@pytest.mark.parametrize(
    ("begins", "name", "value", "word"),
    [
        ("mean bits, included", "without_memorization", 100.0, "without memorization it says 100 bits, and the mean"),
        ("mean bits, included", "without_memorization", None, "its without_memorization is missing"),
        ("disclosed, included, 4 copies", "chance", 1.0, "its chance is 1, and no chance writes a secret"),
    ],
)
def test_what_is_put_down_to_chance_is_noticed(
    audited: tuple[Path, PrivacyReport], begins: str, name: str, value: float | None, word: str
) -> None:
    """With such an entry, or without it, no page and no summary shows what the model remembers."""
    report = audited[1]
    index = next(i for i, item in enumerate(report.evidence) if item.quantity == begins)
    item = report.evidence[index]
    details = {entry: number for entry, number in item.details.items() if entry != name}
    details |= {} if value is None else {name: value}
    changed = (*report.evidence[:index], replace(item, details=details), *report.evidence[index + 1 :])
    assert list(faults(report)) == []
    (fault,) = faults(replace(report, evidence=changed))
    assert fault.startswith(f"{item.method}, {begins}: {word}")
