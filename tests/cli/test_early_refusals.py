"""Outputs in the way, missing inputs and options that contradict each other are refused before torch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_cli_start import Called, calls

MEMBERSHIP = ["--members", "a.jsonl", "--nonmembers", "b.jsonl"]
FACTS = ["--epochs", "1", "--learning-rate", "1e-3", "--clip-norm", "1", "--dataset-size", "40", "--batch-size", "4"]
#: Arguments -> what the sentence says.
REFUSED = {
    ("audit", "m", *MEMBERSHIP, "-o", "taken.json"): "taken.json exists; give --force",
    ("audit", "m", "--members", "a.jsonl"): "give both --members and --nonmembers",
    ("audit", "m", *MEMBERSHIP, "--greedy-only"): "--greedy-only needs --train",
    ("audit", "m", *MEMBERSHIP, "--train", "nowhere.jsonl"): "nowhere.jsonl is not a file",
    ("audit", "m", *MEMBERSHIP, "--train", "a.jsonl", "--held-out", "a.jsonl"): "are the same file",
    ("audit", "m", "--train", "a.jsonl", "--divergence"): "need --held-out",
    ("retrain", "plain", "m", "--data", "a.jsonl", "-o", "folder"): "folder exists; give --force",
    ("retrain", "dp-sgd", "m", "--data", "a.jsonl", "-o", "new"): "needs either --epsilon or --noise-multiplier",
    ("retrain", "plain", "m", "--data", "nowhere.jsonl", "-o", "new"): "nowhere.jsonl is not a file",
    ("retrain", "plain", "nowhere", "--data", "a.jsonl", "-o", "new"): "nowhere does not exist",
    ("retrain", "plain", "m", "--data", "a.jsonl", "-o", "folder", "--dry-run"): "folder exists; give --force",
    ("retrain", "plain", "m", "--data", "a.jsonl", "-o", "new", "--resume"): "new.run does not exist, so there is no",
    ("retrain", "plain", "m", "--data", "a.jsonl", "-o", "done", "--resume"): "done is finished, and done.report.json",
    ("noise", "m", "--epsilon", "1", *FACTS, "-o", "folder"): "exist",
    ("noise", "m", "--epsilon", "1", "--noise-stddev", "1", "-o", "new"): "remove one or the other",
    ("shadow", "m", "--data", "a.jsonl", "-o", "taken.json"): "taken.json exists and is no folder",
    ("shadow", "m", "--data", "nowhere.jsonl", "-o", "new"): "nowhere.jsonl is not a file",
}  # fmt: skip


@pytest.fixture(scope="module")
def called(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Called]:
    from tests.audits.tiny import save_model

    folder = tmp_path_factory.mktemp("refused")
    save_model(folder / "m")
    for name in ("a.jsonl", "b.jsonl", "taken.json"):
        (folder / name).write_text('{"text": "a"}\n')
    (folder / "folder").mkdir()
    (folder / "done").mkdir()
    (folder / "done.report.json").write_text("{}")
    (folder / "folder" / "other.txt").write_text("not privctl's")
    asked = [list(arguments) for arguments in REFUSED]
    return dict(zip(REFUSED, calls(root, asked, f"import os\nos.chdir({str(folder)!r})\n"), strict=True))


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_refusal_imports_no_torch(called: dict[tuple[str, ...], Called], arguments: tuple[str, ...]) -> None:
    found = called[arguments]
    assert found.code in (2, 3)
    assert REFUSED[arguments] in " ".join(found.errors.split())
    assert {"torch", "transformers"}.isdisjoint(found.modules)
