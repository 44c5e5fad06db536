"""Bounds from canaries by sets of guesses that were not fixed before training are refused, however consistent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.canaries.bounds import bounds, bounds_of
from audits.canaries.conditions import number_included
from audits.canaries.design import register
from audits.canaries.manifest import Guesses, Manifest, commitment_of, encode_manifest, read_manifest
from privctl.domain.evidence import Evidence
from privctl.domain.gate import GateOutcome
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import encode_value
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import planted
from tests.gate.made import PROVED, audit, judged, making, of, weights
from verify.audits.canaries.bounds import wrong_bound
from verify.audits.canaries.guesses import check_guesses, default_set_sizes
from verify.checks import CHECKS

COPIES = (1, 10)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guesses")
    planted(folder, count=400, copies=COPIES, templates=("pin {digits:6}",))
    return folder / "m.json"


def arrays(found: Manifest) -> tuple[Any, Any]:
    """Scores in which included canaries stand out a little."""
    coins = np.array([canary.included for canary in found.canaries])
    return 1.5 * coins + np.random.default_rng(3).normal(size=len(coins)), coins


def honest(manifest: Path) -> list[Evidence]:
    found = read_manifest(manifest)
    scores, coins = arrays(found)
    return bounds(found, scores, np.ones(len(coins), np.bool_), (), 1e-5, 0.05)


def shopped(manifest: Path) -> list[Evidence]:
    """The bounds of the single set that gives the most, among all that could have been registered."""
    found = read_manifest(manifest)
    scores, coins = arrays(found)
    inside = np.array([canary.copies == 1 for canary in found.canaries])
    count = int(inside.sum())
    tried = [
        bounds_of(
            [Guesses(copies=1, canaries=count, included=half, excluded=half)], scores[inside],
            np.ones(count, np.bool_), coins[inside], 1e-5, 0.025 / 5,
        )
        for half in range(5, count // 2, 3)
    ]  # fmt: skip
    return [*max(tried, key=lambda pair: pair[0].lower or 0.0), *honest(manifest)[2:]]


def report(folder: Path, items: Sequence[Evidence], manifest: Path | None, **stated: Any) -> PrivacyReport:
    """The report of an audit that read ``manifest``; one that is gone where that is None."""
    path = manifest or folder / "gone.json"
    digest = file_digest(manifest) if manifest else "blake3:" + "0" * 64
    parameters = {"attack": [], "confidence": 0.95, **stated}
    if manifest and "canary_commitment" not in stated:
        parameters["canary_commitment"] = read_manifest(manifest).commitment
    return PrivacyReport(
        step="audit", created="2030-01-01T00:00:00Z", versions={}, parameters=parameters, evidence=tuple(items),
        inputs=(Artifact(role="canaries", path=str(path), digest=digest, bytes=1),),
    )  # fmt: skip


def found(folder: Path, items: Sequence[Evidence], manifest: Path | None, **stated: Any) -> list[tuple[Outcome, str]]:
    path = report(folder, items, manifest, **stated)
    return [(verdict.outcome, verdict.reason) for verdict in check_guesses(folder / "a.report.json", path, ())]


@pytest.mark.parametrize("count", [2, 9, 30, 250, 999, 1000, 10_001, 100_000])
def test_the_design_is_the_audit_s(count: int) -> None:
    """Written twice: verify says by itself what planting registers."""
    assert default_set_sizes(count) == tuple(group.guesses for group in register([1] * count))


def test_registered_sets_stand(manifest: Path, tmp_path: Path) -> None:
    assert check_guesses in CHECKS
    items = honest(manifest)
    assert len(items) == 4, "two levels of copies"
    assert found(tmp_path, items, manifest) == []
    assert found(tmp_path, items, None, canary_commitment="blake3:" + "1" * 64) == []


def test_shopping_among_sets_of_guesses_is_refused(manifest: Path, tmp_path: Path) -> None:
    """A single set chosen afterwards gives a larger bound, which is what its counts give."""
    items, truth = shopped(manifest), honest(manifest)
    assert (items[0].lower or 0) > (truth[0].lower or 0) + 0.05
    assert [wrong_bound(item) for item in items] == [""] * 4
    outcomes = found(tmp_path, items, manifest)
    assert {outcome for outcome, _ in outcomes} == {Outcome.REFUTED}
    assert "were registered before training" in outcomes[0][1]
    alone = found(tmp_path, items, None, canary_commitment="blake3:" + "1" * 64)
    assert {outcome for outcome, _ in alone} == {Outcome.INCONCLUSIVE}
    assert "could show that these were fixed" in alone[0][1]


def test_a_level_of_copies_left_out(manifest: Path, tmp_path: Path) -> None:
    (only,) = found(tmp_path, honest(manifest)[2:], manifest)
    assert only == (
        Outcome.REFUTED,
        "no bound is stated from the guesses that were registered on canaries of up to 1 copies",
    )


def test_a_manifest_changed_to_fit(manifest: Path, tmp_path: Path) -> None:
    """Its commitment is that of its content, and the audit states another; or its content no longer gives it."""
    first, *_ = shopped(manifest)
    true = read_manifest(manifest)
    half = int(first.details["guesses 1"]) // 2
    sets = (Guesses(copies=1, canaries=200, included=half, excluded=half), true.guesses[-1])
    fitted = replace(true, guesses=sets)
    for each in (fitted, replace(fitted, commitment=commitment_of(fitted))):
        path = tmp_path / "fitted.json"
        path.write_bytes(encode_manifest(each))
        ((outcome, reason),) = found(tmp_path, [first], path, canary_commitment=true.commitment)
        assert outcome is Outcome.REFUTED
        assert "does not give the commitment" in reason


def test_confidence_taken_from_elsewhere(manifest: Path, tmp_path: Path) -> None:
    """At 75 % the bound is larger, and the audit's 95 % leave it no such share."""
    true = read_manifest(manifest)
    scores, coins = arrays(true)
    lax = bounds(true, scores, np.ones(len(coins), np.bool_), (), 1e-5, 0.5)
    assert wrong_bound(lax[0]) == ""
    for place in (manifest, None):
        stated = {"canary_commitment": true.commitment}
        outcomes = found(tmp_path, lax, place, **stated)
        assert {outcome for outcome, _ in outcomes} == {Outcome.REFUTED}
        assert "less than the registered sets leave" in outcomes[0][1]


def test_exactly_half_leaves_bounds_less(manifest: Path, tmp_path: Path) -> None:
    """Bounds that are said to hold for a fixed half too have the confidence that this takes."""
    items, drawn = honest(manifest), len(read_manifest(manifest).canaries)
    conditions = [encode_value(number_included(drawn // 2, drawn))]
    assert found(tmp_path, items, manifest) == []
    outcomes = found(tmp_path, items, manifest, canary_conditions=conditions)
    assert {outcome for outcome, _ in outcomes} == {Outcome.REFUTED}
    assert "less than the registered sets leave" in outcomes[0][1]
    # C(400, 200) 2^-400 = 0.0398693.
    held = [replace(item, confidence=1 - 0.039869 * (1 - item.confidence)) for item in items]
    assert found(tmp_path, held, manifest, canary_conditions=conditions) == []


def test_the_gate_refuses_them_too(manifest: Path, tmp_path: Path) -> None:
    model = making(tmp_path / "m.report.json", PROVED)
    outcomes = {}
    for name, items in (("honest", honest(manifest)), ("shopped", shopped(manifest))):
        path = report(tmp_path, items, manifest)
        looked = audit(
            tmp_path / f"{name}.json", *items, inputs=(weights("m"), *path.inputs), parameters=path.parameters
        )
        findings = of(judged(model, looked, recompute="true", max_epsilon="9"), "recomputed")
        outcomes[name] = {finding.outcome for finding in findings if "guesses on canaries" in finding.message}
    assert outcomes == {"honest": set(), "shopped": {GateOutcome.FAIL}}
