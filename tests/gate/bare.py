"""Runs of ``privctl`` in a process in which few packages can be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bytecode import search_path

BARE = """
import contextlib, io, json, sys
ALLOWED = {"privctl", "audits", "verify", "click", "blake3", "typing_extensions", *sys.argv.pop(1).split()}
class Bare:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
sys.meta_path.insert(0, Bare())
from privctl.cli import run
ended = []
for call in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = run(call)
    ended.append((code, said.getvalue()))
print(json.dumps(ended))
"""


def bare(folder: Path, root: Path, allowed: str, *calls: list[str]) -> list[tuple[int, str]]:
    """The exit code and output of each of ``calls`` to ``privctl``, in one process with few other packages."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, allowed, json.dumps(calls)],
        cwd=folder, env={**os.environ, "PYTHONPATH": search_path(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(each) for each in json.loads(done.stdout)]
