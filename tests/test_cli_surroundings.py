"""What a command sets before it begins, so that libraries neither ask the hub nor talk to the terminal."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from privctl.__main__ import main as start
from tests.test_cli_start import run


@pytest.mark.parametrize(("set_before", "seen"), [(None, "1"), ("0", "0")])
def test_no_command_asks_the_hub(monkeypatch: pytest.MonkeyPatch, set_before: str | None, seen: str) -> None:
    """huggingface_hub, which some commands import before any module of ours that loads models, reads it once."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if set_before is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", set_before)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    found: list[str | None] = []
    monkeypatch.setattr("privctl.cli.main", lambda: found.append(os.environ.get("HF_HUB_OFFLINE")))
    with warnings.catch_warnings():
        start()
    assert found == [seen]


@pytest.mark.parametrize(("options", "warns"), [([], False), (["-W", "default"], True)])
def test_words_of_libraries_to_programmers_do_not_reach_the_terminal(
    root: Path, options: list[str], warns: bool
) -> None:
    """A library that a command imports warns, and transformers logs, on the way: here, when click is imported."""
    speaks = (
        "import os, runpy, sys, warnings\n"
        "class Speaks:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click':\n"
        "            warnings.warn('will be removed in v6', FutureWarning)\n"
        "            print(os.environ.get('TRANSFORMERS_VERBOSITY'), file=sys.stderr)\n"
        "sys.meta_path.insert(0, Speaks())\n"
        "sys.argv = ['privctl', '--version']\n"
        "runpy.run_module('privctl', run_name='__main__')\n"
    )
    done = run(root, *options, "-c", speaks)
    assert done.returncode == 0, done.stderr
    assert ("will be removed" in done.stderr) is warns
    assert "error" in done.stderr.split()
