"""The files that transformers saves next to the weights, without keys that refer to code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from privctl.models.guard.keys import CONFIGURATIONS, read_object, without_code


def saved_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The content of each file in ``folder``, by name.

    Tokenizers preserve unknown keys of their settings; those that refer to code, such as ``auto_map``, are removed.
    """
    for path in sorted(folder.iterdir()):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.name in CONFIGURATIONS:
            kept, left_out = without_code(read_object(path))
            content = json.dumps(kept, indent=2, ensure_ascii=False).encode() + b"\n" if left_out else content
        yield path.name, content
