"""The paths of an audit's outputs."""

from __future__ import annotations

import os
from pathlib import Path

from privctl.storage.atomic import require_name


def output_paths(model: Path, output: Path | None) -> tuple[Path, Path]:
    """The paths of report and scores: ``output`` if given, otherwise beside the model or in the current folder."""
    if output is None:
        absolute = model.absolute()
        name = absolute.name if model.is_dir() else absolute.stem
        folder = model.parent if model.name else absolute.parent
        output = (folder if os.access(folder, os.W_OK) else Path()) / f"{name}.audit.report.json"
    require_name(output)
    stem = output.name.removesuffix(".json").removesuffix(".report")
    return output, output.with_name(f"{stem}.scores.safetensors")
