"""The log of searches beside a model shows searches that its report leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.train.search.made_before import _CHAIN, log_of
from verify.files import searches
from verify.files.searches import check_searches, unlisted_searches

DATA, OTHER, CREATED = "blake3:" + "1" * 64, "blake3:" + "2" * 64, "2030-01-01T12:00:00Z"
BEFORE, AFTER = "2030-01-01T11:00:00Z", "2030-01-01T13:00:00Z"


def report(search: dict[str, Any] | None, *digests: str) -> PrivacyReport:
    data = (Artifact(role="data", path=f"{i}.jsonl", digest=each, bytes=1) for i, each in enumerate(digests or (DATA,)))
    return PrivacyReport(
        step="retrain", created=CREATED, versions={}, inputs=tuple(data),
        outputs=(Artifact(role="model", path="out/model.safetensors", digest=OTHER, bytes=1),),
        parameters={"search": search},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parameters of a training, which do not matter here, are left out."""

    class Search:
        def __init__(self, earlier: int | None = None) -> None:
            self.earlier = earlier

    class Training:
        def __init__(self, report: PrivacyReport) -> None:
            stated = report.parameters["search"]
            self.search = None if stated is None else Search(**stated)

    monkeypatch.setattr(searches, "training_of", Training)


def logged(folder: Path, *lines: tuple[str, str]) -> Path:
    """The report's place, beside a log with a line for each time and digest."""
    content, head = b"", _CHAIN.root
    for time, digest in lines:
        line, head = _CHAIN.line(head, f"{time} {digest}".encode())
        content += line
    log_of(folder / "out").write_bytes(content)
    return folder / "out.report.json"


def outcomes(path: Path, of: PrivacyReport) -> tuple[list[Outcome], list[str]]:
    return [each.outcome for each in check_searches(path, of, ())], [o.reason for o in unlisted_searches(path, of)]


@pytest.mark.parametrize(
    ("search", "lines", "outcome", "word"),
    [
        ({}, [(BEFORE, DATA)], Outcome.CONSISTENT, ""),
        ({}, [(BEFORE, DATA), (BEFORE, DATA)], Outcome.REFUTED, ""),
        ({"earlier": 1}, [(BEFORE, DATA), (BEFORE, DATA)], Outcome.CONSISTENT, ""),
        ({"earlier": 1}, [(BEFORE, DATA)] * 3, Outcome.REFUTED, ""),
        ({"earlier": 1}, [(BEFORE, DATA)], None, "it lists 1 search of these data"),
        ({}, [(BEFORE, OTHER), (BEFORE, DATA), (AFTER, DATA)], Outcome.CONSISTENT, ""),
        (None, [(BEFORE, DATA)], None, "of a single run: whatever they decided here costs privacy"),
        (None, [(BEFORE, OTHER), (AFTER, DATA)], None, ""),
    ],
)
def test_searches_that_a_log_lists_are_counted(
    search: dict[str, Any] | None, lines: list[tuple[str, str]], outcome: Outcome | None, word: str, tmp_path: Path
) -> None:
    found, left = outcomes(logged(tmp_path, *lines), report(search))
    assert found == ([] if outcome is None else [outcome])
    assert len(left) == bool(word)
    assert all(word in reason for reason in left)


def test_data_of_several_files_have_one_digest(tmp_path: Path) -> None:
    from privctl.data.recorded import digest_of
    from privctl.storage.digest import DigestedFile

    files = [DigestedFile(path=Path(f"{i}.jsonl"), digest=each, bytes=1) for i, each in enumerate((DATA, OTHER))]
    path = logged(tmp_path, (BEFORE, digest_of(files)), (BEFORE, digest_of(files)))
    assert outcomes(path, report({}, DATA, OTHER))[0] == [Outcome.REFUTED]


def test_a_log_that_is_missing_or_was_edited_is_named(tmp_path: Path) -> None:
    path = logged(tmp_path, (BEFORE, DATA))
    log = log_of(tmp_path / "out")
    log.write_bytes(log.read_bytes().replace(b"11:00", b"11:01"))
    (reason,) = outcomes(path, report({}))[1]
    assert "it was edited" in reason
    log.unlink()
    assert outcomes(path, report({}))[1] == ["it is not at hand"]
    assert outcomes(path, report(None)) == ([], [])
    assert outcomes(path, replace(report({}), step="audit")) == ([], [])
