"""Secrets whose values were drawn at random by ``privctl canary plant``: what may contradict a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from audits.canaries.manifest import read_manifest
from audits.findings import Findings
from audits.scores.subject import load_subject
from audits.secrets.audit import SecretRequest, SecretsAudit
from audits.secrets.trace import DESIGNED
from audits.secrets.verdict import TRACELESS
from privctl.data.records import read_records
from privctl.domain.verdict import Outcome, Verdict
from tests.audits.canaries.small import new_model, planted, texts, train
from tests.audits.secrets.small import book, judged, of, protect
from tests.audits.tiny import write_jsonl

#: Values that each secret is ranked among.
CANDIDATES = 200
TOLD = "secrets told against the plan"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Canaries among the data, a model that learnt them, and one that never saw them."""
    folder = tmp_path_factory.mktemp("designed")
    write_jsonl(folder / "data.jsonl", texts(80, 1))
    planted(folder, count=60, prefix_from=folder / "data.jsonl", templates=("pin {digits:5}",), copies=(2,))
    train(new_model(folder / "never"), folder / "data.jsonl", epochs=4)
    train(new_model(folder / "knows"), folder / "planted.jsonl", epochs=30)
    return folder


def rows_of(workspace: Path) -> list[tuple[str, list[int]]]:
    """Each included canary and the records that hold it."""
    found = [record.text for record in read_records(workspace / "planted.jsonl")]
    canaries = [canary for canary in read_manifest(workspace / "m.json").canaries if canary.included]
    return [(canary.secret, [i for i, text in enumerate(found) if canary.secret in text]) for canary in canaries]


def request(workspace: Path, folder: Path, information: float, rows: list[tuple[str, list[int]]]) -> SecretRequest:
    data = workspace / "planted.jsonl"
    count = sum(1 for _ in read_records(data))
    plan = protect(
        folder / "plan.safetensors", data, [r for _, r in rows], [0.1] * count, information=information, prior=1e-3
    )
    path = book(folder / "book.jsonl", rows)
    return SecretRequest(secrets=path, data=data, plan=plan, manifest=workspace / "m.json", candidates=CANDIDATES)


def verdicts(found: Findings) -> tuple[Verdict, Verdict]:
    trace, protection = found.verdicts
    assert trace.subject == TRACELESS
    assert protection.subject == "(prior, posterior)-secret protection, as planned in plan.safetensors"
    return trace, protection


def test_a_plan_that_promises_what_the_model_breaks(workspace: Path, tmp_path: Path) -> None:
    """Planted: the plan says that next to nothing leaves a secret, and the model knows them by heart."""
    rows = rows_of(workspace)
    found = judged(workspace / "knows", request(workspace, tmp_path, 1e-6, rows))
    trace, protection = verdicts(found)
    assert trace.outcome is protection.outcome is Outcome.REFUTED
    item = of(found, TOLD)
    assert item.details["told"] > 0.9 * len(rows)
    assert item.details["p_value"] == pytest.approx(item.details["allowed_on_average"] / item.details["told"])
    assert item.details["p_value"] <= item.details["level"] == 0.025
    assert "Markov" in protection.reason
    assert of(found, f"mean bits beyond, {DESIGNED}, by loss").details["p_value"] < 1e-9


def test_a_model_that_never_saw_them_breaks_no_promise(workspace: Path, tmp_path: Path) -> None:
    rows = rows_of(workspace)
    found = judged(workspace / "never", request(workspace, tmp_path, 1e-6, rows))
    trace, protection = verdicts(found)
    assert trace.outcome is Outcome.INCONCLUSIVE
    assert protection.outcome is Outcome.CONSISTENT
    assert "first ranks would have contradicted that" in protection.reason
    assert of(found, f"mean bits beyond, {DESIGNED}, by loss").details["p_value"] > 1e-3


def test_among_two_candidates_nothing_can_be_found(workspace: Path, tmp_path: Path) -> None:
    rows = rows_of(workspace)
    asked = dataclasses.replace(request(workspace, tmp_path, 1e-6, rows), candidates=2)
    found = judged(workspace / "knows", asked)
    trace, _ = verdicts(found)
    assert trace.outcome is Outcome.INCONCLUSIVE
    assert f"{len(rows)} of {len(rows)} secrets trained on rank first" in trace.reason
    assert trace.reason.endswith("it would not have if all ranked first; give more --candidates, or more secrets")


@pytest.mark.slow
def test_loose_bounds_cannot_be_contradicted_by_one_run(workspace: Path, tmp_path: Path) -> None:
    found = judged(workspace / "knows", request(workspace, tmp_path, 0.5, rows_of(workspace)))
    _, protection = verdicts(found)
    assert protection.outcome is Outcome.INCONCLUSIVE
    assert "not even first ranks for all of them" in protection.reason
    assert of(found, TOLD).details["needed"] > of(found, TOLD).samples["secrets"]


def test_a_book_that_lacks_canaries_may_have_chosen_them(workspace: Path, tmp_path: Path) -> None:
    """Planted: the book holds only canaries with a 7, which the model may well prefer."""
    rows = [(value, some) for value, some in rows_of(workspace) if "7" in value]
    found = judged(workspace / "knows", request(workspace, tmp_path, 1e-6, rows))
    trace, protection = verdicts(found)
    assert trace.outcome is protection.outcome is Outcome.INCONCLUSIVE
    assert not found.arrays["secret.designed"].any()
    assert any("planted canaries are taken as found values" in line for line in found.warnings)


def test_a_manifest_other_than_the_committed_one_bears_nothing(workspace: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(request(workspace, tmp_path, 1e-6, rows_of(workspace)), commitment="blake3:00")
    found = judged(workspace / "knows", asked)
    trace, protection = verdicts(found)
    assert trace.outcome is protection.outcome is Outcome.INCONCLUSIVE
    assert "not the one that the given commitment stands for" in protection.reason


def test_candidates_are_drawn_as_the_canaries_were(workspace: Path, tmp_path: Path) -> None:
    manifest = read_manifest(workspace / "m.json")
    planted_here = {canary.secret for canary in manifest.canaries}
    part = SecretsAudit(
        load_subject(workspace / "never", device="cpu"), request(workspace, tmp_path, 1e-6, rows_of(workspace))
    )
    for problem in part._problems:
        values = {"".join(part._subject.model.tokenizer.convert_ids_to_tokens(p.tokens)) for p in problem.places[0]}
        assert len(values) == CANDIDATES
        assert all(len(value) == 5 and value.isdigit() for value in values)
        assert len(values & planted_here) == 1, "its own"
