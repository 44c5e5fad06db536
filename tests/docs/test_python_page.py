"""Every example of the page about Python runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import re
import warnings
from pathlib import Path

import pytest
import torch

from privctl import __all__ as public
from tests.audits.tiny import WORDS, save_model
from tests.docs.pages import pages

PAGE = pages()["python.md"]
#: Title of a section -> its examples, each with what it prints where the page shows that.
SECTIONS = {
    part.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", part, re.DOTALL)
    for part in PAGE.split("\n## ")[1:]
}
NEEDS = {"A training by Opacus": "opacus", "Audits while the Trainer trains": "accelerate"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name."""
    save_model(tmp_path / "model")
    drawn = random.Random(0)
    for name in ("train", "held-out"):
        lines = [json.dumps({"text": " ".join(drawn.choices(WORDS, k=12))}) + "\n" for _ in range(32)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    rows = [f"{i},{drawn.gauss(i % 2, 1)},{i % 2}\n" for i in range(100)]
    (tmp_path / "per-record.csv").write_text("id,ratio,member\n" + "".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "title",
    [
        # Each function of the commands has quick tests in ``tests/api``.
        pytest.param(title, marks=pytest.mark.slow) if title == "The commands" else title
        for title, examples in SECTIONS.items()
        if examples
    ],
)
@pytest.mark.usefixtures("here")
def test_examples_print_what_the_page_shows(title: str) -> None:
    if (library := NEEDS.get(title)) and importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    torch.manual_seed(0)
    space: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code, output in SECTIONS[title]:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, title, "exec"), space)
            if output:
                assert printed.getvalue() == output


def test_the_page_names_every_function() -> None:
    assert set(re.findall(r"`privctl\.(\w+)`", PAGE)) >= set(public)
