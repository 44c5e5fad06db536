"""Plans of the real command, and their reports: proved as they are, refuted where a number is better than the truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode, encode
from privctl.reports.files import file_artifact
from privctl.secrets.protection import Protection, read_protection, staged_protection
from tests import remembered
from verify.consistency import secret_plan
from verify.losses.bound_pair import BoundPair
from verify.run import verify

BOOK = [
    {"id": "few", "kind": "email", "records": [0, 1], "prior": 0.01, "posterior": 0.3},
    {"id": "many", "kind": "word", "records": list(range(10, 40))},
    {"id": "some", "kind": "word", "records": [3, 4, 5]},
    {"id": "none", "kind": "word", "records": []},
]

ROWS = ("secret protection, trade-off curve", "secret protection, mutual information")


@pytest.fixture(scope="module", autouse=True)
def _remembered() -> Iterator[None]:
    """Most changes leave the laws of most secrets as they were."""
    with remembered.bounds():
        yield


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a book, and plans by both calibrations."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "train.jsonl").write_text("".join(f'{{"text": "record {i}"}}\n' for i in range(60)))
    (folder / "secrets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in BOOK))
    for name in ("curve", "fano"):
        command = ["secrets", "plan", str(folder / "train.jsonl"), "--secrets", str(folder / "secrets.jsonl")]
        command += ["--steps", "200", "--batch-size", "6", "--cap", "3", "--calibration", name, "--target"]
        command += ["word=0.001:0.1", "-o", str(folder / f"{name}.safetensors"), "--quiet"]
        assert run(command) == 0
    return folder


def judged(folder: Path, name: str, change: Callable[[PrivacyReport], PrivacyReport] = lambda r: r) -> dict[str, str]:
    """What each part of the plan's report is found to be; of several verdicts on one file the worst."""
    report_path = folder / f"{name}.report.json"
    found = verify(report_path, change(decode(report_path.read_text(), str(report_path))))
    worst = {v.subject: v.outcome for v in found.integrity if v.outcome is not Outcome.REFUTED}
    worst |= {v.subject: v.outcome for v in found.integrity if v.outcome is Outcome.REFUTED}
    return {**worst, **{guarantee.verdict.subject: guarantee.verdict.outcome for guarantee in found.guarantees}}


@pytest.mark.parametrize("name", ["curve", "fano"])
def test_a_plan_and_its_report_are_proved(planned: Path, name: str) -> None:
    found = judged(planned, name)
    assert found.pop("any one record") in (Outcome.PROVED, Outcome.CONSISTENT)
    assert set(found.values()) == {Outcome.PROVED}, found
    assert {"secret protection, trade-off curve", "secret protection, mutual information", "secrets.jsonl"} <= set(
        found
    )


def better(position: int, **numbers: float) -> Callable[[PrivacyReport], PrivacyReport]:
    """The report with one guarantee's numbers made better: its risk's, or its own."""

    def change(report: PrivacyReport) -> PrivacyReport:
        held: list[Guarantee] = list(report.guarantees)
        risk = replace(held[position].risks[0], **{k: v for k, v in numbers.items() if k in ("bound", "at")})
        own = {k: v for k, v in numbers.items() if k in ("epsilon", "noise_multiplier")}
        held[position] = replace(held[position], risks=(risk, *held[position].risks[1:]), **own)
        return replace(report, guarantees=tuple(held))

    return change


@pytest.mark.parametrize(
    ("position", "numbers"),
    [(0, {"bound": 0.0995}), (1, {"bound": 0.15}), (0, {"at": 0.0005}), (0, {"epsilon": 0.2}),
     (0, {"noise_multiplier": 9.0}), (1, {"at": 1e-4})],
)  # fmt: skip
def test_a_report_that_promises_too_much_is_refuted(planned: Path, position: int, numbers: dict[str, float]) -> None:
    name = ROWS[position]
    assert judged(planned, "curve", better(position, **numbers))[name] is Outcome.REFUTED


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, records=p.records[1:], starts=np.maximum(p.starts - 1, 0)),
        lambda p: replace(p, priors=np.where(p.priors == 0.001, 0.0005, p.priors)),
        lambda p: replace(p, posteriors=p.posteriors * 1.5),
        lambda p: replace(p, ids=("other", *p.ids[1:])),
    ],
)
def test_a_plan_that_leaves_its_book_is_refuted(
    planned: Path, tmp_path: Path, change: Callable[[Protection], Protection]
) -> None:
    for name in ("train.jsonl", "secrets.jsonl"):
        (tmp_path / name).write_bytes((planned / name).read_bytes())
    report = tmp_path / "curve.report.json"
    path = tmp_path / "curve.safetensors"
    with staged_protection(path, change(read_protection(planned / "curve.safetensors")), report) as pending:
        pending.commit()
    report_of_curve = decode((planned / "curve.report.json").read_text(), "report")
    report.write_text(encode(replace(report_of_curve, outputs=(file_artifact("plan", path, report),))))
    assert judged(tmp_path, "curve")["secrets.jsonl"] is Outcome.REFUTED


def test_a_plan_under_another_steps_name_is_refuted(planned: Path) -> None:
    """Checks go by the name: under one that no step has, a plan could state what nothing enforced."""
    assert Outcome.REFUTED in judged(planned, "curve", lambda report: replace(report, step="secrets plan")).values()


def test_bounds_that_overlap_do_not_name_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide bound on one secret's posterior once made a genuine report say the nats of the wrong secret."""
    arrays = {
        "starts": np.array([0, 3, 5]), "records": np.arange(5), "probabilities": np.full(5, 0.0667774),
        "priors": np.full(2, 0.001), "posteriors": np.full(2, 0.5), "budgets": np.full(2, 2.7612),
        "curve_bounds": np.array([0.27341, 0.27632]), "posterior_bounds": np.full(2, 0.49),
    }  # fmt: skip
    bounds = {3: BoundPair(0.27340, 0.27772), 2: BoundPair(0.27630, 0.27634)}
    monkeypatch.setattr(secret_plan, "largest_success", lambda chances, *_: bounds[len(chances)])
    run = secret_plan._PlannedRun(arrays, 0.2485517844299729, 2)
    among = np.array([0, 1])
    _, nats = secret_plan._secret_of(run, among, 1.5755, first=True, curve=True)
    assert nats == pytest.approx(1.5755141, abs=1e-6)
    assert secret_plan._secret_of(run, among, 2.7106, first=True, curve=True)[0] == 0  # either may be the nearest
    bounds[3] = BoundPair(0.27340, 0.27342)
    assert secret_plan._secret_of(run, among, 2.7106, first=True, curve=True)[0] == 1  # now it cannot be
