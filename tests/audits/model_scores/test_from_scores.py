from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from scipy.special import expit

from audits.claims import EpsilonClaim
from audits.model_scores.audit import audit_scores, read_scores
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Bound
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode, encode
from tests.few import few


def response(epsilon: float, models: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of randomized response: 1 where the record is said to have been used."""
    source = np.random.default_rng(seed)
    rate = float(expit(epsilon))
    return (source.random(models) < rate).astype(float), (source.random(models) >= rate).astype(float)


def written(folder: Path, inner: np.ndarray, outer: np.ndarray) -> Path:
    path = folder / "scores.safetensors"
    save_file({"with": inner, "without": outer}, path)
    return path


def test_a_bound_with_what_it_rests_on(tmp_path: Path) -> None:
    audit = audit_scores(written(tmp_path, *response(3.0, 1000)))
    bound, mu = audit.evidence
    assert audit.verdicts == ()
    assert (bound.method, bound.bound) == ("rank test", Bound.LOWER)
    assert bound.quantity == "epsilon lower bound at delta 1e-05"
    assert bound.estimate == bound.lower
    assert bound.lower is not None
    assert 2 < bound.lower < 3 < bound.details["ceiling"] < 5.601
    assert 0 < bound.details["detectable"] < 0.3
    assert mu.quantity == "lower bound on mu of Gaussian differential privacy"
    assert mu.lower is not None
    assert 1 < mu.lower < 3.4  # at mu 3.4 a Gaussian mechanism tells as many models apart
    assert bound.samples == {"with": 1000, "without": 1000}
    assert bound.details["threshold"] in (0, 1)
    assert bound.details["counted"] == bound.details["ranked"] == 1000
    assert "independent" in audit.warnings[0]


@pytest.mark.parametrize(
    ("true", "claim", "models", "outcome", "reason"),
    few(
        [
            (3.0, (1.0, 1e-6), 1000, Outcome.REFUTED, "at least 2."),
            (1.0, (1.0, 0.0), 1000, Outcome.CONSISTENT, "randomized response from epsilon 1."),
            (1.0, (1.0, 0.01), 20_000, Outcome.CONSISTENT, "and a Gaussian mechanism from epsilon 1."),
            # Enough for randomized response, but not for what private training comes close to.
            (1.0, (1.0, 1e-6), 1000, Outcome.INCONCLUSIVE, "a Gaussian mechanism from epsilon 4."),
            (3.0, (3.0, 1e-6), 30, Outcome.INCONCLUSIVE, "cannot certify more than"),
            (1.0, (1.0, 0.0), 60, Outcome.INCONCLUSIVE, "a factor of 2 is epsilon 2"),
            (0.0, (0.0, 0.0), 1000, Outcome.INCONCLUSIVE, "a factor of 2 is epsilon 0"),
        ],
        0,
        1,
        3,
        4,
        5,
        6,
    ),
)
def test_a_claim_has_three_outcomes(
    tmp_path: Path, true: float, claim: tuple[float, float], models: int, outcome: Outcome, reason: str
) -> None:
    epsilon, delta = claim
    audit = audit_scores(written(tmp_path, *response(true, models)), claim=EpsilonClaim(epsilon=epsilon, delta=delta))
    (verdict,) = audit.verdicts
    assert (verdict.outcome, verdict.subject) == (outcome, f"({epsilon:g}, {delta:g})-DP, as claimed")
    assert reason in verdict.reason
    bound, _, tested = audit.evidence
    assert bound.details["delta"] == delta
    assert tested.estimate is not None
    assert (tested.estimate <= 0.05) == (outcome == Outcome.REFUTED)


def test_a_true_claim_is_seldom_refuted(tmp_path: Path) -> None:
    refuted = 0
    for seed in range(12):
        path = written(tmp_path, *response(2.0, 300, seed))
        (verdict,) = audit_scores(path, claim=EpsilonClaim(epsilon=2.0, delta=0)).verdicts
        refuted += verdict.outcome == Outcome.REFUTED
    assert refuted <= 4  # 0.02 % of binomials with 5 % exceed it


def test_the_bound_may_be_at_another_delta_than_the_claim(tmp_path: Path) -> None:
    path = written(tmp_path, *response(3.0, 1000))
    bound, *_ = audit_scores(path, delta=0.1, claim=EpsilonClaim(epsilon=1, delta=0)).evidence
    assert bound.quantity == "epsilon lower bound at delta 0.1"


def test_it_fits_a_report(tmp_path: Path) -> None:
    # Infinite scores leave an infinite threshold, which JSON cannot hold.
    scores = np.full(60, math.inf), np.full(60, -math.inf)
    audit = audit_scores(written(tmp_path, *scores), claim=EpsilonClaim(epsilon=9, delta=0))
    report = PrivacyReport(
        step="audit",
        created="2030-01-01T00:00:00Z",
        versions={},
        evidence=audit.evidence,
        verdicts=audit.verdicts,
        warnings=audit.warnings,
    )
    assert decode(encode(report), "here") == report
    assert "detectable" not in audit.evidence[2].details


def test_the_three_formats_and_dtypes_agree(tmp_path: Path) -> None:
    inner, outer = np.array([0.5, 1.5, -2.0]), np.array([0.25, -1.0])
    paths = [written(tmp_path, inner, outer)]
    (tmp_path / "s.json").write_text(json.dumps({"with": [0.5, 1.5, -2], "without": [0.25, -1.0], "note": "x"}))
    (tmp_path / "s.csv").write_text(
        "\ufeffmodel,Score,member\n1,0.5,1\n2,0.25,0\n\n3,1.5,true\n4,-2,TRUE\n5,-1,False\n"
    )
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        paths.append(tmp_path / f"{dtype}.safetensors")
        save_torch({"with": torch.tensor(inner, dtype=dtype), "without": torch.tensor(outer, dtype=dtype)}, paths[-1])
    for path in (*paths, tmp_path / "s.json", tmp_path / "s.csv"):
        found = read_scores(path)
        assert [scores.tolist() for scores in found] == [inner.tolist(), outer.tolist()]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("s.txt", "", "not a kind of file"),
        ("s.json", "[]", "not a JSON object with the lists"),
        ("s.json", '{"with": [1, 2]}', "not a JSON object with the lists"),
        ("s.json", '{"with": [1, 2], "without": [1, NaN]}', "not a finite number"),
        ("s.json", '{"with": [1, true], "without": [1, 2]}', "True as score 2 with the record"),
        ("s.json", '{"with": [1, 2], "without": ["a", 2]}', "'a' as score 1 without the record"),
        ("s.json", '{"with": [1, 1%s], "without": [1, 2]}' % ("0" * 400), "as score 2 with"),
        ("s.json", '{"with": [], "without": [1, 2]}', "0 scores with the record"),
        ("s.json", '{"with": [1, 2], "without": [1]}', "1 score without the record"),
        ("s.csv", "", "does not begin with a line"),
        (
            "s.csv",
            "id,score,member\na,1,1\n",
            "has a column id, so .* one score a model is wanted; remove the column, or",
        ),
        ("s.csv", "score,label\n1,1\n", "does not begin with a line"),
        ("s.csv", "score,member\n1,1\n2\n", "line 3 has 1 columns"),
        ("s.csv", "score,member\n1,yes\n", "line 2 has 'yes' as member"),
        ("s.csv", "score,member\n" + "1" * 200_000 + ",1\n", "not a CSV file: field larger"),
        ("s.csv", "score,member\nx,1\n", "line 2 has 'x' as score"),
        ("s.csv", "score,member\n1,1\nnan,1\n1,0\n2,0\n", "NaN as score 2 with"),
    ],
)
def test_text_that_holds_no_scores(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=fault) as caught:
        audit_scores(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({"with": np.zeros(3)}, "no tensor 'without'"),
        ({"with": np.zeros((3, 1)), "without": np.zeros(3)}, r"'with' is F64 of shape \[3, 1\]"),
        ({"with": np.zeros(3), "without": np.zeros(3, np.int32)}, "'without' is I32"),
        ({"with": np.zeros(3), "without": np.zeros(0)}, "0 scores without"),
        ({"with": np.array([0.0, math.nan]), "without": np.zeros(3)}, "NaN as score 2 with"),
    ],
)
def test_tensors_that_are_no_scores(tmp_path: Path, tensors: dict[str, np.ndarray], fault: str) -> None:
    save_file(tensors, tmp_path / "s.safetensors")
    with pytest.raises(InputError, match=fault):
        audit_scores(tmp_path / "s.safetensors")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a file"):
        audit_scores(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("delta", "claim", "fault"),
    [
        (1.0, None, "delta is 1"),
        (math.nan, None, "delta is nan"),
        (-0.1, None, "delta is -0.1"),
        (1e-5, EpsilonClaim(epsilon=1, delta=2), "claimed delta is 2"),
        (1e-5, EpsilonClaim(epsilon=-1, delta=0), "claimed epsilon is -1"),
        (1e-5, EpsilonClaim(epsilon=math.inf, delta=0), "claimed epsilon is inf"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, delta: float, claim: EpsilonClaim | None, fault: str) -> None:
    with pytest.raises(CommandError, match=fault):
        audit_scores(tmp_path / "not read", delta=delta, claim=claim)


def test_doubts_about_the_scores(tmp_path: Path) -> None:
    inner, outer = np.random.default_rng(0).normal(size=(2, 100))
    swapped = audit_scores(written(tmp_path, inner - 2, outer)).warnings
    assert any("swapped" in warning for warning in swapped)
    twice = np.concatenate([inner[:80], inner[:20]])
    assert any("counted twice" in warning for warning in audit_scores(written(tmp_path, twice, outer)).warnings)
    assert len(audit_scores(written(tmp_path, inner, outer)).warnings) == 3
    assert len(audit_scores(written(tmp_path, *response(1.0, 100))).warnings) == 3


@pytest.mark.parametrize("models", few([150, 200, 250, 300, 350], 0, 4))
def test_a_refuted_claim_is_told_no_more_than_was_certified(tmp_path: Path, models: int) -> None:
    audit = audit_scores(written(tmp_path, *response(4.0, models)), claim=EpsilonClaim(epsilon=0.5, delta=1e-5))
    (verdict,) = audit.verdicts
    assert verdict.outcome is Outcome.REFUTED
    certified = float(verdict.reason.partition("an epsilon of at least ")[2].split()[0])
    least = audit.evidence[0].lower
    assert least is not None
    assert least * 0.99 < certified <= least * (1 + 1e-9)
