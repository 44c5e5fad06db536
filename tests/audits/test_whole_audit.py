"""From planting to verdict: canaries in the data, a model trained on it by privctl, and one audit of everything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from audits.canaries import verdict
from audits.canaries.bounds import EITHER
from audits.claims import EpsilonClaim, claims_of
from audits.lineage import lineage_of
from audits.statistics import one_run
from privctl.cli import run
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Scope, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode, encode
from privctl.reports.files import file_artifact
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import new_model, texts
from tests.audits.tiny import write_jsonl
from tests.forked import Forked


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planted data set, and a model that ``privctl retrain`` trained on it by heart."""
    folder = tmp_path_factory.mktemp("whole")
    write_jsonl(folder / "data.jsonl", texts(60, 1))
    write_jsonl(folder / "other.jsonl", texts(60, 2))
    new_model(folder / "start")
    plant = ["canary", "plant", str(folder / "data.jsonl"), "-o", str(folder / "planted.jsonl"), "--count", "61"]
    assert run([*plant, "--template", "pin {digits:6}", "-q"]) == 0
    training = ["--epochs", "30", "--batch-size", "32", "--learning-rate", "1e-2", "--device", "cpu", "-q"]
    data = ["--data", str(folder / "planted.jsonl")]
    assert run(["retrain", "plain", str(folder / "start"), *data, "-o", str(folder / "model"), *training]) == 0
    return folder


def audit(folder: Path, *more: str, model: str = "model") -> int:
    common = ["--device", "cpu", "--cache", str(folder / "cache"), "-f", "-q"]
    return run(["audit", str(folder / model), *common, *more])


def report_of(folder: Path, model: str = "model") -> PrivacyReport:
    path = folder / f"{model}.audit.report.json"
    return decode(path.read_text(), path.name)


def commitment(folder: Path) -> str:
    return str(json.loads((folder / "planted.canaries.json").read_text())["commitment"])


def canaries(folder: Path) -> list[str]:
    return ["--canaries", str(folder / "planted.canaries.json"), "--canary-data", str(folder / "planted.jsonl")]


def leak_of_canaries(report: PrivacyReport) -> str:
    """What the summary says of them: the coins of the planting decide whether one of them comes out by itself."""
    completed = [item for item in report.evidence if item.method == "canary completion"]
    disclosing = [item for item in completed if "included" in item.quantity and item.details["disclosed"]]
    if disclosing and not any(item.details["disclosed"] for item in completed if "left out" in item.quantity):
        return " planted secrets with 1 copy can be extracted word for word"
    return "the model remembers secrets that were planted in its training data"


def test_all_of_it_in_one_audit(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sides = ["--members", str(folder / "data.jsonl"), "--nonmembers", str(folder / "other.jsonl")]
    texts = ["--train", str(folder / "data.jsonl"), "--held-out", str(folder / "other.jsonl")]
    cut = ["--prefix-tokens", "2", "--suffix-tokens", "2"]
    more = ["--commitment", commitment(folder), "--claim", "0.1,1e-5"]
    assert audit(folder, *sides, *texts, *cut, *canaries(folder), *more) == 1, "a claim was refuted"
    out = capfd.readouterr().out
    report = report_of(folder)
    outcomes = {item.subject: item.outcome for item in report.verdicts}
    assert outcomes["members cannot be told from non-members"] is Outcome.REFUTED
    assert outcomes["planted canaries left no trace"] is Outcome.REFUTED
    assert outcomes["(0.1, 1e-05)-DP, as claimed"] is Outcome.REFUTED
    assert "training text cannot be extracted" in outcomes
    assert 'REJECTED: "planted canaries left no trace"' in out
    first = " ".join(out.partition("\n\n")[0].split())
    assert first.startswith("Do not release: the claim of (0.1, 1e-05)-DP is refuted: it promises")
    assert leak_of_canaries(report) in first
    assert "The exit code is 1 because a claim of privacy was refuted" in " ".join(out.split())
    assert "left out" in out
    roles = {item.role for item in report.inputs}
    assert {"members", "nonmembers", "train", "heldout", "canaries", "planted"} <= roles
    conditions = report.parameters["canary_conditions"]
    assert [condition["name"] for condition in conditions if condition["state"] != "checked"] == ["independent coins"]


def test_the_same_audit_twice_is_the_same(folder: Path) -> None:
    found = []
    for _ in range(2):
        assert audit(folder, *canaries(folder), "--references", "63") == 0
        found.append((folder / "model.audit.scores.safetensors").read_bytes())
    assert found[0] == found[1]


def test_another_training_run_gives_no_bound(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(folder / "data.jsonl"), "--epochs", "1", "--batch-size", "20", "--device", "cpu", "-q"]
    if not (folder / "elsewhere").exists():
        assert run(["retrain", "plain", str(folder / "start"), *data, "-o", str(folder / "elsewhere")]) == 0
    assert audit(folder, *canaries(folder), "--references", "63", model="elsewhere") == 0
    bound = next(item for item in report_of(folder, "elsewhere").evidence if item.method == EITHER)
    assert bound.estimate is None
    assert "not a bound" in bound.reason
    trace = next(verdict for verdict in report_of(folder, "elsewhere").verdicts if "canaries" in verdict.subject)
    assert trace.outcome is Outcome.INCONCLUSIVE
    assert "names other data" in trace.reason


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--commitment", "blake3:00"], "--commitment needs --canaries"),
        (["--held-out", "x"], "--held-out needs --train"),
        (["--train", "DATA", "--greedy-only", "--top-k", "5"], "--greedy-only does not sample"),
        (["--train", "DATA", "--prefix-tokens", "2", "--suffix-tokens", "2", "--records", "0"], "--records is 0"),
        (["--canaries", "DATA", "-o", "nowhere/x.json"], "is not a folder to write x.json into"),
        (["--greedy-only"], "--greedy-only needs --train"),
        (["--attack", "loss"], "--attack needs --members"),
        (["--canaries", "DATA", "--least-auc", "0.7"], "--least-auc needs --members"),
        (["--canaries", "DATA", "--prefix-tokens", "0"], "--prefix-tokens needs --train"),
        (["--canaries", "DATA", "--suffix-tokens", "5"], "--suffix-tokens needs --train"),
        (["--canaries", "DATA", "--temperature", "0.5"], "--temperature needs --train"),
        (["--canaries", "DATA", "--queries", "5"], "--queries needs --train or --secrets"),
        (["--canaries", "DATA", "--query-probability", "0.9"], "--query-probability needs --train or --secrets"),
        (["--train", "DATA", "--no-exact"], "--exact needs --canaries"),
        (["--canaries", "DATA", "--exact", "--references", "40"], "remove one"),
        (["--train", "DATA", "--greedy-only", "--temperature", "0.5"], "remove --temperature"),
        (["--train", "DATA", "--greedy-only", "--queries", "5", "--query-probability", "0.9"], "remove --queries and"),
        ([], "there is nothing to audit"),
        (["--members", "x"], "give both --members and --nonmembers"),
        (["--train", "DATA", "--top-p", "2"], "--top-p is 2"),
        (["--train", "DATA", "--prefix-tokens", "60", "--suffix-tokens", "60"], "tokens"),
        (["--canaries", "DATA"], "data.jsonl"),
        (["--train", "DATA", "--claim", "1,1e-5"], "--claim needs --canaries or --split"),
        (["--canaries", "DATA", "--claim=-1,1e-5"], "is out of range"),
        (["--canaries", "DATA", "--claim", "inf,1e-5"], "is out of range"),
        (["--canaries", "DATA", "--claim", "nan,1e-5"], "is out of range"),
    ],
)
def test_what_cannot_be_asked(
    folder: Path, arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    call = [str(folder / "data.jsonl") if argument == "DATA" else argument for argument in arguments]
    assert audit(folder, *call) in (2, 3)
    err = capfd.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) == 1


def bound(right: int, *, copies: int = 1, delta: float = 1e-5, guesses: int = 1000) -> Evidence:
    lower = one_run.epsilon_bound(1000, guesses, right, delta)
    return Evidence(
        method=EITHER,
        quantity="epsilon",
        estimate=lower,
        lower=lower,
        bound=Bound.LOWER,
        samples={"canaries": 1000, "guesses": guesses},
        details={
            "delta": delta, "copies": copies, "sets": 1, "guesses 1": guesses, "made 1": guesses, "correct 1": right
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "claim", "outcome"),
    [
        (bound(790), (1.0, 1e-5), Outcome.REFUTED),
        (bound(740, delta=0.0), (1.0, 0.0), Outcome.CONSISTENT),
        # noticed at a true epsilon of 1.2 by randomized response, but of 6.8 by Gaussian noise
        (bound(740), (1.0, 1e-5), Outcome.INCONCLUSIVE),
        (bound(790), (1.0, 1e-2), Outcome.REFUTED),
        (bound(790), (1.0, 0.2), Outcome.INCONCLUSIVE),
        (bound(790), (1.0, 0.0), Outcome.REFUTED),
        (bound(790, copies=10), (1.0, 1e-5), Outcome.INCONCLUSIVE),
        (bound(15, guesses=20), (8.0, 1e-5), Outcome.INCONCLUSIVE),
    ],
)
def test_a_claim_is_judged_by_the_evidence(evidence: Evidence, claim: tuple[float, float], outcome: Outcome) -> None:
    (found,) = verdict.claims([evidence], [EpsilonClaim(epsilon=claim[0], delta=claim[1])])
    assert found.outcome is outcome


def test_only_what_speaks_of_single_records_is_a_claim() -> None:
    def guarantee(**changed: object) -> Guarantee:
        settings = {
            "name": "x",
            "epsilon": 1.0,
            "delta": 1e-5,
            "adjacency": Adjacency.ADD_OR_REMOVE,
            "accountant": "y",
            "status": Status.PROVED,
        }
        return Guarantee(**{**settings, **changed})  # type: ignore[arg-type]

    several = [
        guarantee(),
        guarantee(epsilon=None),
        guarantee(epsilon=3.0, unit=PrivacyUnit.SECRET),
        guarantee(epsilon=4.0, notion=Notion.MUTUAL_INFORMATION),
        guarantee(epsilon=5.0, scope=Scope.ALL_CANDIDATES),
        guarantee(epsilon=6.0, status=Status.VOID),
        guarantee(epsilon=8.0, adjacency=Adjacency.REPLACE_ONE),
        guarantee(epsilon=7.0, status=Status.CLAIMED),
    ]
    assert [claim.epsilon for claim in claims_of(several, "r")] == [1.0, 7.0]


def test_the_lineage_is_followed_up_to_the_training(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model" / "model.safetensors"
    inputs = [file_artifact("model", weights, tmp_path / "r.json")]
    found = lineage_of(folder / "model", inputs, tmp_path / "r.json")
    assert found.trained_on is not None
    assert file_digest(folder / "planted.jsonl") in found.trained_on
    assert found.planned_by == ()
    assert found.doubts == ()
    assert found.learned == {file_digest(folder / "planted.jsonl")}
    assert found.began_with == {file_digest(folder / "start" / "model.safetensors")}
    trained = folder / "model.report.json"
    text = trained.read_text()
    try:
        other = decode(text, "x")
        trained.write_text(encode(other).replace(inputs[0].digest, "blake3:" + 64 * "0"))
        doubted = lineage_of(folder / "model", inputs, tmp_path / "r.json")
        assert doubted.trained_on is doubted.planned_by is None
        assert "about other weights" in doubted.doubts[0]
    finally:
        trained.write_text(text)


def test_a_renamed_model_and_its_renamed_report_are_found(folder: Path, tmp_path: Path) -> None:
    """The header of the weights names the report as it was called; its claims went untested if that was gone."""
    shutil.copytree(folder / "model", tmp_path / "received")
    shutil.copy(folder / "model.report.json", tmp_path / "stated.report.json")
    inputs = [file_artifact("model", tmp_path / "received" / "model.safetensors", tmp_path / "r.json")]
    found = lineage_of(tmp_path / "received", inputs, tmp_path / "r.json")
    assert (found.doubts, found.source) == ((), "stated.report.json")
    assert found.trained_on is not None
    assert file_digest(folder / "planted.jsonl") in found.trained_on
    (tmp_path / "model.report.json").write_text(
        (folder / "model.report.json").read_text().replace("blake3:", "blake3:0")
    )
    assert lineage_of(tmp_path / "received", inputs, tmp_path / "r.json").source == "stated.report.json"


def test_the_example_plants_trains_and_audits(folder: Path, tmp_path: Path, root: Path, forked: Forked) -> None:
    command = ["bash", str(root / "examples" / "audit-canaries.sh"), str(folder / "start"), str(folder / "data.jsonl")]
    more = [
        str(folder / "other.jsonl"),
        str(tmp_path / "out"),
        "--epochs",
        "1",
        "--batch-size",
        "40",
        "--device",
        "cpu",
    ]
    environment = {
        **os.environ,
        "PRIVCTL": forked.shell(),
        "CANARIES": "12",
        "AUDIT": f"--device cpu --cache {tmp_path / 'cache'} --prefix-tokens 2 --suffix-tokens 2 --references 20",
    }
    done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("commitment", "plain: ", "private: ", "included, 100 copies", "INCONCLUSIVE"):
        assert words in done.stdout
