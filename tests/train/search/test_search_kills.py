"""A search that is killed at any write or rename can be resumed or begun again, and its log counts it once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report
from privctl.train.preparation.places import report_path
from privctl.train.search import folder as search_folder
from privctl.train.search.made_before import log_of
from privctl.train.settings.request import RetrainRequest
from tests.cli.killed import WRITES, contents, copied_at
from tests.models.tasks.small import architecture
from tests.train.search import test_search_clean_up as runs


def states(copies: list[Path]) -> list[Path]:
    """One copy of each list of names: random parts of names aside."""
    found = {}
    for copy in copies:
        names = sorted(str(path.relative_to(copy)) for path in copy.rglob("*"))
        found.setdefault(re.sub(r"[0-9a-f]{12}", "#", "\n".join(names)), copy)
    return list(found.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "f"
    architecture(folder / "start", "gpt2", n_layer=1)
    for name in ("train", "public"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: 2)
    return folder


def lines_of(folder: Path) -> int:
    log = log_of(folder / "out")
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_it_goes_on_from_wherever_it_was_killed(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = states(copied_at(lambda: runs.search(folder), folder, tmp_path / "copies", WRITES))
    assert len(copies) > 20
    trained = runs.trained

    def made_again(asked: RetrainRequest) -> PrivacyReport:
        shutil.rmtree(asked.output, ignore_errors=True)  # a training would have made it whole or not at all
        return trained(asked)

    for name in ("trained", "again"):
        monkeypatch.setattr(runs, name, made_again)
    seen = set()
    for copy in copies:
        shutil.rmtree(folder)
        copy.rename(folder)  # the state names MODEL by its path
        entered = lines_of(folder)
        try:
            runs.search(folder)
            state = "begun anew"
            # One that was killed between its line and its first run counts: nobody else knows that it drew nothing.
            assert lines_of(folder) == entered + 1
        except CommandError as error:
            if "continue it with --resume" in str(error):
                state = "resumed"
            else:
                state = "over"
                assert "out exists; give --force" in str(error)
            if (folder / "out.search" / "search.json").exists():  # of one that is over, what is left of its runs
                runs.search(folder, resume=True)
                assert not (folder / "out.search").exists()
            assert lines_of(folder) == 1
        seen.add(state)
        report = read_report(report_path(folder / "out"))
        files = {name for name in contents(folder) if name.startswith("out")}
        assert files == {"out.report.json", "out.searches", *(artifact.path for artifact in report.outputs)}
    assert seen == {"begun anew", "resumed", "over"}
